// A guard may be moved: one lock, one release, whatever way it went.
#include "faulty_store.hpp"

#include <hiredlock/lock.hpp>

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

using namespace std::chrono_literals;
using hiredlock::Errc;
using hiredlock::Lock;

namespace {

using Guard = Lock<FaultyStore>;

TEST(Moving, TakesTheLockAlong) {
    FaultyStore store;
    Guard first{store, "k", 10s};
    const std::string token{first.token()};
    const auto end = first.expires_at();
    {
        const Guard second{std::move(first)};
        EXPECT_TRUE(second);
        EXPECT_EQ(second.key(), "k");
        EXPECT_EQ(second.token(), token);
        EXPECT_EQ(second.expires_at(), end);
    }
    EXPECT_EQ(store.released.size(), 1U);
    EXPECT_EQ(store.map.value("k"), "");
}

TEST(Moving, LeavesAGuardThatOwnsNothingAndMayDoNothing) {
    FaultyStore store;
    Guard gone{store, "k", 10s};
    const Guard here{std::move(gone)};
    std::error_code error;
    EXPECT_FALSE(gone.owns_lock());
    EXPECT_FALSE(gone);
    EXPECT_EQ(gone.remaining(), 0ns);
    EXPECT_EQ(gone.expires_at(), hiredlock::Clock::time_point::min());
    EXPECT_TRUE(gone.token().empty());
    EXPECT_THROW(gone.check(), hiredlock::Error);
    EXPECT_TRUE(gone.unlock());
    EXPECT_TRUE(gone.release().token.empty());
    EXPECT_FALSE(gone.extend(10s, error));
    EXPECT_FALSE(gone.try_lock(error));
    EXPECT_EQ(error, std::errc::operation_not_permitted);
    EXPECT_FALSE(gone.try_lock_for(1s, error));
    EXPECT_EQ(error, std::errc::operation_not_permitted);
    EXPECT_FALSE(gone.try_lock_until(std::chrono::steady_clock::now() + 1s, error));
    EXPECT_EQ(error, std::errc::operation_not_permitted);
    EXPECT_FALSE(gone.try_lock_until(hiredlock::Clock::now(), error));
    EXPECT_EQ(error, std::errc::operation_not_permitted);
    EXPECT_THROW(gone.lock(), std::system_error);
    EXPECT_TRUE(here);
    EXPECT_EQ(store.acquired.size(), 1U);
}

TEST(Moving, AssigningOntoAGuardThatHoldsUnlocksItFirst) {
    FaultyStore store;
    Guard one{store, "one", 10s};
    Guard two{store, "two", 10s};
    one = std::move(two);
    EXPECT_EQ(store.map.value("one"), "");
    EXPECT_NE(store.map.value("two"), "");
    EXPECT_EQ(one.key(), "two");
    EXPECT_TRUE(one);
    EXPECT_FALSE(two);
}

TEST(Moving, AssigningOntoAGuardWhoseReleaseFailsReportsIt) {
    FaultyStore store;
    Guard one{store, "one", 10s};
    store.releases = {Fate::request_lost()};
    one = Guard{store, "two", 10s};
    EXPECT_EQ(store.map.reports.size(), 1U);
    EXPECT_EQ(store.abandoned.size(), 1U);
    EXPECT_TRUE(one);
}

TEST(Moving, ToItselfChangesNothing) {
    FaultyStore store;
    Guard lock{store, "k", 10s};
    Guard& same = lock;
    lock = std::move(same);
    EXPECT_TRUE(lock);
    EXPECT_EQ(lock.key(), "k");
    EXPECT_TRUE(store.released.empty());
}

TEST(Moving, AGuardThatWasMovedFromCanBeAssignedTo) {
    FaultyStore store;
    Guard lock{store, "k", 10s};
    Guard other{std::move(lock)};
    lock = std::move(other);
    EXPECT_TRUE(lock);
    EXPECT_TRUE(store.released.empty());
    EXPECT_FALSE(lock.unlock());
    EXPECT_TRUE(lock.try_lock());
}

TEST(Moving, AVectorThatGrowsReleasesEachKeyOnce) {
    FaultyStore store;
    {
        std::vector<Guard> locks;
        for (int i = 0; i < 100; ++i) locks.emplace_back(store, "k" + std::to_string(i), 10s);
        locks.erase(locks.begin(), locks.begin() + 50);
        EXPECT_EQ(store.released.size(), 50U);
        for (const Guard& lock : locks) EXPECT_TRUE(lock);
    }
    std::set<std::string> keys;
    for (const auto& asked : store.released) keys.insert(asked.key);
    EXPECT_EQ(store.released.size(), 100U);
    EXPECT_EQ(keys.size(), 100U);
}

TEST(Moving, SwapsWithoutASound) {
    FaultyStore store;
    Guard one{store, "one", 10s};
    Guard two{store, "two", 20s, std::defer_lock};
    std::swap(one, two);
    EXPECT_FALSE(one);
    EXPECT_EQ(one.key(), "two");
    EXPECT_TRUE(two);
    EXPECT_EQ(two.key(), "one");
    EXPECT_TRUE(store.released.empty());
}

TEST(Moving, TakesAnUnansweredReleaseAlong) {
    FaultyStore store;
    Guard lock{store, "k", 10s};
    store.releases = {Fate::reply_lost()};
    EXPECT_EQ(lock.unlock(), Errc::timed_out);
    Guard moved{std::move(lock)};
    EXPECT_FALSE(moved.unlock()) << "gone is success";
    EXPECT_TRUE(store.map.reports.empty());
}

TEST(Moving, TakesTheDoubtAboutAnExtendAlong) {
    FaultyStore store;
    Guard lock{store, "k", 10s};
    std::error_code error;
    store.extends = {Fate::reply_lost()};
    EXPECT_FALSE(lock.extend(1s, error));
    Guard moved{std::move(lock)};
    EXPECT_TRUE(moved.extend(60s));
    EXPECT_LE(moved.remaining(), 1s);
}

TEST(Moving, WorksInAnOptionalAndAPointer) {
    FaultyStore store;
    std::optional<Guard> held;
    held.emplace(store, "k", 10s);
    auto pointer = std::make_unique<Guard>(*std::move(held));
    held.reset();
    EXPECT_TRUE(*pointer);
    EXPECT_TRUE(store.released.empty());
    pointer.reset();
    EXPECT_EQ(store.released.size(), 1U);
}

}  // namespace
