// What unlock() says, what it leaves behind, and what a guard does at its end.
#include "faulty_store.hpp"

#include <hiredlock/lock.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <system_error>

using namespace std::chrono_literals;
using hiredlock::Errc;
using hiredlock::Lock;

namespace {

class Unlocking : public testing::Test {
protected:
    void TearDown() override { store.under_way = [] {}; }  // its test's variables are gone
    FaultyStore store;
    Lock<FaultyStore> lock{store, "k", 10s};
    const std::string token{lock.token()};
};

TEST_F(Unlocking, DeletesTheKeyByItsToken) {
    EXPECT_FALSE(lock.unlock());
    EXPECT_EQ(store.map.value("k"), "");
    ASSERT_EQ(store.released.size(), 1U);
    EXPECT_EQ(store.released.front().token, token);
    EXPECT_FALSE(lock.owns_lock());
    EXPECT_TRUE(lock.token().empty());
    EXPECT_EQ(lock.remaining(), 0ns);
}

TEST_F(Unlocking, OwnsNothingFromItsStart) {
    store.under_way = [&] {
        EXPECT_FALSE(lock.owns_lock());
        EXPECT_EQ(lock.remaining(), 0ns);
        EXPECT_THROW(lock.check(), hiredlock::Error);
    };
    EXPECT_FALSE(lock.unlock());
}

TEST_F(Unlocking, AfterTheOwnLeaseIsNotHeldAndAsksOnce) {
    store.pass(11s);
    EXPECT_EQ(lock.unlock(), Errc::not_held);
    EXPECT_EQ(store.released.size(), 1U);
    EXPECT_EQ(lock.unlock(), Errc::not_held);
    EXPECT_EQ(store.released.size(), 1U) << "there is nothing to release any more";
}

TEST_F(Unlocking, LeavesTheNextHolderAlone) {
    store.map.put("k", "another");
    EXPECT_EQ(lock.unlock(), Errc::not_held);
    EXPECT_EQ(store.map.value("k"), "another");
}

TEST_F(Unlocking, BetweenTheDeadlineAndTheExpiryStillDeletes) {
    store.pass(lock.remaining());
    EXPECT_FALSE(lock.owns_lock());
    EXPECT_FALSE(lock.unlock());
    EXPECT_EQ(store.map.value("k"), "");
}

TEST_F(Unlocking, WhatIsNotHeldIsNotHeld) {
    Lock never{store, "l", 10s, std::defer_lock};
    EXPECT_EQ(never.unlock(), Errc::not_held);
    EXPECT_FALSE(lock.unlock());
    EXPECT_EQ(lock.unlock(), Errc::not_held);
    EXPECT_EQ(store.released.size(), 1U);
}

TEST_F(Unlocking, AnUnansweredReleaseKeepsTheTokenAndFindingTheKeyGoneIsThenSuccess) {
    store.releases = {Fate::reply_lost()};
    EXPECT_EQ(lock.unlock(), Errc::timed_out);
    EXPECT_EQ(lock.token(), token);
    EXPECT_FALSE(lock.owns_lock());
    EXPECT_FALSE(lock.unlock());
    EXPECT_TRUE(lock.token().empty());
    EXPECT_EQ(lock.unlock(), Errc::not_held);
}

TEST_F(Unlocking, AReleaseThatNeverArrivedIsDoneByTheNext) {
    store.releases = {Fate::request_lost(Errc::unknown_outcome), Fate::request_lost()};
    EXPECT_EQ(lock.unlock(), Errc::unknown_outcome);
    EXPECT_EQ(lock.unlock(), Errc::timed_out);
    EXPECT_EQ(store.map.value("k"), token);
    EXPECT_FALSE(lock.unlock());
    EXPECT_EQ(store.map.value("k"), "");
}

TEST_F(Unlocking, AReleaseThatFailedKeepsTheToken) {
    store.releases = {Fate::refused(Errc::read_only)};
    EXPECT_EQ(lock.unlock(), Errc::read_only);
    EXPECT_EQ(lock.token(), token);
    EXPECT_FALSE(lock.owns_lock());
    EXPECT_FALSE(lock.unlock());
    EXPECT_EQ(store.map.value("k"), "");
}

TEST_F(Unlocking, AfterAReleaseThatFailedFindingTheKeyGoneIsSuccessToo) {
    // The contract makes no difference: anything but success and not_held leaves the outcome open.
    store.releases = {Fate::refused(Errc::unreachable)};
    EXPECT_EQ(lock.unlock(), Errc::unreachable);
    store.map.remove("k");
    EXPECT_FALSE(lock.unlock());
}

TEST_F(Unlocking, AnotherAcquisitionForgetsThatAReleaseWasUnanswered) {
    store.releases = {Fate::reply_lost()};
    EXPECT_EQ(lock.unlock(), Errc::timed_out);
    lock.lock();
    store.map.remove("k");
    EXPECT_EQ(lock.unlock(), Errc::not_held) << "of this lock no release was ever sent before";
}

TEST_F(Unlocking, DeferredOnlySends) {
    Lock deferred{store, "d", 10s, hiredlock::unlocking::Deferred{}};
    EXPECT_FALSE(deferred.unlock());
    EXPECT_EQ(store.sent_releases.size(), 1U);
    EXPECT_TRUE(store.released.empty());
    EXPECT_EQ(store.map.value("d"), "");
    Lock again{store, "d", 10s, hiredlock::unlocking::Deferred{}};
    store.pass(11s);
    EXPECT_FALSE(again.unlock()) << "nobody hears that it had expired";
}

TEST_F(Unlocking, DeferredSaysWhereItCouldNotBeSent) {
    Lock deferred{store, "d", 10s, hiredlock::unlocking::Deferred{}};
    store.releases = {Fate::refused(Errc::unreachable)};
    EXPECT_EQ(deferred.unlock(), Errc::unreachable);
    EXPECT_FALSE(deferred.token().empty());
    EXPECT_FALSE(deferred.unlock());
}

TEST_F(Unlocking, TheEndOfTheGuardReleases) {
    { const Lock scoped{store, "s", 10s}; }
    EXPECT_EQ(store.map.value("s"), "");
    EXPECT_EQ(store.released.size(), 1U);
    EXPECT_TRUE(store.map.reports.empty() && store.abandoned.empty());
}

TEST_F(Unlocking, TheEndOfTheGuardReportsAFailedReleaseAndAbandonsTheToken) {
    {
        const Lock scoped{store, "s", 10s};
        store.releases = {Fate::request_lost()};
    }
    ASSERT_EQ(store.map.reports.size(), 1U);
    EXPECT_EQ(store.map.reports.front().code(), Errc::timed_out);
    EXPECT_NE(std::string{store.map.reports.front().what()}.find("'s'"), std::string::npos);
    ASSERT_EQ(store.abandoned.size(), 1U);
    EXPECT_EQ(store.abandoned.front().key, "s");
    EXPECT_EQ(store.abandoned.front().token, store.acquired.back().token);
    EXPECT_EQ(store.map.value("s"), "");
}

TEST_F(Unlocking, TheEndOfTheGuardReportsALockThatHadBeenLost) {
    {
        const Lock scoped{store, "s", 10s};
        store.pass(11s);
    }
    ASSERT_EQ(store.map.reports.size(), 1U);
    EXPECT_EQ(store.map.reports.front().code(), Errc::not_held);
    EXPECT_TRUE(store.abandoned.empty());
}

TEST_F(Unlocking, TheEndOfTheGuardFinishesAReleaseThatWasUnanswered) {
    {
        Lock scoped{store, "s", 10s};
        store.releases = {Fate::reply_lost()};
        EXPECT_EQ(scoped.unlock(), Errc::timed_out);
    }
    EXPECT_TRUE(store.map.reports.empty()) << "the second try found the key gone, which is success";
    EXPECT_EQ(store.released.size(), 2U);
}

TEST_F(Unlocking, TheTokenOfAGuardThatExtendedIsAbandonedForAsLongAsItMayStay) {
    for (const bool moves : {false, true}) {
        {
            Lock scoped{store, "s", 10s};
            EXPECT_TRUE(scoped.extend(600s));
            if (moves) {
                Lock constructed{std::move(scoped)};
                scoped = std::move(constructed);
            }
            store.releases = {Fate::request_lost()};
        }
        ASSERT_EQ(store.abandoned.size(), 1U);
        EXPECT_GE(store.abandoned.front().ttl, 599s);
        store.abandoned.clear();
        store.map.remove("s");
    }
}

TEST_F(Unlocking, AnExceptionThatUnwindsMeetsAFailedReleaseWithoutTerminating) {
    EXPECT_THROW(
        {
            const Lock scoped(store, "s", 10s);
            store.releases = {Fate::request_lost()};
            throw std::runtime_error{"the work failed"};
        },
        std::runtime_error);
    EXPECT_EQ(store.map.reports.size(), 1U);
}

}  // namespace
