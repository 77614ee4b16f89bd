// Servers that die, stop answering, or come back, and networks that go silent.
#include <live/guards.hpp>

#include <support/eventually.hpp>
#include <support/process.hpp>

#include <hiredis/hiredis.h>

#include <gtest/gtest.h>

#include <csignal>
#include <future>
#include <stdexcept>
#include <stop_token>
#include <thread>

namespace {

using namespace std::chrono_literals;
using namespace guards;
using hiredlock::Connection;
using hiredlock::Endpoint;
using hiredlock::Errc;
using hiredlock::Lock;
using hiredlock::Pool;
using hiredlock::is_transient;
using hiredlock::unlocking::Deferred;
using support::Direction;
using support::eventually;
using support::Monitor;
using support::open_descriptors;
using support::Proxy;
using support::Raw;
using support::Server;

TEST(DeadServer, AskedAHundredThousandTimesCostsNothingAndWorksAgainWhenItIsBack) {
    Server server;
    Pool pool{server.unix_uri()};
    ASSERT_FALSE(pool.ping());
    server.kill();
    Lock lock{pool, "k", 60s, std::defer_lock};
    const auto ask = [&](int times) {
        int wrong = 0;
        std::error_code error;
        for (int i = 0; i < times; ++i)
            if (lock.try_lock(error) || error != Errc::unreachable) ++wrong;
        EXPECT_EQ(wrong, 0);
    };
    ask(1000);
    const std::size_t memory = support::resident_bytes();
    const std::size_t descriptors = open_descriptors();
    ask(scaled(100'000));
    EXPECT_EQ(open_descriptors(), descriptors);
    if (!is_sanitized) {
        EXPECT_LT(support::resident_bytes(), memory + 2 * 1024 * 1024);
    }
    server.start();
    EXPECT_TRUE(lock.try_lock());
    EXPECT_EQ(Raw{server}.get("k"), lock.token());
}

TEST(DeadServer, KilledInsideACallIsAnErrorAndWorksAgainWhenItIsBack) {
    Server server;
    Pool pool{hurried(server, 10s)};
    Connection connection{hurried(server, 10s)};
    std::size_t descriptors = 0;
    for (int round = 0; round < 10; ++round) {
        ASSERT_FALSE(pool.ping());
        ASSERT_FALSE(connection.ping());
        if (round == 1) descriptors = open_descriptors();
        if (round > 1) {
            EXPECT_LE(open_descriptors(), descriptors + 2) << round;  // the clean-up of what was given up has a connection of its own
        }
        server.pause();
        std::error_code of_pool, of_connection;
        auto locking = std::async(std::launch::async, [&] { return Lock{pool, "k", 60s, std::defer_lock}.try_lock(of_pool); });
        auto other = std::async(std::launch::async, [&] { return Lock{connection, "l", 60s, std::defer_lock}.try_lock(of_connection); });
        locking.wait_for(10ms);
        server.kill();
        EXPECT_FALSE(locking.get());
        EXPECT_FALSE(other.get());
        EXPECT_TRUE(is_transient(of_pool)) << of_pool.message();
        EXPECT_TRUE(is_transient(of_connection)) << of_connection.message();
        server.start();
        EXPECT_TRUE(Lock(pool, "k", 60s, 10s).owns_lock());
        EXPECT_TRUE(Lock(connection, "l", 60s, 10s).owns_lock());
    }
}

TEST(DeadServer, KilledAgainAndAgainUnderManyThreadsDoesNoHarm) {
    Server server;
    Pool pool{hurried(server, 2s)};
    std::atomic<bool> done = false;
    std::atomic<int> locked = 0;
    {
        std::vector<std::jthread> running;
        for (int t = 0; t < 4; ++t)
            running.emplace_back([&, t] {
                while (!done) {
                    std::error_code error;
                    Lock lock{pool, std::to_string(t), 60s, std::defer_lock};
                    if (lock.try_lock(error)) ++locked;
                    else if (!is_transient(error)) ADD_FAILURE() << error.message();
                }
            });
        for (int round = 0; round < 8; ++round) {
            const int before = locked;
            EXPECT_TRUE(eventually([&] { return locked > before + 20; }, 20s));
            server.kill();
            server.start();
        }
        done = true;
    }
    EXPECT_FALSE(pool.ping());
}

TEST(DeadServer, IsWaitedForInsideTheLimit) {
    Server server;
    Pool pool{endpoint_of(server)};
    Connection connection{endpoint_of(server)};
    server.kill();
    auto locking = std::async(std::launch::async, [&] { return Lock{pool, "k", 60s, 30s}.owns_lock(); });
    auto without_limit = std::async(std::launch::async, [&] { return Lock{connection, "l", 60s}.owns_lock(); });
    EXPECT_EQ(locking.wait_for(100ms), std::future_status::timeout);
    EXPECT_EQ(without_limit.wait_for(0ms), std::future_status::timeout);
    server.start();
    EXPECT_TRUE(locking.get());
    EXPECT_TRUE(without_limit.get());
}

TEST(DeadServer, EndsAWaitAtItsLimitWithItsError) {
    Pool pool{Endpoint{.port = 1}};
    Lock lock{pool, "k", 60s, std::defer_lock};
    const auto start = std::chrono::steady_clock::now();
    std::error_code error;
    EXPECT_FALSE(lock.try_lock_for(200ms, error));
    EXPECT_EQ(error, Errc::unreachable);
    EXPECT_GE(since(start), 180ms);
    EXPECT_LT(since(start), 5s);
}

TEST(DeadServer, EndsAWaitWithoutALimitAfterTheOutageThatIsBorne) {
    Pool pool{Endpoint{.port = 1}};
    const auto start = std::chrono::steady_clock::now();
    EXPECT_EQ(thrown_by([&] { const Lock lock{pool, "k", 60s, hiredlock::retry::Backoff{.outage = 300ms}}; }), Errc::unreachable);
    EXPECT_GE(since(start), 280ms);
    EXPECT_LT(since(start), 5s);
    EXPECT_EQ(thrown_by([&] { const Lock lock{pool, "k", 60s, hiredlock::retry::OnRelease{.outage = 0ms}}; }), Errc::unreachable);
}

TEST(Restart, LosesALockThatWasNotSavedAndSaysSo) {
    Server server;
    Pool pool{endpoint_of(server)};
    Lock lock{pool, "k", 60s};
    Lock other{pool, "l", 60s};
    server.restart();
    EXPECT_FALSE(lock.extend(90s));
    EXPECT_FALSE(lock.owns_lock());
    EXPECT_EQ(other.unlock(), Errc::not_held);
    EXPECT_FALSE(Raw{server}.exists("k"));
}

TEST(StoppedServer, KeepsToTheTimeLimitsAlsoAfterAReconnect) {
    Server server{{.password = "pw"}};
    Raw raw{server};
    Endpoint endpoint = hurried(server, 250ms);
    endpoint.password = "pw";
    endpoint.database = 5;
    Pool pool{endpoint};
    const auto ends_in_time = [&](const char* when) {
        const auto start = std::chrono::steady_clock::now();
        std::error_code error;
        EXPECT_FALSE(Lock(pool, "k", 60s, std::defer_lock).try_lock(error)) << when;
        EXPECT_EQ(error, Errc::timed_out) << when << ": " << error.message();
        EXPECT_GE(since(start), 200ms) << when;
        EXPECT_LT(since(start), 3s) << when;
    };
    { const Lock lock{pool, "k", 60s}; }
    ASSERT_GE(kill_clients(raw), 1U);
    { const Lock lock{pool, "k", 60s}; }
    server.pause();
    ends_in_time("on the new connection");
    server.resume();
    { const Lock lock{pool, "k", 60s, 10s}; }
    ASSERT_GE(kill_clients(raw), 1U);
    server.pause();
    ends_in_time("while it connects again");
    server.resume();
    Lock lock{pool, "k", 60s, 10s};
    EXPECT_TRUE(lock.owns_lock());
    raw({"SELECT", "5"});
    EXPECT_EQ(raw.get("k"), lock.token());
}

TEST(StoppedServer, BoundsTheDestructorAlsoDuringUnwinding) {
    Server server;
    Raw raw{server};
    std::vector<std::error_code> heard;
    Pool pool{hurried(server, 250ms), {.on_error = [&heard](const hiredlock::Error& error) { heard.push_back(error.code()); }}};
    const auto start = std::chrono::steady_clock::now();
    const auto work = [&] {
        const Lock lock{pool, "k", 60s};
        server.pause();
        throw std::runtime_error{"the work failed"};
    };
    EXPECT_THROW(work(), std::runtime_error);
    EXPECT_LT(since(start), 5s);
    EXPECT_EQ(heard, std::vector<std::error_code>{Errc::timed_out});
    server.resume();
    EXPECT_TRUE(eventually([&] { return !raw.exists("k"); }));
}

TEST(DeadServer, BoundsTheDestructorAlsoDuringUnwinding) {
    Server server;
    std::vector<std::error_code> heard;
    Pool pool{hurried(server, 250ms), {.on_error = [&heard](const hiredlock::Error& error) { heard.push_back(error.code()); }}};
    const auto start = std::chrono::steady_clock::now();
    const auto work = [&] {
        const Lock lock{pool, "k", 60s};
        const Lock deferred{pool, "l", 60s, Deferred{}};
        server.kill();
        throw std::runtime_error{"the work failed"};
    };
    EXPECT_THROW(work(), std::runtime_error);
    EXPECT_LT(since(start), 5s);
    EXPECT_FALSE(heard.empty());
    for (const auto& code : heard) EXPECT_TRUE(is_transient(code)) << code.message();
}

TEST(HalfOpenConnection, LosesTheHolderItsLockByItsTtl) {
    const Server server;
    Proxy proxy{server};
    Pool pool{hurried(proxy, 250ms)};
    Lock lock{pool, "k", 1s};
    proxy.swallow(Direction::to_client);
    proxy.swallow(Direction::to_server);
    proxy.swallow_new(true);
    EXPECT_TRUE(lock.owns_lock());
    std::error_code error;
    EXPECT_FALSE(lock.extend(60s, error));
    EXPECT_TRUE(is_transient(error)) << error.message();
    const auto end = lock.expires_at();
    EXPECT_TRUE(eventually([&] { return !lock.owns_lock(); }));
    EXPECT_GE(hiredlock::Clock::now(), end);
    EXPECT_FALSE(lock.extend(60s));
    EXPECT_EQ(thrown_by([&] { lock.check(); }), Errc::lost);
}

TEST(HalfOpenConnection, EndsAWaitAtItsLimit) {
    const Server server;
    Raw{server}.set("k", "somebody");
    Proxy proxy{server};
    Pool pool{hurried(proxy, 20s)};
    Connection connection{hurried(proxy, 20s)};
    ASSERT_FALSE(pool.ping());
    ASSERT_FALSE(connection.ping());
    const auto ends_in_time = [](auto& store) {
        const auto start = std::chrono::steady_clock::now();
        std::error_code error;
        EXPECT_FALSE(Lock(store, "k", 60s, std::defer_lock).try_lock_for(300ms, error));
        EXPECT_TRUE(!error || is_transient(error)) << error.message();
        EXPECT_GE(since(start), 280ms);
        EXPECT_LT(since(start), 10s);
    };
    auto waiting = std::async(std::launch::async, [&] { return Lock{pool, "k", 60s, 1s}.owns_lock(); });
    EXPECT_EQ(waiting.wait_for(50ms), std::future_status::timeout);
    proxy.swallow(Direction::to_client);
    proxy.swallow(Direction::to_server);
    proxy.swallow_new(true);
    ends_in_time(pool);
    ends_in_time(connection);
    try {
        EXPECT_FALSE(waiting.get());
    } catch (const hiredlock::Error& error) {
        EXPECT_TRUE(is_transient(error.code())) << error.what();
    }
}

TEST(HalfOpenConnection, BoundsTheReleaseAndEndsAWaitThatIsCancelled) {
    const Server server;
    Proxy proxy{server};
    Pool pool{hurried(proxy, 300ms)};
    Lock lock{pool, "k", 60s};
    proxy.swallow(Direction::to_client);
    proxy.swallow(Direction::to_server);
    proxy.swallow_new(true);
    auto start = std::chrono::steady_clock::now();
    EXPECT_TRUE(is_transient(lock.unlock()));
    EXPECT_LT(since(start), 3s);
    std::stop_source stop;
    Lock other{pool, "l", 60s, std::defer_lock};
    auto waiting = std::async(std::launch::async, [&] { return other.lock(stop.get_token()); });
    EXPECT_EQ(waiting.wait_for(50ms), std::future_status::timeout);
    start = std::chrono::steady_clock::now();
    stop.request_stop();
    EXPECT_FALSE(waiting.get());
    EXPECT_LT(since(start), 3s);
    proxy.swallow_new(false);
    proxy.pass(Direction::to_client);
    proxy.pass(Direction::to_server);
    EXPECT_TRUE(other.try_lock_for(10s));
}

/// In a child, for a signal would end it: writes to servers that have gone, with every kind of command.
template <class Make>
int survives_writing_to_a_dead_server(Server& server, Make make) {
    support::Child client = support::Child::fork([&](support::Lines& parent) {
        std::signal(SIGPIPE, SIG_DFL);
        auto store = make();
        for (int round = 0; round < 4; ++round) {
            Lock lock{*store, "k", 60s, 10s};
            Lock deferred{*store, "l", 60s, 10s, Deferred{}};
            if (!lock || !deferred) return 2;
            parent.write_line("kill");
            parent.read_line();
            std::error_code error;
            // Each may be the first to write; one of them writes after the server's reset has arrived.
            if (round != 0) deferred.unlock();
            if (round != 1) lock.unlock();
            lock.try_lock(error);
            if (round != 2) lock.extend(60s, error);
            store->ping();
            parent.write_line("start");
            parent.read_line();
        }
        struct sigaction disposition {};
        ::sigaction(SIGPIPE, nullptr, &disposition);
        return disposition.sa_handler == SIG_DFL ? 0 : 3;
    });
    for (int round = 0; round < 4; ++round) {
        if (client.read_line() != "kill") break;
        server.kill();
        client.write_line("killed");
        if (client.read_line() != "start") break;
        server.start();
        client.write_line("started");
    }
    return client.wait().value_or(-1);
}

TEST(SigPipe, AtItsDefaultIsNotRaisedByWritingToADeadServer) {
    Server server;
    EXPECT_EQ(survives_writing_to_a_dead_server(server, [&] { return std::make_unique<Pool>(server.unix_uri()); }), 0);
    EXPECT_EQ(survives_writing_to_a_dead_server(server, [&] { return std::make_unique<Connection>(server.unix_uri()); }), 0);
    EXPECT_EQ(survives_writing_to_a_dead_server(server, [&] { return std::make_unique<Pool>(server.uri()); }), 0);
    EXPECT_EQ(survives_writing_to_a_dead_server(server, [&] { return std::make_unique<Connection>(server.uri()); }), 0);
}

TEST(SigPipe, IsNotRaisedOnABorrowedContextEither) {
    Server server;
    support::Child client = support::Child::fork([&](support::Lines& parent) {
        std::signal(SIGPIPE, SIG_DFL);
        redisContext* const context = redisConnectUnix(server.socket_path().c_str());
        Connection connection = Connection::borrow(context);
        if (connection.ping()) return 2;
        parent.write_line("kill");
        parent.read_line();
        if (!connection.ping()) return 3;
        redisFree(context);
        return 0;
    });
    ASSERT_EQ(client.read_line(), "kill");
    server.kill();
    client.write_line("killed");
    EXPECT_EQ(client.wait(), 0);
}

TEST(SigPipe, OnTheBackgroundThreadIsNotRaisedEither) {
    Server server;
    support::Child client = support::Child::fork([&](support::Lines& parent) {
        std::signal(SIGPIPE, SIG_DFL);
        Pool pool{server.unix_uri()};
        std::atomic<bool> lost = false;
        const Lock lock{pool, "k", 300ms, hiredlock::renew::Watchdog{.interval = 10ms, .on_lost = [&](const hiredlock::Error&) { lost = true; }}};
        eventually([&] { return Raw{server}.pttl("k") > 0; });
        parent.write_line("kill");
        parent.read_line();
        return eventually([&] { return lost.load(); }) ? 0 : 2;
    });
    ASSERT_EQ(client.read_line(), "kill");
    server.kill();
    client.write_line("killed");
    EXPECT_EQ(client.wait(), 0);
}

}  // namespace
