// Votes of independent servers, counted exhaustively.
#include <hiredlock/quorum.hpp>

#include <gtest/gtest.h>

#include <cstddef>

using hiredlock::detail::Votes;

namespace {

template <class Check>
void for_every_vote(Check check) {
    for (std::size_t nodes = 1; nodes <= 9; ++nodes)
        for (std::size_t yes = 0; yes <= nodes; ++yes)
            for (std::size_t no = 0; yes + no <= nodes; ++no)
                for (std::size_t failed = 0; yes + no + failed <= nodes; ++failed) {
                    SCOPED_TRACE(testing::Message() << nodes << " nodes: " << yes << " yes, " << no << " no, " << failed << " failed");
                    check(Votes{nodes, yes, no, failed});
                }
}

TEST(Quorum, IsMoreThanHalfOfThoseConfigured) {
    const std::size_t majorities[] = {1, 2, 2, 3, 3, 4, 4, 5, 5};
    for (std::size_t nodes = 1; nodes <= 9; ++nodes) EXPECT_EQ(Votes{.nodes = nodes}.majority(), majorities[nodes - 1]) << nodes;
}

TEST(Quorum, GrantsWithAMajorityOfYes) {
    for_every_vote([](const Votes& votes) { EXPECT_EQ(votes.is_granted(), votes.yes >= votes.nodes / 2 + 1); });
}

TEST(Quorum, IsOutOfReachWhereNoVoteStillOutCouldGrantIt) {
    for_every_vote([](const Votes& votes) {
        Votes best = votes;
        best.yes += best.pending();
        EXPECT_EQ(votes.is_out_of_reach(), !best.is_granted());
    });
}

TEST(Quorum, IsNeverGrantedAndOutOfReach) {
    for_every_vote([](const Votes& votes) {
        EXPECT_FALSE(votes.is_granted() && votes.is_out_of_reach());
        EXPECT_EQ(votes.is_decided(), votes.is_granted() || votes.is_out_of_reach());
        EXPECT_FALSE(votes.is_granted() && votes.is_refused());
        EXPECT_TRUE(votes.pending() > 0 || votes.is_decided()) << "a vote that is over is decided, even a split one";
    });
}

TEST(Quorum, IsRefusedWhereTheNoesAloneForbidIt) {
    for_every_vote([](const Votes& votes) {
        Votes best = votes;
        best.yes += best.pending() + best.failed;
        best.failed = 0;
        EXPECT_EQ(votes.is_refused(), !best.is_granted()) << "failures might have been yes";
        EXPECT_TRUE(!votes.is_refused() || votes.is_out_of_reach());
    });
}

TEST(Quorum, ADecisionStaysWhateverComesLater) {
    for_every_vote([](const Votes& votes) {
        if (votes.pending() == 0) return;
        for (auto member : {&Votes::yes, &Votes::no, &Votes::failed}) {
            Votes later = votes;
            ++(later.*member);
            EXPECT_TRUE(!votes.is_granted() || later.is_granted());
            EXPECT_TRUE(!votes.is_out_of_reach() || later.is_out_of_reach());
            EXPECT_TRUE(!votes.is_refused() || later.is_refused());
        }
    });
}

}  // namespace
