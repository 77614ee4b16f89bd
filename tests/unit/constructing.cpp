// How a guard comes to be: its constructors, and what they refuse before anything is sent.
#include "faulty_store.hpp"

#include <hiredlock/lock.hpp>

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>

using namespace std::chrono_literals;
using hiredlock::Errc;
using hiredlock::Lock;

namespace {

using Plain = Lock<FaultyStore>;

static_assert(!std::is_copy_constructible_v<Plain> && !std::is_copy_assignable_v<Plain>);
static_assert(std::is_nothrow_move_constructible_v<Plain> && std::is_nothrow_move_assignable_v<Plain>);
static_assert(std::is_nothrow_destructible_v<Plain>);
static_assert(noexcept(std::declval<Plain&>().unlock()) && noexcept(std::declval<Plain&>().release()));
static_assert(!std::is_convertible_v<Plain, bool>);

std::error_code refusal(const std::function<void()>& act, std::string* words = nullptr) {
    try {
        act();
    } catch (const hiredlock::Error& e) {
        if (words != nullptr) *words = e.what();
        return e.code();
    }
    return {};
}

TEST(Constructing, WaitsUntilHeldByDefault) {
    FaultyStore store;
    store.map.put("k", "another", store.now() + 3s);
    const auto start = store.now();
    const Lock lock{store, "k", 10s};
    EXPECT_TRUE(lock.owns_lock());
    EXPECT_GE(store.now() - start, 3s);
    EXPECT_EQ(store.map.value("k"), lock.token());
}

TEST(Constructing, TryToLockAsksOnce) {
    FaultyStore store;
    store.map.put("k", "another");
    const Lock lock{store, "k", 10s, std::try_to_lock};
    EXPECT_FALSE(lock);
    EXPECT_EQ(store.acquired.size(), 1U);
    EXPECT_TRUE(store.slept_until.empty());
    EXPECT_EQ(store.map.value("k"), "another");
}

TEST(Constructing, DeferLockSendsNothing) {
    FaultyStore store;
    {
        const Lock lock{store, "k", 10s, std::defer_lock};
        EXPECT_FALSE(lock.owns_lock());
        EXPECT_EQ(lock.remaining(), 0ns);
        EXPECT_EQ(lock.key(), "k");
        EXPECT_TRUE(lock.token().empty());
    }
    EXPECT_TRUE(store.acquired.empty() && store.released.empty() && store.abandoned.empty() && store.map.reports.empty());
}

TEST(Constructing, ADurationOrATimePointIsALimitToWait) {
    FaultyStore store;
    store.map.put("k", "another");
    const auto start = store.now();
    const Lock shortly{store, "k", 10s, 2s};
    EXPECT_FALSE(shortly);
    EXPECT_GE(store.now() - start, 2s);
    const Lock until{store, "k", 10s, store.now() + 1s};
    EXPECT_FALSE(until);
    EXPECT_LT(store.now() - start, 3s + 100ms);
}

TEST(Constructing, AdoptingATicketConfirmsItAndSetsItsTtl) {
    FaultyStore store;
    Lock first{store, "k", 10s};
    const std::string token{first.token()};
    const hiredlock::Ticket ticket = first.release();
    EXPECT_EQ(ticket.key, "k");
    EXPECT_EQ(ticket.token, token);
    EXPECT_FALSE(first);
    EXPECT_TRUE(first.token().empty());
    EXPECT_EQ(store.map.value("k"), token) << "letting go leaves the key alone";

    Lock second{store, ticket, 60s, std::adopt_lock};
    EXPECT_TRUE(second);
    EXPECT_EQ(second.token(), token);
    EXPECT_EQ(store.extended.size(), 1U);
    EXPECT_GT(second.remaining(), 58s);
    EXPECT_FALSE(second.unlock());
    EXPECT_EQ(store.map.value("k"), "");
}

TEST(Constructing, AdoptingWhatHasExpiredOrPassedOnHoldsNothing) {
    FaultyStore store;
    const hiredlock::Ticket ticket = Lock{store, "k", 1s}.release();
    store.pass(2s);
    EXPECT_FALSE((Lock{store, ticket, 10s, std::adopt_lock}));
    store.map.put("k", "another");
    EXPECT_FALSE((Lock{store, ticket, 10s, std::adopt_lock}));
    EXPECT_FALSE((Lock{store, hiredlock::Ticket{.key = "k", .token = {}}, 10s, std::adopt_lock}));
    EXPECT_EQ(store.map.value("k"), "another");
}

TEST(Constructing, AnAdoptionThatFailsThrowsAndTheTicketIsStillGood) {
    FaultyStore store;
    const hiredlock::Ticket ticket = Lock{store, "k", 10s}.release();
    store.extends = {Fate::refused(Errc::unreachable)};
    EXPECT_EQ(refusal([&] { Lock{store, ticket, 10s, std::adopt_lock}; }), Errc::unreachable);
    store.extends = {Fate::reply_lost()};
    EXPECT_EQ(refusal([&] { Lock{store, ticket, 10s, std::adopt_lock}; }), Errc::timed_out);
    EXPECT_TRUE((Lock{store, ticket, 10s, std::adopt_lock}));
}

TEST(Constructing, AReleaseOfNothingGivesATicketWithoutAToken) {
    FaultyStore store;
    Lock lock{store, "k", 10s, std::defer_lock};
    EXPECT_TRUE(lock.release().token.empty());
    lock.lock();
    EXPECT_FALSE(lock.unlock());
    EXPECT_TRUE(lock.release().token.empty());
}

TEST(Constructing, RefusesAnEmptyKeyBeforeAnythingIsSent) {
    FaultyStore store;
    EXPECT_EQ(refusal([&] { Lock{store, "", 10s}; }), Errc::invalid_argument);
    EXPECT_EQ(refusal([&] { Lock{store, hiredlock::Ticket{}, 10s, std::adopt_lock}; }), Errc::invalid_argument);
    EXPECT_TRUE(store.acquired.empty() && store.extended.empty());
}

TEST(Constructing, AnyByteMayBeInAKey) {
    FaultyStore store;
    const std::string key{"a b\0%d\r\nSET x y", 15};
    const Lock lock{store, key, 10s};
    EXPECT_EQ(store.acquired.front().key, key);
    EXPECT_EQ(lock.key(), key);
}

TEST(Constructing, RefusesATtlThatCannotWorkBeforeAnythingIsSent) {
    FaultyStore store;
    std::string words;
    const auto refused = [&](auto ttl) { return refusal([&] { Lock{store, "my-key", ttl, std::try_to_lock}; }, &words); };
    EXPECT_EQ(refused(0s), Errc::invalid_argument);
    EXPECT_EQ(refused(-1s), Errc::invalid_argument);
    EXPECT_EQ(refused(4999us), Errc::invalid_argument);
    EXPECT_EQ(refused(std::chrono::nanoseconds::min()), Errc::invalid_argument);
    EXPECT_EQ(refused(std::chrono::hours::min()), Errc::invalid_argument);
    EXPECT_EQ(refused(std::chrono::hours::max()), Errc::invalid_argument);
    EXPECT_EQ(refused(std::chrono::milliseconds::max()), Errc::invalid_argument);
    EXPECT_EQ(refused(std::chrono::duration<double>{std::nan("")}), Errc::invalid_argument);
    EXPECT_EQ(refused(std::chrono::duration<float>{std::numeric_limits<float>::infinity()}), Errc::invalid_argument);
    EXPECT_NE(words.find("'my-key'"), std::string::npos) << words;
    EXPECT_NE(words.find("ttl"), std::string::npos) << words;
    EXPECT_TRUE(store.acquired.empty());
}

TEST(Constructing, RoundsTheTtlUpToWholeMilliseconds) {
    FaultyStore store;
    const auto sent = [&](auto ttl) {
        const Lock lock{store, "k", ttl};
        return store.acquired.back().ttl;
    };
    EXPECT_EQ(sent(5001us), 6ms);
    EXPECT_EQ(sent(5ms), 5ms);
    EXPECT_EQ(sent(500ms), 500ms);
    EXPECT_EQ(sent(1500ms), 1500ms);
    EXPECT_EQ(sent(std::chrono::duration<double>{0.25}), 250ms);
    EXPECT_EQ(sent(std::chrono::hours{24}), std::chrono::milliseconds{86'400'000});
}

TEST(Constructing, AnAcquisitionThatThrowsLeavesNothingBehind) {
    FaultyStore store;
    store.acquires = {Fate::refused(Errc::denied)};
    EXPECT_EQ(refusal([&] { Lock{store, "k", 10s}; }), Errc::denied);
    EXPECT_TRUE(store.released.empty() && store.map.reports.empty());
    EXPECT_EQ(store.map.value("k"), "");
}

}  // namespace
