// Waiting for a lock on a majority: the first server tells when it goes there, and whoever waits asks from time to time as well.
#include "servers.hpp"
#include "waiters.hpp"

#include <support/proxy.hpp>

#include <gtest/gtest.h>

#include <future>
#include <thread>
#include <vector>

namespace {

using namespace std::chrono_literals;
using namespace guards;
using hiredlock::Lock;
using hiredlock::Redlock;
using hiredlock::renew::Watchdog;
using support::eventually;
using support::Monitor;
using support::Raw;

/// Asks by itself every two seconds on average: that also ends a wait, so what a notification does is counted over many.
constexpr hiredlock::retry::OnRelease when_told{.otherwise = {.min = 4s, .max = 4s, .factor = 1}};

TEST(WaitingForAQuorum, IsEndedByTheFirstServersNotification) {
    Servers servers{3};
    Redlock quorum{servers.endpoints()}, rival{servers.endpoints()};
    Lock held{rival, "k", 60s, std::defer_lock};
    Raw raw{servers[0]};
    constexpr int rounds = 9;
    int told = 0;
    for (int round = 0; round < rounds; ++round) {
        ASSERT_TRUE(servers.lock_everywhere(held));
        auto waiting = wait_for_lock(quorum, "k", when_told);
        ASSERT_TRUE(is_armed(raw));
        std::this_thread::sleep_for(5ms);
        const auto start = std::chrono::steady_clock::now();
        EXPECT_FALSE(held.unlock());
        EXPECT_TRUE(waiting.get());
        told += since(start) < 400ms ? 1 : 0;
    }
    EXPECT_GE(told, 6) << "the other servers may be so late that the lock is not free yet when the first one tells";
    Raw other{servers[1]};
    EXPECT_EQ(subscribers(raw).size(), 1U);
    EXPECT_TRUE(subscribers(other).empty());
}

TEST(WaitingForAQuorum, IsDoneByOneThreadOfAProcessForAll) {
    Servers servers{3};
    Redlock quorum{servers.endpoints()}, rival{servers.endpoints()};
    Lock held{rival, "k", 60s, std::defer_lock};
    ASSERT_TRUE(servers.lock_everywhere(held));
    std::vector<std::future<bool>> waiting;
    for (int i = 0; i < 8; ++i) waiting.push_back(wait_for_lock(quorum, "k"));
    Raw raw{servers[0]};
    ASSERT_TRUE(is_armed(raw));
    Monitor monitor{servers[0]};
    EXPECT_FALSE(held.unlock());
    EXPECT_TRUE(all_got_it(waiting));
    EXPECT_LE(monitor.count(acquires("k")), 40U) << "each of them asks only when it is its turn";
}

TEST(WaitingForAQuorum, KeepsItsConnectionsForTenSecondsAndNotForEver) {
    Servers servers{3};
    Redlock quorum{servers.endpoints()}, rival{servers.endpoints()};
    Lock held{rival, "k", 60s, std::defer_lock};
    ASSERT_TRUE(servers.lock_everywhere(held));
    auto waiting = wait_for_lock(quorum, "k", when_told);
    Raw raw{servers[0]};
    ASSERT_TRUE(is_armed(raw));
    EXPECT_FALSE(held.unlock());
    EXPECT_TRUE(waiting.get());
    const auto start = std::chrono::steady_clock::now();
    EXPECT_EQ(subscribers(raw).size() + trackers(raw).size(), 2U);
    EXPECT_TRUE(eventually([&] { return subscribers(raw).empty() && trackers(raw).empty(); }, 25s));
    EXPECT_GE(since(start), 8s);
}

TEST(WaitingForAQuorum, IsNotDisturbedBeyondMeasureByRenewals) {
    Servers servers{3};
    Redlock quorum{servers.endpoints()}, rival{servers.endpoints()};
    Lock held{rival, "k", 60s, std::defer_lock, Watchdog{.interval = 50ms}};
    ASSERT_TRUE(servers.lock_everywhere(held));
    Monitor monitor{servers[0]};
    const auto start = std::chrono::steady_clock::now();
    auto waiting = wait_for_lock(quorum, "k", when_told);
    EXPECT_TRUE(eventually([&] { return monitor.count(acquires("k")) >= 20; }, 15s)) << "or it was not told of any";
    EXPECT_LE(monitor.count(acquires("k")), 2 * (since(start) / 50ms) + 2U) << "once for each renewal, and not in a circle";
    EXPECT_FALSE(held.unlock());
    EXPECT_TRUE(waiting.get());
}

TEST(WaitingForAQuorum, GoesOnWhereTheFirstServerTellsNothing) {
    enum class First { is_killed, is_paused, is_foreign, denies };
    for (const First first : {First::is_killed, First::is_paused, First::is_foreign, First::denies}) {
        SCOPED_TRACE(static_cast<int>(first));
        Servers servers{3};
        if (first == First::denies) Raw{servers[0]}({"ACL", "SETUSER", "default", "-client|tracking", "-subscribe"});
        Redlock quorum{servers.endpoints()}, rival{servers.endpoints()};
        Lock held{rival, "k", 60s, std::defer_lock};
        ASSERT_TRUE(servers.lock_everywhere(held));
        if (first == First::is_killed) servers[0].kill();
        if (first == First::is_paused) servers[0].pause();
        if (first == First::is_foreign) Raw{servers[0]}.set("k", "foreign", 60s);
        auto waiting = std::async(std::launch::async, [&] { return Lock{quorum, "k", 60s, 20s}.owns_lock(); });
        EXPECT_EQ(waiting.wait_for(500ms), std::future_status::timeout);
        const auto start = std::chrono::steady_clock::now();
        held.unlock();
        EXPECT_TRUE(waiting.get());
        EXPECT_LT(since(start), 3s);
        if (first == First::is_paused) servers[0].resume();
    }
}

/// The servers, number `far` of them over a proxy.
std::vector<hiredlock::Endpoint> with_far(Servers& servers, std::size_t far, const support::Proxy& proxy) {
    auto endpoints = servers.endpoints();
    endpoints[far] = hiredlock::Endpoint::parse(proxy.uri());
    return endpoints;
}

TEST(WaitingForAQuorum, IsEndedByTheNotificationOfAFirstServerThatIsFar) {
    Servers servers{3};
    support::Proxy proxy{servers[0]};
    for (const auto direction : {support::Direction::to_server, support::Direction::to_client}) proxy.delay(direction, 15ms);
    Redlock quorum{with_far(servers, 0, proxy)}, rival{servers.endpoints()};
    Lock held{rival, "k", 60s, std::defer_lock};
    ASSERT_TRUE(servers.lock_everywhere(held));
    const hiredlock::retry::OnRelease seldom{.otherwise = {.min = 200ms, .max = 200ms, .factor = 1}};
    auto waiting = wait_for_lock(quorum, "k", seldom);
    Raw raw{servers[0]};
    EXPECT_TRUE(is_armed(raw)) << "it takes more round trips than one pause has time for";
    EXPECT_FALSE(held.unlock());
    EXPECT_TRUE(waiting.get());
}

TEST(WaitingForAQuorum, GivesAFarServerTheTimeThatItTakes) {
    Servers servers{3};
    support::Proxy proxy{servers[2]};
    for (const auto direction : {support::Direction::to_server, support::Direction::to_client}) proxy.delay(direction, 80ms);
    Redlock quorum{with_far(servers, 2, proxy)};
    for (auto& server : servers) Raw{server}.set("k", "foreign", 60s);
    auto waiting = std::async(std::launch::async, [&] { return Lock{quorum, "k", 60s, 20s}.owns_lock(); });
    EXPECT_EQ(waiting.wait_for(700ms), std::future_status::timeout);
    Raw{servers[0]}.del("k");
    Raw{servers[2]}.del("k");
    EXPECT_EQ(waiting.wait_for(10s), std::future_status::ready);
    EXPECT_TRUE(waiting.get());
}

TEST(WaitingForAQuorum, ForSeveralKeysAndLimitsAtOnceIsFalseForEach) {
    Servers servers{3};
    support::Proxy proxy{servers[0]};
    proxy.delay(support::Direction::to_client, 30ms);
    Redlock quorum{with_far(servers, 0, proxy)};
    const auto limits = {25ms, 30ms, 150ms, 400ms, 700ms};
    std::vector<std::future<bool>> waiting;
    int key = 0;
    for (const auto limit : limits) {
        const std::string name = std::to_string(key++);
        for (auto& server : servers) Raw{server}.set(name, "foreign", 60s);
        waiting.push_back(std::async(std::launch::async, [&quorum, name, limit] {
            bool got = false;
            for (const auto until = hiredlock::Clock::now() + 2s; hiredlock::Clock::now() < until;) got = Lock{quorum, name, 60s, limit}.owns_lock() || got;
            return got;
        }));
    }
    for (auto& one : waiting) EXPECT_NO_THROW(EXPECT_FALSE(one.get()));
}

}  // namespace
