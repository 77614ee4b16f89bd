// Locks of a quorum that are kept alive, while some of its servers fail.
#include <live/servers.hpp>

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace {

using namespace std::chrono_literals;
using namespace guards;
using hiredlock::Clock;
using hiredlock::Error;
using hiredlock::Lock;
using hiredlock::Redlock;
using hiredlock::renew::Watchdog;
using support::eventually;
using support::Monitor;
using support::Raw;

/// Whether it holds on for `time`.
template <class Held>
bool holds_for(const Held& lock, std::chrono::milliseconds time) {
    return !eventually([&] { return !lock.owns_lock(); }, time);
}

TEST(KeptByAQuorum, IsNotDelayedByAServerThatIsStopped) {
    Servers servers{3};
    Redlock quorum{servers.endpoints()};
    Lock lock{quorum, "k", 500ms, Watchdog{.interval = 100ms}};
    ASSERT_TRUE(servers.holds_everywhere("k"));
    servers[1].pause();
    EXPECT_TRUE(holds_for(lock, 2500ms));
    servers[1].resume();
    EXPECT_FALSE(lock.unlock());
    EXPECT_TRUE(servers.is_gone("k"));
}

TEST(KeptByAQuorum, IsNotDelayedByCleaningUpAfterOthersOnAServerThatIsStopped) {
    Servers servers{3};
    Redlock quorum{servers.endpoints()};
    Lock lock{quorum, "k", 500ms, Watchdog{.interval = 100ms}};
    ASSERT_TRUE(servers.holds_everywhere("k"));
    servers[1].pause();
    std::atomic<bool> over{false};
    std::thread abandoning{[&] {
        for (int i = 0; !over; ++i) {
            const std::string key = "other" + std::to_string(i), token = hiredlock::new_token();
            quorum.abandon({.key = key, .token = token, .ttl = 10s});
            std::this_thread::sleep_for(50ms);
        }
    }};
    EXPECT_TRUE(holds_for(lock, 3s));
    over = true;
    abandoning.join();
    servers[1].resume();
    EXPECT_FALSE(lock.unlock());
}

TEST(KeptByAQuorum, OutlivesEachServersRestartOneAfterTheOtherOnlyAsLongAsAMajorityHasIt) {
    Servers servers{5};
    Redlock quorum{servers.endpoints()};
    std::atomic<int> lost{0};
    Lock lock{quorum, "k", 2s, Watchdog{.interval = 50ms, .on_lost = [&](const Error&) { ++lost; }}};
    ASSERT_TRUE(servers.holds_everywhere("k"));
    for (std::size_t i = 0; i < 2; ++i) {
        servers[i].kill();
        servers[i].start();
        const auto renewed = lock.expires_at();
        EXPECT_TRUE(eventually([&] { return lock.expires_at() > renewed; }));
    }
    EXPECT_TRUE(lock.owns_lock());
    EXPECT_EQ(lost, 0);
    servers[2].kill();
    servers[2].start();
    EXPECT_TRUE(eventually([&] { return lost == 1; }));
    EXPECT_FALSE(lock.owns_lock());
}

TEST(KeptByAQuorum, IsLostInTimeWhereAMajorityIsSilent) {
    Servers servers{3};
    Redlock quorum{servers.endpoints()};
    std::atomic<int> lost{0};
    Lock lock{quorum, "k", 500ms, Watchdog{.on_lost = [&](const Error&) { ++lost; }}};
    servers[0].pause();
    servers[2].pause();
    const auto start = std::chrono::steady_clock::now();
    EXPECT_TRUE(eventually([&] { return lost == 1; }));
    EXPECT_LT(since(start), 1500ms);
    EXPECT_FALSE(lock.owns_lock());
    servers[0].resume();
    servers[2].resume();
    lock.unlock();
    EXPECT_TRUE(servers.is_gone("k"));
    EXPECT_EQ(lost, 1);
}

}  // namespace
