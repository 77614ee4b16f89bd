// How long a guard believes that it holds: never longer than the server keeps the key.
#include "faulty_store.hpp"

#include <hiredlock/lock.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <limits>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

using namespace std::chrono_literals;
using hiredlock::Errc;
using hiredlock::Lock;

namespace {

class Leases : public testing::Test {
protected:
    void TearDown() override { store.under_way = [] {}; }  // its test's variables are gone
    FaultyStore store;
    Lock<FaultyStore> lock{store, "k", 10s, std::defer_lock};
    std::error_code error;
};

TEST_F(Leases, EndsAtTheSendTimePlusTheTtlLessTheDriftAllowance) {
    store.acquires = {Fate::takes_time(300ms)};
    const auto sent = store.now();
    lock.lock();
    EXPECT_EQ(lock.expires_at(), sent + 10s - 100ms - 2ms);
    EXPECT_EQ(lock.remaining(), 10s - 100ms - 2ms - 300ms);
    EXPECT_NO_THROW(lock.check());
}

TEST_F(Leases, IsOverFromItsDeadlineOn) {
    lock.lock();
    store.pass(lock.remaining() - 1ns);
    EXPECT_TRUE(lock.owns_lock());
    store.pass(1ns);
    EXPECT_FALSE(lock.owns_lock());
    EXPECT_FALSE(lock);
    EXPECT_EQ(lock.remaining(), 0ns);
    try {
        lock.check();
        FAIL();
    } catch (const hiredlock::Error& e) {
        EXPECT_EQ(e.code(), Errc::lost);
    }
    EXPECT_NE(store.map.value("k"), "") << "the server keeps it a little longer";
}

TEST_F(Leases, NoGuardBelievesWhatTheServerHasForgotten) {
    for (const auto ttl : {5ms, 6ms, 100ms, 1000ms, 3'600'000ms}) {
        Lock any{store, "any", ttl};
        store.pass(any.remaining());
        EXPECT_FALSE(any);
        EXPECT_NE(store.map.value("any"), "") << ttl.count();
    }
}

TEST_F(Leases, AGrantThatArrivesAfterItsDeadlineIsNoGrant) {
    store.acquires = {Fate::takes_time(11s)};
    EXPECT_FALSE(lock.try_lock(error));
    EXPECT_EQ(error, Errc::timed_out);
    EXPECT_FALSE(lock.owns_lock());
    ASSERT_EQ(store.released.size(), 1U) << "and it is released";
    EXPECT_EQ(store.released.front().token, store.acquired.front().token);
}

TEST_F(Leases, AGrantThatArrivesTooLateIsReleasedThoughTheServerStillHasIt) {
    store.acquires = {{.takes = 9'950ms, .patient = true}};
    EXPECT_FALSE(lock.try_lock(error));
    EXPECT_EQ(store.map.value("k"), "");
}

TEST_F(Leases, AGrantThatComesTooLateAndCannotBeReleasedIsAbandoned) {
    store.acquires = {Fate::takes_time(9'950ms)};
    store.releases = {Fate::request_lost()};
    EXPECT_FALSE(lock.try_lock(error));
    ASSERT_EQ(store.abandoned.size(), 1U);
    EXPECT_EQ(store.abandoned.front().token, store.acquired.front().token);
}

TEST_F(Leases, AfterALateGrantWaitingGoesOn) {
    store.acquires = {Fate::takes_time(11s)};
    EXPECT_TRUE(lock.try_lock_for(20s));
    EXPECT_TRUE(lock.owns_lock());
}

TEST_F(Leases, AnExtendCountsFromItsOwnSendTime) {
    lock.lock();
    store.pass(5s);
    const auto sent = store.now();
    EXPECT_TRUE(lock.extend(20s));
    EXPECT_EQ(lock.expires_at(), sent + 20s - 200ms - 2ms);
    EXPECT_EQ(store.extended.back().ttl, 20s);
    EXPECT_EQ(store.extended.back().token, lock.token());
}

TEST_F(Leases, AnExtendMayMakeItShorter) {
    lock.lock();
    const auto sent = store.now();
    EXPECT_TRUE(lock.extend(1s));
    EXPECT_EQ(lock.expires_at(), sent + 1s - 10ms - 2ms);
}

TEST_F(Leases, TheShorterLeaseCountsFromBeforeAnExtendIsSent) {
    lock.lock();
    hiredlock::Clock::duration under_way{};
    store.under_way = [&] { under_way = lock.remaining(); };
    EXPECT_TRUE(lock.extend(1s));
    EXPECT_LE(under_way, 1s);
}

TEST_F(Leases, TheLongerLeaseCountsFromItsConfirmationOnly) {
    lock.lock();
    const auto before = lock.expires_at();
    store.under_way = [&] { EXPECT_EQ(lock.expires_at(), before); };
    EXPECT_TRUE(lock.extend(60s));
    EXPECT_GT(lock.expires_at(), before);
    store.extends = {Fate::reply_lost()};
    store.under_way = [] {};
    const auto confirmed = lock.expires_at();
    EXPECT_FALSE(lock.extend(3600s, error));
    EXPECT_EQ(error, Errc::timed_out);
    EXPECT_LE(lock.expires_at(), confirmed);
}

TEST_F(Leases, AnUnansweredShorterExtendCountsAsExecuted) {
    lock.lock();
    const auto sent = store.now();
    store.extends = {Fate::reply_lost()};
    EXPECT_FALSE(lock.extend(1s, error));
    EXPECT_EQ(error, Errc::timed_out);
    EXPECT_TRUE(lock.owns_lock());
    EXPECT_LE(lock.expires_at(), sent + 1s);
    store.pass(1s);
    EXPECT_FALSE(lock.owns_lock());
}

TEST_F(Leases, AnUnansweredShorterExtendThatLandsAfterALongerOneWasConfirmedIsStillCounted) {
    lock.lock();
    store.extends = {Fate::executed_later(100ms)};
    EXPECT_FALSE(lock.extend(1s, error));
    const auto sent = store.now();
    EXPECT_TRUE(lock.extend(60s));
    EXPECT_LE(lock.expires_at(), sent + 1s) << "no longer than the shorter one may leave it";
    store.pass(1200ms);
    EXPECT_EQ(store.map.value("k"), "") << "it has landed and run out";
    EXPECT_FALSE(lock.owns_lock());
}

TEST_F(Leases, ANewAcquisitionForgetsTheDoubtsOfTheLastOne) {
    lock.lock();
    store.extends = {Fate::reply_lost()};
    EXPECT_FALSE(lock.extend(1s, error));
    EXPECT_FALSE(lock.unlock());
    lock.lock();
    EXPECT_GT(lock.remaining(), 9s);
    EXPECT_TRUE(lock.extend(60s));
    EXPECT_GT(lock.remaining(), 59s);
}

TEST_F(Leases, ARefusedExtendMeansThatItIsLost) {
    lock.lock();
    store.map.put("k", "another");
    EXPECT_FALSE(lock.extend(20s));
    EXPECT_FALSE(lock.owns_lock());
    EXPECT_EQ(lock.remaining(), 0ns);
    EXPECT_EQ(store.map.value("k"), "another");
    EXPECT_FALSE(lock.extend(20s));
    EXPECT_EQ(store.extended.size(), 1U) << "nothing more is sent";
}

TEST_F(Leases, AfterTheDeadlineAnExtendSendsNothing) {
    lock.lock();
    store.pass(lock.remaining());
    ASSERT_NE(store.map.value("k"), "");
    EXPECT_FALSE(lock.extend(20s));
    EXPECT_TRUE(store.extended.empty());
    EXPECT_FALSE(lock.owns_lock());
}

TEST_F(Leases, AnExtendOfWhatWasNeverHeldSendsNothing) {
    EXPECT_FALSE(lock.extend(20s));
    lock.lock();
    EXPECT_FALSE(lock.unlock());
    EXPECT_FALSE(lock.extend(20s));
    EXPECT_TRUE(store.extended.empty());
}

TEST_F(Leases, AnExtendIsGivenUntilTheDeadlineAndNoLonger) {
    lock.lock();
    const auto end = lock.expires_at();
    EXPECT_TRUE(lock.extend(20s));
    EXPECT_LE(store.extended.back().until, end);
}

TEST_F(Leases, AYesThatComesAfterTheDeadlineDoesNotBringItBack) {
    lock.lock();
    store.pass(lock.remaining() - 10ms);
    store.extends = {Fate::takes_time(50ms)};
    EXPECT_FALSE(lock.extend(60s, error));
    EXPECT_FALSE(lock.owns_lock()) << "somebody may have seen that it was over";
    EXPECT_FALSE(lock.extend(60s));
    EXPECT_EQ(store.extended.size(), 1U);
}

TEST_F(Leases, AnExtendThatCannotWorkIsRefusedBeforeAnythingIsSent) {
    lock.lock();
    const auto end = lock.expires_at();
    const auto refused = [&](auto ttl) {
        EXPECT_FALSE(lock.extend(ttl, error));
        EXPECT_THROW(lock.extend(ttl), hiredlock::Error);
        return error == Errc::invalid_argument;
    };
    EXPECT_TRUE(refused(0ms));
    EXPECT_TRUE(refused(-1ms));
    EXPECT_TRUE(refused(4999us));
    EXPECT_TRUE(refused(std::chrono::nanoseconds::min()));
    EXPECT_TRUE(refused(std::chrono::hours::max()));
    EXPECT_TRUE(refused(std::chrono::milliseconds::max()));
    EXPECT_TRUE(refused(std::chrono::duration<float>{std::numeric_limits<float>::quiet_NaN()}));
    EXPECT_TRUE(store.extended.empty());
    EXPECT_EQ(lock.expires_at(), end);
}

TEST_F(Leases, AnExtendThatFailedForSureMayBeRepeated) {
    lock.lock();
    store.extends = {Fate::refused(Errc::unreachable)};
    EXPECT_FALSE(lock.extend(10s, error));
    EXPECT_EQ(error, Errc::unreachable);
    EXPECT_TRUE(lock.owns_lock());
    store.pass(5s);
    EXPECT_TRUE(lock.extend(10s));
    EXPECT_GT(lock.remaining(), 9s);
}

TEST_F(Leases, ManyExtendsNeverMakeItLongerThanTheServerKeepsIt) {
    // Every order of a few fates and ttls: whenever the guard believes that it holds, the key is there.
    const std::vector<Fate> fates = {{}, Fate::reply_lost(), Fate::request_lost(), Fate::executed_later(700ms), Fate::refused(Errc::loading)};
    const std::chrono::milliseconds ttls[] = {500ms, 3s, 20s};
    for (std::size_t n = 0; n < 15 * 15 * 15; ++n) {
        FaultyStore fresh;
        Lock guard{fresh, "k", 5s};
        std::size_t rest = n;
        for (int step = 0; step < 3; ++step, rest /= 15) {
            fresh.extends = {fates[rest % 5]};
            guard.extend(ttls[rest / 5 % 3], error);
            fresh.pass(150ms);
            ASSERT_TRUE(!guard || fresh.map.value("k") == guard.token()) << n;
        }
        for (int step = 0; guard && step < 300; ++step) {
            fresh.pass(100ms);
            ASSERT_TRUE(!guard || fresh.map.value("k") == guard.token()) << n;
        }
    }
}

/// Does something at the n-th look at the clock, as another thread might.
class MeddledStore : public FaultyStore {
public:
    MapStore::Time now() const noexcept {
        if (looks_left > 0 && --looks_left == 0) meddle();
        return FaultyStore::now();
    }
    mutable int looks_left = 0;
    std::function<void()> meddle = [] {};
};

TEST(LeasesSeenByOtherThreads, WhatIsLeftIsNeverMoreThanTheTtlWhileAnotherUnlocks) {
    for (int look = 1; look <= 4; ++look) {
        MeddledStore store;
        Lock lock{store, "k", 10s};
        store.meddle = [&] { lock.unlock(); };
        store.looks_left = look;
        const auto left = lock.remaining();
        EXPECT_GE(left, 0ns);
        EXPECT_LE(left, 10s);
    }
}

TEST(LeasesSeenByOtherThreads, WhatIsLeftIsNeverMoreThanTheTtlInARaceEither) {
    FaultyStore store;
    Lock lock{store, "k", 10s, std::defer_lock};
    std::atomic<bool> ended{false};
    hiredlock::Clock::duration most{}, least{};
    std::thread watching{[&] {
        while (!ended) {
            const auto left = lock.remaining();
            most = std::max(most, left);
            least = std::min(least, left);
        }
    }};
    for (int i = 0; i < 20'000; ++i) {
        lock.lock();
        lock.unlock();
        store.acquired.clear();
        store.released.clear();
    }
    ended = true;
    watching.join();
    EXPECT_LE(most, 10s);
    EXPECT_GE(least, 0s);
}

}  // namespace
