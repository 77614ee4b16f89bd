// What goes wrong between a kept lock and its server, and must not lose it: connections that break, servers that pause, delays that add up, replies
// that are lost, memory that is full.
#include <live/losses.hpp>

#include <gtest/gtest.h>

#include <cstdlib>
#include <thread>

namespace {

using namespace std::chrono_literals;
using namespace guards;
using hiredlock::Clock;
using hiredlock::Errc;
using hiredlock::Lock;
using hiredlock::Pool;
using hiredlock::renew::Watchdog;
using support::Direction;
using support::eventually;
using support::Monitor;
using support::Proxy;
using support::Raw;
using support::Server;

TEST(KeptLock, SurvivesItsConnectionsBeingKilledAgainAndAgain) {
    const Server server;
    Raw raw{server};
    Pool pool{endpoint_of(server)};
    Losses losses;
    Lock lock{pool, "k", 1s, losses.watchdog(50ms)};
    long long killed = 0;
    EXPECT_TRUE(stays(
        [&] {
            std::this_thread::sleep_for(20ms);
            killed += raw.number({"CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"});
            return lock.owns_lock() && raw.get("k") == lock.token();
        },
        1500ms));
    EXPECT_GE(killed, 10);
    EXPECT_FALSE(lock.unlock());
    EXPECT_EQ(losses.count(), 0);
}

TEST(KeptLock, SurvivesAServerThatPausesForNearlyHalfATtl) {
    Server server;
    Pool pool{endpoint_of(server)};
    Losses losses;
    Lock lock{pool, "k", 2s, losses.watchdog()};
    for (int i = 0; i < 2; ++i) {
        server.pause();
        EXPECT_TRUE(stays([&] { return lock.owns_lock(); }, 800ms));
        server.resume();
        EXPECT_TRUE(stays([&] { return lock.owns_lock(); }, 700ms));
    }
    EXPECT_EQ(Raw{server}.get("k"), lock.token());
    EXPECT_FALSE(lock.unlock());
    EXPECT_EQ(losses.count(), 0);
}

TEST(KeptLock, SurvivesAConnectionThatGoesDeadWithoutAWord) {
    const Server server;
    Raw raw{server};
    Proxy proxy{server};
    Pool pool{endpoint_of(proxy)};
    Losses losses;
    Lock lock{pool, "k", 1500ms, losses.watchdog()};
    proxy.swallow_when(Direction::to_server, std::string{lock.token()});  // half open from the next renewal on
    ASSERT_TRUE(eventually([&] { return proxy.swallowed(Direction::to_server) > 0; }));
    EXPECT_TRUE(stays([&] { return lock.owns_lock() && raw.get("k") == lock.token(); }, 1800ms));
    proxy.pass(Direction::to_server);
    EXPECT_EQ(losses.count(), 0);
}

TEST(KeptLock, IsTriedAgainSoonAfterAFailureAndNotWithoutAPause) {
    const Server server;
    Proxy proxy{server};
    Pool pool{endpoint_of(proxy)};
    Losses losses;
    const Lock lock{pool, "k", 4s, losses.watchdog(800ms)};
    proxy.refuse(true);
    proxy.cut();
    std::this_thread::sleep_for(1200ms);
    EXPECT_TRUE(lock.owns_lock());
    Monitor monitor{server};
    const auto start = std::chrono::steady_clock::now();
    proxy.refuse(false);
    EXPECT_TRUE(monitor.wait_for(extends("k")));
    EXPECT_LT(since(start), 700ms);  // not a whole interval: a failure is repeated after an eighth of it
    EXPECT_LE(proxy.accepted(), 12U);
    EXPECT_EQ(losses.count(), 0);
}

/// How long to go on with what takes long: HIREDLOCK_TEST_HOLD_SECONDS, or else that time.
std::chrono::seconds hold_time(std::chrono::seconds otherwise) {
    const char* const wanted = std::getenv("HIREDLOCK_TEST_HOLD_SECONDS");
    return wanted != nullptr ? std::chrono::seconds{std::atoi(wanted)} : otherwise;
}

TEST(KeptLock, IsNeverLostByDelaysThatAddUpOnABusyMachine) {
    const Server server;
    Raw raw{server};
    Proxy proxy{server};
    proxy.delay(Direction::to_client, 100ms);
    Pool pool{endpoint_of(proxy)};
    Losses losses;
    std::vector<std::jthread> busy;
    for (unsigned i = 0; i < std::max(2U, std::thread::hardware_concurrency()); ++i)
        busy.emplace_back([](const std::stop_token& stop) {
            volatile unsigned spins = 0;
            while (!stop.stop_requested()) spins = spins + 1;
        });
    Lock lock{pool, "k", 1s, losses.watchdog(300ms)};
    EXPECT_TRUE(stays(
        [&] {
            std::this_thread::sleep_for(10ms);
            return lock.owns_lock() && raw.get("k") == lock.token();
        },
        hold_time(10s)));
    EXPECT_EQ(losses.count(), 0);
}

/// Holds locks of that ttl behind a relay that takes a sixth of it, for ten ttls or more, and returns how many commands a ttl took.
double commands_per_ttl(std::chrono::milliseconds ttl, Losses& losses) {
    const Server server;
    Proxy proxy{server};
    Pool pool{endpoint_of(proxy)};
    {
        const Lock first{pool, "first", 10s, Watchdog{.interval = 1ms}};
        EXPECT_TRUE(Monitor{server}.wait_for(extends("first")));  // the thread's connection is there, and knows its command
    }
    proxy.delay(Direction::to_client, ttl / 6);
    const Lock lock{pool, "k", ttl, 10s, losses.watchdog()};
    Monitor monitor{server};
    const auto start = std::chrono::steady_clock::now();
    support::eventually([&] { return losses.count() != 0; }, std::max<std::chrono::milliseconds>(10 * ttl, 500ms));
    const double ttls = std::chrono::duration<double>{std::chrono::steady_clock::now() - start} / ttl;
    return static_cast<double>(monitor.count([](const auto& command) { return !command.from_script(); })) / ttls;
}

TEST(KeptLock, OfATtlOfSixRoundTripsIsKeptWithoutSpinning) {
    Losses losses;
    EXPECT_LE(commands_per_ttl(300ms, losses), 10);
    EXPECT_EQ(losses.count(), 0);
}

TEST(KeptLock, OfAVeryShortTtlDoesNotSpin) {
    Losses losses;  // may come on a busy machine: 30 ms are soon over
    EXPECT_LE(commands_per_ttl(30ms, losses), 30);
    EXPECT_LE(losses.count(), 1);
}

TEST(KeptLock, OfATtlBelowARoundTripIsLostOnceAndWithoutSpinning) {
    const Server server;
    Raw raw{server};
    Proxy proxy{server};
    Pool pool{endpoint_of(proxy)};
    Losses losses;
    Lock lock{pool, "k", 60ms, losses.watchdog()};
    Monitor monitor{server};
    proxy.delay(Direction::to_client, 200ms);
    EXPECT_TRUE(losses.wait_for(1));
    EXPECT_TRUE(eventually([&] { return !raw.exists("k"); }));
    EXPECT_TRUE(stays([&] { return losses.count() == 1; }, 300ms));
    EXPECT_LE(monitor.count([](const auto& command) { return !command.from_script(); }), 60U);
}

// --- Lost replies.

TEST(LostReply, OfAnExtendToAShorterTtlShortensTheLeaseAndTheWatchdogKeepsThatAlive) {
    const Server server;
    Raw raw{server};
    Proxy proxy{server};
    Pool pool{hurried(proxy, 300ms)};
    Losses losses;
    Lock lock{pool, "k", 12s, losses.watchdog()};
    ASSERT_TRUE(lock.extend(12s));  // the server knows the script by now
    proxy.swallow(Direction::to_client);
    std::error_code error;
    EXPECT_FALSE(lock.extend(1s, error));
    EXPECT_TRUE(hiredlock::is_transient(error)) << error.message();
    EXPECT_LE(lock.remaining(), 1s);
    EXPECT_LE(raw.pttl("k"), 1000);  // it was done
    proxy.pass(Direction::to_client);
    // The extend that was not answered may come into force at any time yet, so the lease stays short; and so it is renewed in time.
    EXPECT_TRUE(stays([&] { return lock.owns_lock() && lock.remaining() <= 1s && raw.get("k") == lock.token(); }, 2s));
    EXPECT_EQ(losses.count(), 0);
    EXPECT_FALSE(lock.unlock());
}

TEST(LostReply, OfAnExtendToAShorterTtlEndsAnUnwatchedGuardOnTime) {
    const Server server;
    Raw raw{server};
    Proxy proxy{server};
    Pool pool{hurried(proxy, 200ms)};
    Lock lock{pool, "k", 30s};
    ASSERT_TRUE(lock.extend(30s));  // the server knows the script by now
    proxy.swallow(Direction::to_client);
    std::error_code error;
    EXPECT_FALSE(lock.extend(600ms, error));
    EXPECT_TRUE(hiredlock::is_transient(error)) << error.message();
    EXPECT_LE(raw.pttl("k"), 600);
    EXPECT_TRUE(eventually([&] { return !raw.exists("k"); }));
    EXPECT_FALSE(lock.owns_lock());
    proxy.pass(Direction::to_client);
    EXPECT_FALSE(lock.extend(30s));
    EXPECT_FALSE(raw.exists("k"));
}

TEST(LostReply, OfARenewalDoesNotLoseALockThatIsExtendedToALongerTtl) {
    const Server server;
    Raw raw{server};
    Proxy proxy{server};
    Pool pool{endpoint_of(proxy)};
    Losses losses;
    Lock lock{pool, "k", 900ms, losses.watchdog()};
    proxy.swallow_when(Direction::to_server, std::string{lock.token()});
    ASSERT_TRUE(eventually([&] { return proxy.swallowed(Direction::to_server) > 0; }));
    const auto first = lock.expires_at();
    ASSERT_TRUE(eventually([&] { return lock.expires_at() > first; }));  // renewed over another connection
    EXPECT_TRUE(lock.extend(9s));
    EXPECT_TRUE(stays([&] { return lock.owns_lock() && raw.get("k") == lock.token(); }, 1500ms));
    EXPECT_EQ(losses.count(), 0);
    EXPECT_FALSE(lock.unlock());
    proxy.pass(Direction::to_server);
}

TEST(KeptLock, ExtendedWhileARenewalWaitsForItsConnectionIsNotShortenedByThat) {
    const Server server;
    Raw raw{server};
    Proxy proxy{server};
    Pool pool{endpoint_of(proxy)};
    Losses losses;
    Lock lock{pool, "k", 2s, losses.watchdog()};
    proxy.hold_when(Direction::to_server, "SETNAME");  // how the thread's connection begins
    ASSERT_TRUE(eventually([&] { return proxy.held(Direction::to_server) > 0; }));
    Monitor monitor{server};
    EXPECT_TRUE(lock.extend(60s));
    proxy.release(Direction::to_server);
    ASSERT_TRUE(monitor.wait_for(called("CLIENT")));
    EXPECT_TRUE(stays([&] { return lock.owns_lock() && lock.remaining() > 20s && raw.pttl("k") > 20'000; }, 500ms));
    for (const auto& command : monitor.commands())
        if (is_extend(command, "k")) EXPECT_EQ(ttl_of(command), 60'000);
    EXPECT_EQ(losses.count(), 0);
}

// --- A server that is full.

void survives_a_full_server(hiredlock::Cas cas) {
    const Server server;
    Raw raw{server};
    auto endpoint = endpoint_of(server);
    endpoint.cas = cas;
    Pool pool{endpoint};
    Losses losses;
    Lock lock{pool, "k", 600ms, losses.watchdog()};
    EXPECT_TRUE(raw({"CONFIG", "SET", "maxmemory", "1"}).is_ok());
    EXPECT_EQ(raw({"SET", "x", "y"}).text.substr(0, 3), "OOM");
    EXPECT_TRUE(stays([&] { return lock.owns_lock() && raw.get("k") == lock.token(); }, 1500ms));
    EXPECT_TRUE(lock.extend(900ms));
    EXPECT_EQ(losses.count(), 0);
    EXPECT_FALSE(lock.unlock());
    EXPECT_FALSE(raw.exists("k"));
}

TEST(FullServer, RenewsWhatIsHeldByWhicheverCommandItHas) { survives_a_full_server(hiredlock::Cas::automatic); }
TEST(FullServer, RenewsWhatIsHeldByScripts) { survives_a_full_server(hiredlock::Cas::script); }

TEST(FullServer, WithTheModuleRenewsWhatIsHeld) {
    const char* const module = std::getenv("HIREDLOCK_TAIRSTRING");
    if (module == nullptr) GTEST_SKIP() << "HIREDLOCK_TAIRSTRING names no module";
    const Server server{{.module = module}};
    Raw raw{server};
    auto endpoint = endpoint_of(server);
    Pool pool{endpoint};
    Losses losses;
    Lock lock{pool, "k", 600ms, losses.watchdog()};
    EXPECT_TRUE(raw({"CONFIG", "SET", "maxmemory", "1"}).is_ok());
    EXPECT_TRUE(stays([&] { return lock.owns_lock() && raw.get("k") == lock.token(); }, 1200ms));
    EXPECT_EQ(losses.count(), 0);
    EXPECT_FALSE(lock.unlock());
}

}  // namespace
