// Servers of a quorum that answer after their caller has gone: the answers are matched, nothing stays behind, and nothing piles up.
#include <live/servers.hpp>

#include <support/process.hpp>

#include <gtest/gtest.h>

#include <future>
#include <thread>

namespace {

using namespace std::chrono_literals;
using namespace guards;
using hiredlock::Endpoint;
using hiredlock::Errc;
using hiredlock::Lock;
using hiredlock::Redlock;
using hiredlock::unlocking::Deferred;
using support::Direction;
using support::eventually;
using support::Monitor;
using support::Proxy;
using support::Raw;

TEST(LateServer, ReleasesBehindTheAcquireThatItExecutesWhenItWakesUp) {
    Servers servers{3};
    Redlock quorum{servers.endpoints()};
    EXPECT_FALSE(quorum.ping());
    for (int round = 0; round < 3; ++round) {
        Monitor monitor{servers[2]};
        servers[2].pause();
        { const Lock lock{quorum, "k", 60s}; }
        servers[2].resume();
        ASSERT_TRUE(monitor.wait_for(releases("k")));
        EXPECT_EQ(monitor.count(acquires("k")), 1U);
        EXPECT_TRUE(servers.is_gone("k"));
    }
}

TEST(LateServer, LetsGoOfALockThatWasRefusedMeanwhile) {
    Servers servers{5};
    Redlock quorum{servers.endpoints()};
    EXPECT_FALSE(quorum.ping());
    for (std::size_t i = 0; i < 3; ++i) Raw{servers[i]}.set("k", "foreign", 60s);
    Monitor monitor{servers[4]};
    servers[4].pause();
    EXPECT_FALSE((Lock{quorum, "k", 60s, std::try_to_lock}.owns_lock()));
    servers[4].resume();
    ASSERT_TRUE(monitor.wait_for(releases("k")));
    EXPECT_TRUE(eventually([&] { return servers.count("k") == 3; }));
}

TEST(LateServer, ReleasesBehindTheAcquireThoughOthersUseThoseConnectionsMeanwhile) {
    Servers servers{3};
    Proxy to_second{servers[1]}, to_third{servers[2]};
    Redlock quorum{{endpoint_of(servers[0]), Endpoint::parse(to_second.uri()), Endpoint::parse(to_third.uri())}, {.size = 2}};
    Raw third{servers[2]};
    ASSERT_TRUE(eventually([&] {  // both sets of connections are open
        auto one = std::async(std::launch::async, [&] { return quorum.ping(); });
        return !quorum.ping() && !one.get() && clients_named(third).size() == 2;
    }));
    to_third.hold_when(Direction::to_server, "late");
    Lock lock{quorum, "late", 60s};
    to_second.hold_when(Direction::to_server, "other");
    auto other = std::async(std::launch::async, [&] { return Lock{quorum, "other", 60s, std::try_to_lock}.owns_lock(); });
    ASSERT_TRUE(eventually([&] { return to_second.held(Direction::to_server) > 0; }));
    EXPECT_FALSE(lock.unlock());  // over other connections, on which the third server answers at once
    to_third.release(Direction::to_server);
    to_second.release(Direction::to_server);
    EXPECT_TRUE(other.get());
    EXPECT_TRUE(servers.is_gone("late"));
    EXPECT_TRUE(servers.is_gone("other"));
}

TEST(LateServer, IsNotWaitedForLongByThoseThatAreDividedWithoutIt) {
    Servers servers{5};
    auto patient = servers.endpoints();
    for (auto& endpoint : patient) endpoint.command_timeout = 10s;
    Redlock quorum{patient};
    EXPECT_FALSE(quorum.ping());
    Raw{servers[2]}.set("k", "foreign", 60s);
    servers[3].pause();
    servers[4].pause();
    for (const bool was_silent_before : {false, true}) {
        const auto start = std::chrono::steady_clock::now();
        EXPECT_FALSE((Lock{quorum, "k", 60s, std::try_to_lock}.owns_lock()));
        EXPECT_LT(since(start), 5s) << was_silent_before << ": half of what an answer may take, and many times what it takes";
    }
    EXPECT_TRUE(eventually([&] { return servers.count("k", {false, false, false, true, true}) == 1; }));
    servers[3].resume();
    servers[4].resume();
    EXPECT_TRUE(eventually([&] { return servers.count("k") == 1; }));
    EXPECT_TRUE((Lock{quorum, "k", 60s, std::try_to_lock}.owns_lock()));
}

TEST(LateServer, LetsGoOfALockWhoseCallerGaveUp) {
    Servers servers{3};
    Redlock quorum{servers.endpoints()};
    EXPECT_FALSE(quorum.ping());
    for (const auto pause : {0ms, 1300ms}) {  // within the command timeout, and after it
        std::error_code error;
        for (auto& server : servers) server.pause();
        Lock lock{quorum, "k", 60s, std::defer_lock};
        EXPECT_FALSE(lock.try_lock_for(30ms, error));
        EXPECT_EQ(error, Errc::no_quorum);
        std::this_thread::sleep_for(pause);
        for (auto& server : servers) server.resume();
        EXPECT_TRUE(servers.is_gone("k"));
        EXPECT_TRUE(lock.try_lock_for(10s));
    }
}

TEST(LateServer, AnswersItsOwnQuestions) {
    Servers servers{3};
    Redlock quorum{servers.endpoints()};
    EXPECT_FALSE(quorum.ping());
    // Its late yes to one key must not be a yes to another, which two hold against us.
    Raw{servers[0]}.set("busy", "foreign", 60s);
    Raw{servers[2]}.set("busy", "foreign", 60s);
    for (int round = 0; round < 10; ++round) {
        servers[2].pause();
        Lock lock{quorum, "k", 60s};
        servers[2].resume();
        EXPECT_FALSE((Lock{quorum, "busy", 60s, std::try_to_lock}.owns_lock()));
        EXPECT_TRUE(lock.extend(60s));
        EXPECT_FALSE(lock.unlock());
        EXPECT_TRUE(servers.is_gone("k"));
    }
    EXPECT_TRUE(eventually([&] { return servers.count("busy") == 2; }));
}

TEST(LateServer, KeepsItsConnectionOverAPauseBetweenCalls) {
    Servers servers{5};
    std::vector<Endpoint> endpoints = servers.endpoints();
    for (Endpoint& endpoint : endpoints) endpoint.command_timeout = 100ms;
    Redlock quorum{endpoints};
    std::vector<std::unique_ptr<Monitor>> monitors;
    const auto connections = [&] {
        long long all = 0;
        for (auto& server : servers) {
            const std::string info = Raw{server}.text({"INFO", "stats"});
            all += std::atoll(info.c_str() + info.find("total_connections_received:") + 27);
        }
        return all;
    };
    for (int i = 0; i < 3; ++i) { const Lock lock{quorum, "k", 60s}; }
    const long long before = connections();
    for (int i = 0; i < 4; ++i) {
        Lock lock{quorum, "k", 60s};
        std::this_thread::sleep_for(150ms);  // two answers came meanwhile that nobody has read
        EXPECT_TRUE(lock.extend(60s));
        std::this_thread::sleep_for(150ms);
        EXPECT_FALSE(lock.unlock());
    }
    EXPECT_EQ(connections(), before + 5);  // the question itself
}

TEST(LateServer, JoinsTheOthersAgainThoughCallsAreFarApart) {
    Servers servers{3};
    std::deque<Proxy> proxies;
    std::vector<Endpoint> endpoints;
    for (auto& server : servers) {
        endpoints.push_back(endpoint_of(proxies.emplace_back(server)));
        endpoints.back().connect_timeout = 100ms;
    }
    Redlock quorum{endpoints};
    EXPECT_FALSE(quorum.ping());
    proxies[2].delay(Direction::to_client, 40ms);  // later than a majority, and sooner than its limit
    proxies[2].cut();
    bool there = false;
    for (int i = 0; i < 6 && !there; ++i) {
        const Lock lock{quorum, "k", 60s};
        std::this_thread::sleep_for(150ms);
        there = Raw{servers[2]}.exists("k");
    }
    EXPECT_TRUE(there);
}

TEST(LateServer, PilesUpNothingHoweverLongItIsSilent) {
    Servers servers{3};
    Redlock quorum{servers.endpoints()};
    EXPECT_FALSE(quorum.ping());
    Monitor monitor{servers[2]};
    servers[2].pause();
    const auto lock_many = [&](int count) {
        for (int i = 0; i < count; ++i) {
            Lock lock{quorum, "k", 60s};
            if (i % 2 == 0) lock.extend(60s);
            if (i % 4 == 1) Lock{quorum, "k", 60s, std::try_to_lock}.owns_lock();
        }
        for (int i = 0; i < count; ++i) { const Lock lock{quorum, "k", 60s, Deferred{}}; }
    };
    lock_many(500);
    const auto descriptors = support::open_descriptors();
    const auto memory = support::resident_bytes();
    for (const auto start = std::chrono::steady_clock::now(); since(start) < 2500ms;) lock_many(200);  // over some time limits
    EXPECT_LT(support::open_descriptors(), descriptors + 10);
    if (!is_sanitized) EXPECT_LT(support::resident_bytes(), memory + 2'000'000);
    servers[2].resume();
    EXPECT_FALSE(quorum.ping());
    EXPECT_TRUE(servers.is_gone("k"));
    EXPECT_LT(monitor.count(names("k")), 200U);
    EXPECT_TRUE(eventually([&] {
        const Lock lock{quorum, "k", 60s};
        return servers.count("k") == 3;
    }));
}

TEST(LateServer, ThatIsOnlySlowPilesUpNothingEither) {
    Servers servers{3};
    const Proxy direct{servers[2]};
    std::vector<Endpoint> endpoints = servers.endpoints();
    Proxy slow{servers[2]};
    endpoints[2] = endpoint_of(slow);
    Redlock quorum{endpoints};
    EXPECT_FALSE(quorum.ping());
    slow.delay(Direction::to_client, 20ms);
    const auto start = std::chrono::steady_clock::now();
    constexpr int count = 300;
    for (int i = 0; i < count; ++i) {
        Lock lock{quorum, "k", 60s};
        EXPECT_FALSE(lock.unlock());
    }
    EXPECT_LT(since(start), count * 20ms);  // half of what waiting for it would take
    EXPECT_TRUE(servers.is_gone("k"));
}

TEST(LateServer, DoesNotMakeItselfFeltByTheHealthyOnesWhileItIsDown) {
    Servers servers{3};
    Redlock quorum{servers.endpoints()};
    EXPECT_FALSE(quorum.ping());
    servers[2].kill();
    for (int i = 0; i < 50; ++i) { const Lock lock{quorum, "k", 60s}; }
    Monitor monitor{servers[0]};
    for (int i = 0; i < 100; ++i) { const Lock lock{quorum, "k", 60s}; }
    std::this_thread::sleep_for(300ms);  // for what the background might do
    EXPECT_EQ(monitor.count(acquires("k")), 100U);
    EXPECT_LE(monitor.count(releases("k")), 100U + 20U);
}

}  // namespace
