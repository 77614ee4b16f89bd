// Waiting where the Store can tell of a release: the first in line asks when it was told, when the other's ttl ends, and from time to time.
#include "faulty_store.hpp"

#include <hiredlock/lock.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

using namespace std::chrono_literals;
using hiredlock::Lock;
using hiredlock::retry::OnRelease;

namespace {

/// A FaultyStore with a line of one, whose notifications a test gives.
class NotifiedStore : public FaultyStore {
public:
    struct Outage {
        MapStore::Time since = MapStore::Time::max();
        hiredlock::Outcome last{};
    };
    struct Place {
        NotifiedStore& store;
        bool wait_for_turn(const hiredlock::Patience& patience) {
            store.turns.push_back(patience.until);
            return store.has_turn;
        }
        void wait(const hiredlock::Patience& patience) {
            store.waits.push_back(patience.until);
            const auto until = std::min(patience.until, store.told_at.value_or(patience.until));
            if (until > store.now()) store.pass(until - store.now());
        }
        Outage outage() const { return store.outage; }
        void set_outage(Outage outage) { store.outage = outage; }
    };
    struct Line {
        NotifiedStore& store;
        bool is_waited_for(const std::string&) const { return store.others_wait; }
        Place join(const std::string&) { return {store}; }
    };

    Line line() { return {*this}; }
    hiredlock::Outcome acquire(const hiredlock::Claim& claim, const hiredlock::Patience& patience) {
        auto outcome = FaultyStore::acquire(claim, patience);
        outcome.divided = is_divided && outcome.answer == hiredlock::Answer::no;
        return outcome;
    }
    hiredlock::Outcome acquire_and_watch(const hiredlock::Claim& claim, const hiredlock::Patience& patience) {
        ++watched;
        auto outcome = acquire(claim, patience);
        if (outcome.answer == hiredlock::Answer::no) outcome.left = left;
        return outcome;
    }

    std::optional<std::chrono::milliseconds> left = std::chrono::milliseconds{-1};
    std::optional<MapStore::Time> told_at;
    bool others_wait = false, has_turn = true;
    bool is_divided = false;  // others have some of its votes at the same time
    int watched = 0;
    Outage outage;
    std::vector<MapStore::Time> turns, waits;
};
static_assert(hiredlock::NotifyingStore<NotifiedStore>);
static_assert(!hiredlock::NotifyingStore<FaultyStore>);

/// How long each sleep was that no notification could end.
std::vector<hiredlock::Clock::duration> pauses_of(const NotifiedStore& store) {
    std::vector<hiredlock::Clock::duration> pauses;
    for (std::size_t i = 0; i < store.slept_until.size(); ++i) pauses.push_back(store.slept_until[i] - store.slept_at[i]);
    return pauses;
}

class InLine : public testing::Test {
protected:
    void TearDown() override { store.under_way = [] {}; }  // its test's variables are gone
    void hold_by_another() { store.map.put("k", "another"); }

    NotifiedStore store;
    Lock<NotifiedStore> lock{store, "k", 10s, std::defer_lock};
    const MapStore::Time start = store.now();
};

TEST_F(InLine, NobodyStandsForALockThatIsFree) {
    lock.lock();
    EXPECT_EQ(store.acquired.size(), 1U);
    EXPECT_EQ(store.watched, 0);
    EXPECT_TRUE(store.turns.empty());
}

TEST_F(InLine, ATryStandsInNone) {
    hold_by_another();
    store.others_wait = true;
    EXPECT_FALSE(lock.try_lock());
    EXPECT_FALSE(lock.try_lock_for(0s));
    EXPECT_TRUE(store.turns.empty());
    EXPECT_EQ(store.acquired.size(), 2U);
}

TEST_F(InLine, WhoComesLaterLetsTheOthersGoFirst) {
    store.others_wait = true;
    lock.lock();
    EXPECT_EQ(store.turns.size(), 1U);
    EXPECT_EQ(store.acquired.size(), 1U);
    EXPECT_EQ(store.watched, 1);
}

TEST_F(InLine, ANotificationIsWhatEndsTheWaiting) {
    store.map.put("k", "another", start + 700ms);
    store.told_at = start + 700ms;
    lock.lock();
    EXPECT_LE(store.now() - start, 710ms);
    EXPECT_LE(store.acquired.size(), 3U) << "it did not ask in between";
}

TEST_F(InLine, TheEndOfTheOthersTtlIsNotMissed) {
    store.map.put("k", "another", start + 300ms);
    store.left = 300ms;
    lock.lock();
    EXPECT_LE(store.now() - start, 310ms);
    EXPECT_LE(store.acquired.size(), 4U);
}

TEST_F(InLine, ALostNotificationCostsAPollOnly) {
    store.map.put("k", "another", start + 2500ms);
    lock.lock();
    EXPECT_LE(store.now() - start, 3100ms);
    EXPECT_LE(store.acquired.size(), 5U);
}

TEST_F(InLine, AKeyThatWentBetweenTheQuestionAndTheLookIsAskedForAtOnce) {
    hold_by_another();
    store.left = -2ms;
    store.under_way = [&] {
        if (store.acquired.size() == 3) store.map.remove("k");
    };
    lock.lock();
    EXPECT_LE(store.now() - start, 10ms);
}

TEST_F(InLine, AnotherWhoHoldsItForAgesIsAskedAboutOncePerPoll) {
    hold_by_another();
    for (const auto ages : {std::chrono::milliseconds{std::chrono::hours{24 * 365 * 300}}, std::chrono::milliseconds{9'000'000'000'000'000}, std::chrono::milliseconds::max()}) {
        store.left = ages;
        store.acquired.clear();
        EXPECT_FALSE(lock.try_lock_for(10s));
        EXPECT_LE(store.acquired.size(), 15U) << ages.count();
    }
}

TEST_F(InLine, WithoutNotificationsItAsksAsTheOtherPolicySays) {
    hold_by_another();
    store.left.reset();
    EXPECT_FALSE(lock.try_lock_for(10s));
    EXPECT_GT(store.acquired.size(), 50U);
}

TEST_F(InLine, WhoeverWonSomeOfTheVotesPausesForARandomTimeAfterBeingTold) {
    hold_by_another();
    store.is_divided = true;
    store.told_at = start;  // told at once, again and again: of the return of its own votes
    EXPECT_FALSE(lock.try_lock_for(10s));
    const auto pauses = pauses_of(store);
    ASSERT_GE(pauses.size(), 100U);
    EXPECT_LE(*std::max_element(pauses.begin(), pauses.end()), 128ms);
    EXPECT_LE(*std::max_element(pauses.begin(), pauses.begin() + 3), 16ms) << "the first ones are short";
    EXPECT_GE((std::set<hiredlock::Clock::duration>{pauses.begin(), pauses.end()}.size()), 50U);
}

TEST_F(InLine, AfterAPlainRefusalTheFirstPauseIsShortAgain) {
    hold_by_another();
    store.told_at = start;
    store.under_way = [&] { store.is_divided = store.acquired.size() % 5 != 0; };
    EXPECT_FALSE(lock.try_lock_for(10s));
    EXPECT_GE(store.acquired.size(), 100U);
    for (const auto pause : pauses_of(store)) EXPECT_LE(pause, 32ms) << "as after the fourth in a row";
}

TEST_F(InLine, WhoeverWaitsForAHolderWhomSomeServersForgotIsToldAndPausesForAShortTime) {
    hold_by_another();
    store.is_divided = true;
    EXPECT_FALSE(lock.try_lock_for(60s));  // told of nothing: it looks each second
    EXPECT_LE(store.acquired.size(), 70U);
    for (const auto pause : pauses_of(store)) EXPECT_LE(pause, 4ms);
}

TEST_F(InLine, AFixedIntervalIsSpreadWhereTheVotesAreDivided) {
    hold_by_another();
    Lock fixed{store, "k", 10s, std::defer_lock, hiredlock::retry::Fixed{.interval = 100ms}};
    for (const bool is_divided : {false, true}) {
        store.is_divided = is_divided;
        store.slept_at.clear();
        store.slept_until.clear();
        EXPECT_FALSE(fixed.try_lock_for(10s));
        auto pauses = pauses_of(store);
        ASSERT_GE(pauses.size(), 40U);
        pauses.pop_back();  // the last ends at the limit
        EXPECT_GE(*std::min_element(pauses.begin(), pauses.end()), 100ms);
        EXPECT_LE(*std::max_element(pauses.begin(), pauses.end()), is_divided ? 200ms : 100ms);
        EXPECT_EQ((std::set<hiredlock::Clock::duration>{pauses.begin(), pauses.end()}.size() >= 20), is_divided);
    }
}

TEST_F(InLine, BackoffIsSpreadAlready) {
    hold_by_another();
    store.is_divided = true;
    Lock backing{store, "k", 10s, std::defer_lock, hiredlock::retry::Backoff{.max = 8ms}};
    EXPECT_FALSE(backing.try_lock_for(10s));
    for (const auto pause : pauses_of(store)) EXPECT_LE(pause, 8ms);
}

TEST_F(InLine, TheWholeLimitIsUsed) {
    hold_by_another();
    EXPECT_FALSE(lock.try_lock_for(2500ms));
    EXPECT_GE(store.now() - start, 2490ms);
    EXPECT_LE(store.now() - start, 2510ms);
}

TEST_F(InLine, WhoseTurnDoesNotComeGetsNothing) {
    store.others_wait = true;
    store.has_turn = false;
    EXPECT_FALSE(lock.try_lock_for(2s));
    ASSERT_EQ(store.turns.size(), 1U);
    EXPECT_EQ(store.turns.front(), start + 2s);
    EXPECT_TRUE(store.acquired.empty());
}

TEST_F(InLine, WhoseTurnDoesNotComeStillKnowsOfAnUnansweredRelease) {
    lock.lock();
    store.releases = {Fate::request_lost()};
    EXPECT_TRUE(lock.unlock());
    store.others_wait = true;
    store.has_turn = false;
    EXPECT_FALSE(lock.try_lock_for(2s));
    store.others_wait = false;
    EXPECT_TRUE(lock.try_lock()) << "the token in the key is its own";
}

TEST_F(InLine, AnotherPolicyStandsInNone) {
    hold_by_another();
    Lock fixed{store, "k", 10s, std::defer_lock, hiredlock::retry::Fixed{}};
    EXPECT_FALSE(fixed.try_lock_for(1s));
    EXPECT_TRUE(store.turns.empty());
    EXPECT_EQ(store.watched, 0);
}

TEST(InLinePolicy, SaysWhatCannotWork) {
    EXPECT_EQ(OnRelease{}.problem(), nullptr);
    EXPECT_NE((OnRelease{.poll = 0ms}.problem()), nullptr);
    EXPECT_NE((OnRelease{.poll = std::chrono::milliseconds::max()}.problem()), nullptr);
    EXPECT_NE((OnRelease{.otherwise = {.min = 0us}}.problem()), nullptr);
    EXPECT_NE((OnRelease{.outage = -1ms}.problem()), nullptr);
}

}  // namespace
