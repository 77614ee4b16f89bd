// A release whose answer nobody waits for.
#include "guards.hpp"

#include <support/eventually.hpp>

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <thread>

namespace {

using namespace std::chrono_literals;
using namespace guards;
using hiredlock::Cas;
using hiredlock::Connection;
using hiredlock::Errc;
using hiredlock::Lock;
using hiredlock::Pool;
using hiredlock::unlocking::Deferred;
using support::eventually;
using support::Monitor;
using support::Raw;
using support::Server;

TEST(Deferred, ReleasesTheLock) {
    const Server server;
    Raw raw{server};
    Pool pool{endpoint_of(server)};
    for (int i = 0; i < 50; ++i) {
        Lock lock{pool, "k", 60s, Deferred{}};
        EXPECT_EQ(raw.get("k"), lock.token());
        EXPECT_EQ(lock.unlock(), std::error_code{});
        EXPECT_FALSE(lock.owns_lock());
        EXPECT_EQ(lock.unlock(), Errc::not_held);
        EXPECT_TRUE(eventually([&] { return !raw.exists("k"); }));
    }
}

TEST(Deferred, DoesNotWaitForTheServer) {
    Server server;
    Pool pool{hurried(server, 20s)};
    { const Lock first{pool, "first", 60s, Deferred{}}; }
    {
        Lock lock{pool, "k", 60s, Deferred{}};
        server.pause();
        const auto start = std::chrono::steady_clock::now();
        EXPECT_EQ(lock.unlock(), std::error_code{});
        EXPECT_LT(since(start), 10s);
    }
    server.resume();
    Raw raw{server};
    EXPECT_TRUE(eventually([&] { return !raw.exists("k"); }));
}

TEST(Deferred, SendsOneCommandThatNeedsNoSecond) {
    const Server server;
    Pool pool{endpoint_of(server)};
    const Cas cas = pool.cas();
    { const Lock first{pool, "first", 60s, Deferred{}}; }
    Raw{server}({"SCRIPT", "FLUSH"});
    Monitor monitor{server};
    { const Lock lock{pool, "k", 60s, Deferred{}}; }
    ASSERT_FALSE(pool.ping());
    const auto said = said_by_clients(monitor);
    ASSERT_EQ(said.size(), 3U);
    EXPECT_EQ(said[0].at(0), "SET");
    EXPECT_EQ(said[1].at(0), cas == Cas::delex ? "DELEX" : cas == Cas::delifeq ? "DELIFEQ" : "EVAL");
    EXPECT_EQ(said[2].at(0), "PING");
    EXPECT_FALSE(Raw{server}.exists("k"));
}

TEST(Deferred, LeavesTheNextCommandsTheirOwnAnswers) {
    const Server server;
    Raw raw{server};
    raw.set("busy", "somebody");
    Connection connection{endpoint_of(server)};
    for (int i = 0; i < 30; ++i) {
        { const Lock lock{connection, "k", 60s, Deferred{}}; }
        { const Lock lock{connection, "l", 60s, Deferred{}}; }
        Lock busy{connection, "busy", 60s, std::try_to_lock, Deferred{}};
        EXPECT_FALSE(busy.owns_lock());
        Lock own{connection, "own", 60s, std::try_to_lock, Deferred{}};
        EXPECT_TRUE(own.owns_lock());
        EXPECT_TRUE(own.extend(90s));
        EXPECT_EQ(raw.get("own"), own.token());
    }
    EXPECT_FALSE(connection.ping());
    EXPECT_EQ(raw.number({"DBSIZE"}), 1);
}

TEST(Deferred, LeavesANewHolderAlone) {
    const Server server;
    Raw raw{server};
    Pool pool{endpoint_of(server)};
    { const Lock first{pool, "first", 60s, Deferred{}}; }
    {
        const Lock lock{pool, "k", 60s, Deferred{}};
        raw.set("k", "thief", 60s);
    }
    EXPECT_FALSE(pool.ping());
    EXPECT_EQ(raw.get("k"), "thief");
}

TEST(Deferred, ThatTheServerRefusedIsToldToTheHookWithTheNextCommand) {
    const Server server;
    Raw raw{server};
    std::vector<std::error_code> heard;
    Connection connection{endpoint_of(server), [&heard](const hiredlock::Error& error) { heard.push_back(error.code()); }};
    { const Lock first{connection, "first", 60s, Deferred{}}; }
    {
        const Lock lock{connection, "k", 60s, Deferred{}};
        raw.del("k");
        raw({"LPUSH", "k", "a"});
    }
    EXPECT_FALSE(connection.ping());
    EXPECT_EQ(heard, std::vector<std::error_code>{Errc::wrong_type});
    EXPECT_FALSE(connection.ping());
    EXPECT_EQ(heard.size(), 1U);
    EXPECT_EQ(raw.number({"LLEN", "k"}), 1);
}

TEST(Deferred, WhoseConnectionBrokeBeforeTheAnswerIsToldToTheHook) {
    Server server;
    std::vector<std::error_code> heard;
    Connection connection{endpoint_of(server), [&heard](const hiredlock::Error& error) { heard.push_back(error.code()); }};
    { const Lock first{connection, "first", 60s, Deferred{}}; }
    {
        const Lock lock{connection, "k", 60s, Deferred{}};
        server.pause();
    }
    server.kill();
    EXPECT_TRUE(connection.ping());
    EXPECT_EQ(heard.size(), 1U);
    server.start();
    EXPECT_FALSE(connection.ping());
    EXPECT_EQ(heard.size(), 1U);
}

TEST(Deferred, OfManyThreadsOfOnePoolCountsRight) {
    const Server server;
    Pool pool{endpoint_of(server)};
    std::atomic<int> counter = 0;  // read, then written: only the lock keeps updates from being lost (a race that is not ThreadSanitizer's to see)
    {
        std::vector<std::jthread> running;
        for (int t = 0; t < 4; ++t)
            running.emplace_back([&] {
                for (int i = 0; i < 20; ++i) {
                    const Lock lock{pool, "counter", 30s, Deferred{}};
                    const int seen = counter;
                    std::this_thread::yield();
                    counter = seen + 1;
                }
            });
    }
    EXPECT_EQ(counter, 80);
}

}  // namespace
