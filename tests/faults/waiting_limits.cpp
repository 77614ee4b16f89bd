// A wait ends when it was to end, whatever the server does, and leaves no key behind.
#include <live/waiters.hpp>

#include <support/port.hpp>

#include <gtest/gtest.h>

#include <future>
#include <stop_token>
#include <thread>

#include <arpa/inet.h>
#include <sys/socket.h>

namespace {

using namespace std::chrono_literals;
using namespace guards;
using hiredlock::Endpoint;
using hiredlock::Errc;
using hiredlock::is_transient;
using hiredlock::Lock;
using hiredlock::Pool;
using support::Direction;
using support::eventually;
using support::Monitor;
using support::Proxy;
using support::Raw;
using support::Server;

constexpr auto limits = {5ms, 100ms, 700ms};

/// Each limit, by waiters alone and by several at a time.
void expect_limits_to_be_met(Pool& pool) {
    for (const auto limit : limits) {
        for (const int waiters : {1, 4}) {
            std::vector<std::jthread> running;
            for (int i = 0; i < waiters; ++i)
                running.emplace_back([&] {
                    Lock lock{pool, "k", 1min, std::defer_lock};
                    std::error_code error;
                    const auto start = std::chrono::steady_clock::now();
                    EXPECT_FALSE(lock.try_lock_for(limit, error));
                    EXPECT_GE(since(start), limit - 5ms);
                    EXPECT_LT(since(start), limit + slack);
                    EXPECT_TRUE(!error || is_transient(error)) << error.message();
                });
        }
    }
}

void expect_a_cancel_to_end_it_at_once(Pool& pool, std::future_status before = std::future_status::timeout) {
    std::stop_source stop;
    std::vector<std::future<bool>> waiting;
    for (int i = 0; i < 3; ++i)
        waiting.push_back(std::async(std::launch::async, [&] {
            Lock lock{pool, "k", 1min, std::defer_lock};
            return lock.lock(stop.get_token());
        }));
    for (auto& one : waiting) EXPECT_EQ(one.wait_for(30ms), before);
    const auto start = std::chrono::steady_clock::now();
    stop.request_stop();
    for (auto& one : waiting) EXPECT_FALSE(one.get());
    EXPECT_LT(since(start), slack);
}

TEST(WaitLimit, IsMetByAServerThatStops) {
    Server server;
    Raw{server}.set("k", "another");
    Pool pool{hurried(server, 20s)};
    ASSERT_FALSE(pool.ping());
    server.pause();
    expect_limits_to_be_met(pool);
    expect_a_cancel_to_end_it_at_once(pool);
    server.resume();
    EXPECT_EQ(Raw{server}.get("k"), "another");
}

TEST(WaitLimit, IsMetByAServerThatStopsWhileItIsWaitedFor) {
    Server server;
    Raw raw{server};
    raw.set("k", "another");
    Pool pool{hurried(server, 20s)};
    std::vector<std::future<void>> waiting;
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < 3; ++i)
        waiting.push_back(std::async(std::launch::async, [&] {
            std::error_code error;
            EXPECT_FALSE(Lock(pool, "k", 1min, std::defer_lock).try_lock_for(3s, error));
            EXPECT_TRUE(!error || is_transient(error)) << error.message();
        }));
    ASSERT_TRUE(is_armed(raw));
    server.pause();
    for (auto& one : waiting) one.get();
    EXPECT_GE(since(start), 3s - 5ms);
    EXPECT_LT(since(start), 3s + slack);
    server.resume();
    EXPECT_EQ(Raw{server}.get("k"), "another");
}

TEST(WaitLimit, IsMetInANetworkThatSwallowsEverything) {
    const Server server;
    Raw raw{server};
    raw.set("k", "another");
    Proxy proxy{server};
    Pool pool{hurried(proxy, 20s)};
    auto armed_before = std::async(std::launch::async, [&] { return Lock{pool, "k", 1min, std::defer_lock}.try_lock_for(500ms); });
    EXPECT_FALSE(armed_before.get());
    proxy.swallow(Direction::to_client);
    proxy.swallow(Direction::to_server);
    proxy.swallow_new(true);
    expect_limits_to_be_met(pool);
    expect_a_cancel_to_end_it_at_once(pool);
}

TEST(WaitLimit, IsMetByAServerWhoseBacklogIsFull) {
    const int port = support::free_port();
    const support::Descriptor listening = support::bind_port(port);
    ASSERT_TRUE(listening);
    ASSERT_EQ(::listen(listening.get(), 0), 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    std::vector<support::Descriptor> filling;
    for (int i = 0; i < 4; ++i) {
        filling.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
        ::connect(filling.back().get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
    }
    Endpoint endpoint{.host = "127.0.0.1", .port = port};
    endpoint.connect_timeout = 20s;
    Pool pool{endpoint};
    expect_limits_to_be_met(pool);
    expect_a_cancel_to_end_it_at_once(pool);
}

TEST(WaitLimit, ThatPassesInMidFlightLeavesNoKey) {
    const Server server;
    Raw raw{server};
    Proxy proxy{server};
    Pool pool{hurried(proxy, 20s)};
    ASSERT_FALSE(pool.ping());
    for (const bool is_in_line : {false, true}) {
        if (is_in_line) raw.set("k", "another");
        Lock lock{pool, "k", 1min, std::defer_lock, only_when_told};
        std::error_code error;
        if (!is_in_line) proxy.hold(Direction::to_server);
        auto waiting = std::async(std::launch::async, [&] { return lock.try_lock_for(is_in_line ? 2s : 200ms, error); });
        if (is_in_line) {
            ASSERT_TRUE(is_armed(raw));
            proxy.hold(Direction::to_server);
            raw.del("k");  // it is told, and asks, and its question stays on the way
        }
        EXPECT_FALSE(waiting.get());
        if (is_in_line)
            EXPECT_FALSE(error) << error.message();  // it was busy when last heard of
        else
            EXPECT_EQ(error, Errc::timed_out);
        Monitor monitor{server};
        proxy.release(Direction::to_server);
        ASSERT_TRUE(monitor.wait_for(acquires("k"), 20s)) << "it arrives after all";
        EXPECT_TRUE(eventually([&] { return monitor.count(releases("k")) > 0 && !raw.exists("k"); }, 20s));
        Lock next{pool, "k", 1min, 20s};
        EXPECT_TRUE(next.owns_lock());
    }
}

// --- An outage is one for all who stand in a line.

TEST(Outage, EndsTheWaitOfAWholeLineAtOnce) {
    Server server;
    Raw{server}.set("k", "another");
    Pool pool{hurried(server, 400ms)};
    ASSERT_FALSE(pool.ping());
    server.pause();
    const hiredlock::retry::OnRelease brief{.outage = 1s};
    std::vector<std::future<std::error_code>> waiting;
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < 20; ++i)
        waiting.push_back(std::async(std::launch::async, [&] { return thrown_by([&] { const Lock lock{pool, "k", 1min, brief}; }); }));
    for (auto& one : waiting) EXPECT_TRUE(is_transient(one.get()));
    EXPECT_GE(since(start), 1s);
    EXPECT_LT(since(start), 6s);
    server.resume();
    EXPECT_EQ(Raw{server}.get("k"), "another");
}

TEST(Outage, IsNoBusyLockForThoseWhoseTurnHasNotCome) {
    Server server;
    Raw raw{server};
    raw.set("k", "another");
    Pool pool{hurried(server, 200ms)};
    std::vector<std::future<std::error_code>> waiting;
    for (int i = 0; i < 5; ++i)
        waiting.push_back(std::async(std::launch::async, [&] {
            return thrown_by([&] { EXPECT_FALSE((Lock{pool, "k", 1min, 4s}.owns_lock())); });
        }));
    ASSERT_TRUE(is_armed(raw));
    server.pause();
    for (auto& one : waiting) EXPECT_TRUE(is_transient(one.get()));
    server.resume();
}

TEST(Outage, ThatIsOverIsForgotten) {
    Server server;
    Raw raw{server};
    raw.set("k", "another");
    Pool pool{hurried(server, 200ms)};
    std::vector<std::future<bool>> waiting;
    for (int i = 0; i < 5; ++i) waiting.push_back(wait_for_lock(pool, "k", {}));
    ASSERT_TRUE(is_armed(raw));
    server.pause();
    EXPECT_EQ(waiting.front().wait_for(2s), std::future_status::timeout);
    server.resume();
    raw.del("k");
    EXPECT_TRUE(all_got_it(waiting));
}

}  // namespace
