// Many renewals and releases in one write: each gets its own answer, and one WAIT serves all that ask for it.
#include "scripted.hpp"

#include <hiredlock/batch.hpp>

#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

using namespace hiredlock::detail;
using namespace replies;
using namespace std::chrono_literals;
using hiredlock::Acknowledgement;
using hiredlock::Answer;
using hiredlock::Cas;
using hiredlock::Claim;
using hiredlock::Errc;
using Lines = std::vector<std::string>;

namespace {

const Claim a{.key = "a", .token = "ta", .ttl = 1500ms}, b{.key = "b", .token = "tb", .ttl = 1500ms}, c{.key = "c", .token = "tc", .ttl = 1500ms};

class Batches : public testing::Test {
protected:
    void make(std::vector<Batch::Item> items) {
        batch = std::make_unique<Batch>(
            std::move(items), dialect, 300ms, [this](std::size_t i) { return !unwanted.contains(i); },
            [this](std::size_t i, Answer answer, std::error_code error, const std::string& words) {
                EXPECT_TRUE(answers.emplace(i, answer).second) << "answered twice";
                errors[i] = error;
                said_words[i] = words;
            });
    }
    Lines start() {
        batch->start(said);
        return said.take();
    }
    Lines answer(const Reply& reply) {
        decided = batch->take(reply, said);
        return said.take();
    }
    static Claim with(Claim claim, const Acknowledgement& acknowledged) {
        claim.acknowledged = acknowledged;
        return claim;
    }

    static constexpr auto extend = CompareAnd::Do::extend;
    static constexpr auto release = CompareAnd::Do::release;

    Dialect dialect{Cas::script};
    Said said;
    std::unique_ptr<Batch> batch;
    std::set<std::size_t> unwanted;
    std::map<std::size_t, Answer> answers;
    std::map<std::size_t, std::error_code> errors;
    std::map<std::size_t, std::string> said_words;
    bool decided = false;
};

TEST_F(Batches, SayEverythingAtOnceAndTellEachItsAnswer) {
    make({{extend, a}, {release, b}, {extend, c}});
    EXPECT_EQ(start(), (Lines{"EVALSHA <extend> 1 a ta 1500", "EVALSHA <release> 1 b tb", "EVALSHA <extend> 1 c tc 1500"}));
    EXPECT_EQ(answer(number(1)), Lines{});
    EXPECT_FALSE(decided);
    answer(number(0));
    answer(error("LOADING Redis is loading"));
    EXPECT_TRUE(decided);
    EXPECT_EQ(answers, (std::map<std::size_t, Answer>{{0, Answer::yes}, {1, Answer::no}, {2, Answer::failed}}));
    EXPECT_EQ(errors[2], Errc::loading);
    EXPECT_NE(said_words[2].find("LOADING"), std::string::npos);
    EXPECT_EQ(batch->answer, Answer::yes);
}

TEST_F(Batches, LeaveOutWhatIsNotWantedAnyMore) {
    make({{extend, a}, {extend, b}, {extend, c}});
    unwanted = {0, 2};
    EXPECT_EQ(start(), (Lines{"EVALSHA <extend> 1 b tb 1500"}));
    answer(number(1));
    EXPECT_TRUE(decided);
    EXPECT_EQ(answers, (std::map<std::size_t, Answer>{{1, Answer::yes}}));
}

TEST_F(Batches, ThatHaveNothingToSaySayPing) {
    make({{extend, a}});
    unwanted = {0};
    EXPECT_EQ(start(), (Lines{"PING"}));
    answer(text("PONG"));
    EXPECT_TRUE(decided);
    EXPECT_TRUE(answers.empty());
}

TEST_F(Batches, SayWhatMustBeSaidAgainBehindTheRest) {
    make({{extend, a}, {extend, b}});
    start();
    EXPECT_EQ(answer(error("NOSCRIPT No matching script.")), (Lines{"EVAL <extend> 1 a ta 1500"}));
    EXPECT_EQ(answer(error("NOSCRIPT No matching script.")), (Lines{"EVAL <extend> 1 b tb 1500"}));
    EXPECT_FALSE(decided);
    answer(number(0));
    EXPECT_FALSE(decided);
    answer(number(1));
    EXPECT_TRUE(decided);
    EXPECT_EQ(answers, (std::map<std::size_t, Answer>{{0, Answer::no}, {1, Answer::yes}}));
}

TEST_F(Batches, AllTurnToTheOtherFormTogether) {
    dialect = Dialect{Cas::automatic};
    dialect.found(true, false, false);
    make({{release, a}, {release, b}, {release, c}});
    EXPECT_EQ(start(), (Lines{"DELEX a IFEQ ta", "DELEX b IFEQ tb", "DELEX c IFEQ tc"}));
    EXPECT_EQ(answer(error("NOPERM")), (Lines{"EVALSHA <release> 1 a ta"}));
    EXPECT_EQ(answer(error("NOPERM")), (Lines{"EVALSHA <release> 1 b tb"})) << "not back to the form that was refused";
    EXPECT_EQ(answer(error("NOPERM")), (Lines{"EVALSHA <release> 1 c tc"}));
    for (int i = 0; i < 3; ++i) answer(number(1));
    EXPECT_TRUE(decided);
    EXPECT_EQ(answers.size(), 3U);
    EXPECT_EQ(dialect.current(), Cas::script);
}

TEST_F(Batches, WhereEveryFormIsRefusedEachFailsAndNothingLoops) {
    dialect = Dialect{Cas::automatic};
    dialect.found(true, false, false);
    make({{release, a}, {release, b}});
    std::size_t out = start().size();
    for (int i = 0; i < 50 && !decided; ++i) {
        ASSERT_GT(out, 0U);
        out = out - 1 + answer(error("NOPERM")).size();
    }
    EXPECT_TRUE(decided);
    EXPECT_EQ(out, 0U);
    EXPECT_EQ(answers, (std::map<std::size_t, Answer>{{0, Answer::failed}, {1, Answer::failed}}));
    EXPECT_EQ(errors[1], Errc::denied);
}

TEST_F(Batches, OneWaitServesAllThatAskForIt) {
    make({{extend, with(a, {.replicas = 1, .timeout = 50ms})}, {extend, b}, {extend, with(c, {.replicas = 2, .timeout = 80ms})}});
    start();
    answer(number(1));
    answer(number(1));
    EXPECT_EQ(answers, (std::map<std::size_t, Answer>{{1, Answer::yes}})) << "who does not ask does not wait";
    EXPECT_EQ(answer(number(1)), (Lines{"WAIT 2 80"}));
    EXPECT_FALSE(decided);
    EXPECT_EQ(answer(number(1)), Lines{});
    EXPECT_TRUE(decided);
    EXPECT_EQ(answers, (std::map<std::size_t, Answer>{{0, Answer::yes}, {1, Answer::yes}, {2, Answer::failed}}));
    EXPECT_EQ(errors[2], Errc::not_replicated);
}

TEST_F(Batches, WaitForDisksAndForReplicasOneAfterTheOther) {
    make({{extend, with(a, {.replicas = 1, .timeout = 50ms})}, {extend, with(b, {.local = 1, .timeout = 60ms, .on_disk = true})}});
    start();
    answer(number(1));
    EXPECT_EQ(answer(number(1)), (Lines{"WAIT 1 50"}));
    EXPECT_EQ(answer(number(1)), (Lines{"WAITAOF 1 0 60"}));
    EXPECT_FALSE(decided);
    answer(array({number(0), number(3)}));
    EXPECT_TRUE(decided);
    EXPECT_EQ(answers, (std::map<std::size_t, Answer>{{0, Answer::yes}, {1, Answer::failed}}));
}

TEST_F(Batches, WhoWasRefusedWaitsForNobody) {
    make({{extend, with(a, {.replicas = 1, .timeout = 50ms})}});
    start();
    EXPECT_EQ(answer(number(0)), Lines{});
    EXPECT_TRUE(decided);
    EXPECT_EQ(answers, (std::map<std::size_t, Answer>{{0, Answer::no}}));
}

TEST_F(Batches, GiveTheirAnswersTimeAndAreNotRepeated) {
    make({{extend, with(a, {.replicas = 1, .timeout = 50ms})}, {extend, b}});
    EXPECT_EQ(batch->time_for_answers(1s), 350ms);
    EXPECT_EQ(batch->time_for_answers(100ms), 150ms);
    EXPECT_FALSE(batch->is_repeatable());
}

TEST_F(Batches, StartedAgainBeginAnew) {
    make({{extend, a}, {extend, b}});
    start();
    unwanted = {0};
    EXPECT_EQ(start(), (Lines{"EVALSHA <extend> 1 b tb 1500"}));
    answer(number(1));
    EXPECT_TRUE(decided);
    EXPECT_EQ(answers, (std::map<std::size_t, Answer>{{1, Answer::yes}}));
}

}  // namespace
