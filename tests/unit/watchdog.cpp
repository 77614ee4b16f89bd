// The schedule of renewals and losses, on times that a test makes up.
#include <hiredlock/renew.hpp>
#include <hiredlock/token.hpp>
#include <hiredlock/watchdog.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

using namespace std::chrono_literals;
using hiredlock::Clock;
using namespace hiredlock::detail;
using hiredlock::renew::Watchdog;
using Time = Clock::time_point;

namespace {

constexpr std::uint64_t randoms[] = {0, 1, 511, 512, 1023, 1024, std::numeric_limits<std::uint64_t>::max()};

TEST(Pace, TheFirstRenewalComesInTheSecondHalfOfTheInterval) {
    const Time granted{1h};
    for (const auto interval : {1ms, 33ms, 3333ms, 3'600'000ms})
        for (const auto random : randoms) {
            EXPECT_GE(pace::first(granted, interval, random), granted + Clock::duration{interval} / 2);
            EXPECT_LE(pace::first(granted, interval, random), granted + interval);
        }
}

TEST(Pace, AfterASuccessTheNextComesAnIntervalAfterItsSending) {
    const Time sent{1h};
    for (const auto interval : {1ms, 33ms, 3333ms, 3'600'000ms})
        for (const auto random : randoms) {
            EXPECT_LE(pace::after_success(sent, interval, random), sent + interval) << "small delays must not add up";
            EXPECT_GE(pace::after_success(sent, interval, random), sent + Clock::duration{interval} * 7 / 8);
        }
}

TEST(Pace, RenewalsOfLocksThatWereGrantedTogetherSpread) {
    Time least = Time::max(), most = Time::min();
    for (std::uint64_t random = 0; random < 1024; ++random) {
        const auto due = pace::first(Time{1h}, 3s, random);
        least = std::min(least, due);
        most = std::max(most, due);
    }
    EXPECT_GT(most - least, 1400ms);
}

TEST(Pace, AfterAFailureTheNextComesSoonerAndNotAtOnce) {
    const Time now{1h};
    EXPECT_EQ(pace::after_failure(now, 800ms), now + 100ms);
    EXPECT_EQ(pace::after_failure(now, 1us), now + 1ms);
    EXPECT_EQ(pace::after_failure(now, 24h), now + 1s);
}

TEST(Pace, StopsAtTheEndOfTime) {
    for (const auto random : randoms) {
        EXPECT_LE(pace::first(Time::max() - 1s, 10h, random), Time::max());
        EXPECT_GE(pace::first(Time::max() - 1s, 10h, random), Time::max() - 1s);
        EXPECT_GE(pace::after_success(Time::max(), longest_ttl, random), Time::max() - longest_ttl);
    }
    EXPECT_EQ(pace::after_failure(Time::max(), 1s), Time::max());
}

class Schedules : public testing::Test {
protected:
    Schedule::Entry watch(Clock::duration due_in, std::chrono::milliseconds ttl = 10s) {
        auto entry = std::make_shared<Renewal>();
        entry->lease.granted(now, ttl);
        entry->due = now + due_in;
        schedule.add(entry);
        return entry;
    }

    static std::uint64_t jitter_of(std::uint64_t count) { return hiredlock::detail::jitter("a seed", count); }

    Schedule schedule;
    Time now{1h};
};

TEST_F(Schedules, HaveNothingToDoWithoutLocks) {
    EXPECT_EQ(schedule.next(), Time::max());
    EXPECT_TRUE(schedule.take_losses(Time::max()).empty());
    EXPECT_TRUE(schedule.due_renewals(Time::max(), 10).empty());
}

TEST_F(Schedules, NameTheEarliest) {
    watch(3s);
    watch(1s);
    watch(2s);
    EXPECT_EQ(schedule.next(), now + 1s);
    EXPECT_TRUE(schedule.due_renewals(now + 999ms, 10).empty());
    EXPECT_EQ(schedule.due_renewals(now + 1s, 10).size(), 1U);
    EXPECT_EQ(schedule.due_renewals(now + 3s, 10).size(), 3U);
    EXPECT_EQ(schedule.due_renewals(now + 3s, 2).size(), 2U);
}

TEST_F(Schedules, TakeOutALockAtTheEndOfItsLeaseOnce) {
    const auto entry = watch(1s);
    const auto end = entry->lease.end();
    EXPECT_TRUE(schedule.take_losses(end - 1ns).empty());
    EXPECT_TRUE(schedule.due_renewals(end, 10).empty()) << "what is lost is not renewed";
    EXPECT_EQ(schedule.take_losses(end), std::vector{entry});
    EXPECT_TRUE(schedule.take_losses(end + 1h).empty());
    EXPECT_EQ(schedule.next(), Time::max());
}

TEST_F(Schedules, ALossIsSeenThoughItsRenewalIsStillDueLater) {
    const auto entry = watch(1h);
    EXPECT_EQ(schedule.next(), entry->lease.end()) << "the lease ends before";
    entry->lease.clear();
    schedule.changed(entry);
    EXPECT_EQ(schedule.take_losses(now).size(), 1U);
}

TEST_F(Schedules, OneThatIsOnItsWayOrPausedIsLookedAtAgainAtItsLoss) {
    const auto entry = watch(1s);
    for (bool Renewal::*flag : {&Renewal::in_round, &Renewal::paused}) {
        (*entry).*flag = true;
        schedule.changed(entry);
        EXPECT_EQ(schedule.next(), entry->lease.end());
        EXPECT_TRUE(schedule.due_renewals(now + 5s, 10).empty());
        (*entry).*flag = false;
        schedule.changed(entry);
        EXPECT_EQ(schedule.next(), now + 1s);
    }
}

TEST_F(Schedules, NothingIsRenewedFromTheLastRenewalOn) {
    const auto entry = watch(2s);
    entry->last_renewal = now + 2s;
    schedule.changed(entry);
    EXPECT_EQ(schedule.next(), entry->lease.end());
    EXPECT_TRUE(schedule.due_renewals(now + 5s, 10).empty());
    entry->last_renewal = now + 2s + 1ns;
    schedule.changed(entry);
    EXPECT_EQ(schedule.next(), now + 2s);
}

TEST_F(Schedules, WhatIsRemovedIsGone) {
    const auto entry = watch(1s);
    const auto other = watch(1s);
    schedule.remove(entry);
    schedule.remove(entry);
    EXPECT_EQ(schedule.due_renewals(now + 1s, 10), std::vector{other});
    schedule.remove(other);
    EXPECT_EQ(schedule.next(), Time::max());
}

TEST_F(Schedules, AChangeMovesALockHoweverOftenItComes) {
    const auto entry = watch(1s);
    for (int i = 1; i < 1000; ++i) {
        entry->due = now + std::chrono::milliseconds{(i * 7919) % 5000};
        schedule.changed(entry);
        ASSERT_EQ(schedule.next(), entry->due);
    }
    schedule.remove(entry);
    EXPECT_EQ(schedule.next(), Time::max());
}

TEST_F(Schedules, ALockThatIsAddedTwiceIsThereOnce) {
    // A lost lock that was put back while others were told of theirs, and then acquired anew.
    const auto entry = watch(1s);
    entry->due = now + 2s;
    schedule.add(entry);
    EXPECT_EQ(schedule.next(), now + 2s);
    schedule.remove(entry);
    EXPECT_EQ(schedule.next(), Time::max());
}

TEST_F(Schedules, TenThousandLocksAreEachRenewedInTime) {
    std::vector<Schedule::Entry> entries;
    for (std::uint64_t i = 0; i < 10'000; ++i) entries.push_back(watch(pace::first(now, 3333ms, jitter_of(i)) - now));
    const auto end = now + 60s;
    while (schedule.next() < end) {
        now = std::max(now, schedule.next());
        ASSERT_TRUE(schedule.take_losses(now).empty());
        for (const auto& entry : schedule.due_renewals(now, 512)) {
            entry->lease.granted(now, 10s);
            entry->due = pace::after_success(now, 3333ms, jitter_of(static_cast<std::uint64_t>(now.time_since_epoch().count())));
            schedule.changed(entry);
        }
        now += 2ms;  // what a round takes
    }
    for (const auto& entry : entries) EXPECT_TRUE(entry->lease.holds(now));
}

TEST(WatchdogPolicy, RenewsThreeTimesInATtlByDefault) {
    EXPECT_EQ(Watchdog{}.interval_for(9s), 3s);
    EXPECT_EQ(Watchdog{.interval = 1s}.interval_for(9s), 1s);
    EXPECT_EQ(Watchdog{}.problem(5ms), nullptr);
    EXPECT_EQ(Watchdog{}.problem(longest_ttl), nullptr);
}

TEST(WatchdogPolicy, SaysWhatCannotWork) {
    EXPECT_EQ((Watchdog{.interval = 1s, .max_hold = 1h}.problem(10s)), nullptr);
    EXPECT_NE((Watchdog{.interval = 0ms}.problem(10s)), nullptr);
    EXPECT_NE((Watchdog{.interval = -1ms}.problem(10s)), nullptr);
    EXPECT_NE((Watchdog{.interval = std::chrono::milliseconds::min()}.problem(10s)), nullptr);
    EXPECT_EQ((Watchdog{.interval = 9897ms}.problem(10s)), nullptr);
    EXPECT_NE((Watchdog{.interval = 9898ms}.problem(10s)), nullptr) << "the lease is over by then";
    EXPECT_NE((Watchdog{.interval = std::chrono::milliseconds::max()}.problem(10s)), nullptr);
    EXPECT_NE((Watchdog{.max_hold = 0ms}.problem(10s)), nullptr);
    EXPECT_NE((Watchdog{.max_hold = -1ms}.problem(10s)), nullptr);
}

}  // namespace
