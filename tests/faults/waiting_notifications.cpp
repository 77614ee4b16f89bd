// A waiter whose notifications are late, lost, cut off or refused gets the lock all the same.
#include <live/waiters.hpp>

#include <support/process.hpp>

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>

namespace {

using namespace std::chrono_literals;
using namespace guards;
using hiredlock::Lock;
using hiredlock::Pool;
using hiredlock::PoolOptions;
using support::Child;
using support::Direction;
using support::eventually;
using support::Lines;
using support::Monitor;
using support::Proxy;
using support::Raw;
using support::Server;
using support::ServerOptions;

/// A place in the conversation of a waiter with the server: the traffic stops with the chunk that has these bytes.
struct Window {
    const char* name;
    Direction direction;
    const char* bytes;
};

void PrintTo(const Window& window, std::ostream* out) { *out << window.name; }

class ReleaseIn : public testing::TestWithParam<Window> {};

TEST_P(ReleaseIn, TheMiddleOfArmingIsNotMissed) {
    const Window window = GetParam();
    const Server server;
    Raw raw{server};
    raw.set("k", "another");
    Proxy proxy{server};
    hiredlock::Endpoint endpoint = hurried(proxy, 30s);
    Pool pool{endpoint};
    ASSERT_FALSE(pool.ping());
    proxy.hold_when(window.direction, window.bytes);
    auto waiting = wait_for_lock(pool, "k");
    ASSERT_TRUE(eventually([&] { return proxy.held(window.direction) > 0; }, 30s));
    raw.del("k");
    proxy.release(window.direction);
    EXPECT_TRUE(waiting.get());
}

INSTANTIATE_TEST_SUITE_P(Waiter, ReleaseIn,
                         testing::Values(Window{"TheFirstQuestion", Direction::to_server, "$2\r\nNX\r\n"},
                                         Window{"TheFirstAnswer", Direction::to_client, "$-1\r\n"},
                                         Window{"TheSubscription", Direction::to_server, "SUBSCRIBE"},
                                         Window{"TheConfirmedSubscription", Direction::to_client, "$9\r\nsubscribe"},
                                         Window{"TheTracking", Direction::to_server, "TRACKING"},
                                         Window{"TheQuestionAndTheLook", Direction::to_server, "PTTL"},
                                         Window{"TheAnswerAndWhatWasSeen", Direction::to_client, "$-1\r\n:-1\r\n"}),
                         [](const auto& one) { return std::string{one.param.name}; });

TEST(Notification, ThatIsLateIsNotMissed) {
    const Server server;
    Raw raw{server};
    raw.set("k", "another");
    Proxy proxy{server};
    Pool pool{hurried(proxy, 30s)};
    auto waiting = wait_for_lock(pool, "k");
    ASSERT_TRUE(is_armed(raw));
    proxy.hold_when(Direction::to_client, "$7\r\nmessage");
    raw.del("k");
    ASSERT_TRUE(eventually([&] { return proxy.held(Direction::to_client) > 0; }, 30s));
    EXPECT_EQ(waiting.wait_for(20ms), std::future_status::timeout);
    proxy.release(Direction::to_client);
    EXPECT_TRUE(waiting.get());
}

TEST(Notification, ThatIsLostInAHalfOpenConnectionCostsNoMoreThanTheSilenceThatIsBorne) {
    const Server server;
    Raw raw{server};
    raw.set("k", "another");
    Proxy proxy{server};
    Pool pool{endpoint_of(proxy)};
    auto waiting = wait_for_lock(pool, "k");
    ASSERT_TRUE(is_armed(raw));
    proxy.swallow_when(Direction::to_client, "$7\r\nmessage");
    raw.del("k");
    EXPECT_TRUE(waiting.get());
}

TEST(Notification, ThatNobodySeesCostsAPoll) {
    const Server server;
    Raw raw{server};
    raw.set("k", "another");
    Pool pool{endpoint_of(server)};
    auto waiting = wait_for_lock(pool, "k", {.poll = 500ms});
    ASSERT_TRUE(is_armed(raw));
    // The key's reader is gone, and with it what the server knows of it; the connection that is listened to lives.
    const auto readers = trackers(raw);
    ASSERT_EQ(readers.size(), 1U);
    raw({"CLIENT", "KILL", "ID", readers.front()});
    raw.del("k");
    EXPECT_TRUE(waiting.get());
}

TEST(Notification, OfAReaderThatWasReplacedIsArmedAnewForAllWhoWait) {
    const Server server;
    Raw raw{server};
    Pool pool{endpoint_of(server)};
    std::vector<std::future<bool>> waiting;
    for (const char* key : {"a", "b", "c"}) {
        raw.set(key, "another");
        waiting.push_back(wait_for_lock(pool, key));
    }
    ASSERT_TRUE(is_armed(raw, 3));
    raw({"CLIENT", "KILL", "ID", trackers(raw).at(0)});
    const Monitor monitor{server};
    raw.set("d", "another");
    waiting.push_back(wait_for_lock(pool, "d"));  // finds out
    for (const char* key : {"a", "b", "c", "d"}) ASSERT_TRUE(monitor.wait_for(looks(key), 30s)) << key;
    raw({"FLUSHALL"});
    EXPECT_TRUE(all_got_it(waiting));
}

TEST(NotificationConnection, ThatIsKilledIsReplacedAtOnce) {
    const Server server;
    Raw raw{server};
    Pool pool{endpoint_of(server)};
    std::vector<std::future<bool>> waiting;
    for (const char* key : {"a", "b", "c"}) {
        raw.set(key, "another");
        waiting.push_back(wait_for_lock(pool, key));
    }
    ASSERT_TRUE(is_armed(raw, 3));
    for (int i = 0; i < 5; ++i) {
        const auto before = subscribers(raw);
        ASSERT_EQ(before.size(), 1U);
        const Monitor monitor{server};
        raw({"CLIENT", "KILL", "ID", before.front()});
        for (const char* key : {"a", "b", "c"}) ASSERT_TRUE(monitor.wait_for(looks(key), 30s)) << key;
        ASSERT_EQ(subscribers(raw).size(), 1U);
        ASSERT_NE(subscribers(raw), before);
    }
    raw({"FLUSHALL"});
    EXPECT_TRUE(all_got_it(waiting));
}

TEST(NotificationConnection, ThatIsKilledTogetherWithTheReleaseLosesNothing) {
    const Server server;
    Raw raw{server};
    Pool pool{endpoint_of(server)};
    for (int i = 0; i < scaled(100); ++i) {
        raw.set("k", "another");
        auto waiting = wait_for_lock(pool, "k");
        ASSERT_TRUE(is_armed(raw));
        ASSERT_TRUE(eventually([&] { return subscribers(raw).size() == 1; }, 30s));
        const auto ids = subscribers(raw);
        raw({"MULTI"});
        raw({"CLIENT", "KILL", "ID", ids.front()});
        raw({"DEL", "k"});
        raw({"EXEC"});
        ASSERT_TRUE(waiting.get());
    }
}

TEST(NotificationConnection, ThatCannotBeHadIsDoneWithout) {
    ServerOptions options;
    options.config = {"maxclients 3"};
    const Server server{options};
    Raw raw{server};
    raw.set("k", "another");
    PoolOptions one;
    one.size = 1;
    std::atomic<int> reported = 0;
    one.on_error = [&](const hiredlock::Error&) { ++reported; };
    Pool pool{endpoint_of(server), one};
    // One for this test, one for the Pool's commands, and one where two are needed.
    auto waiting = wait_for_lock(pool, "k");
    ASSERT_TRUE(eventually([&] { return raw.number({"EVAL", "return tonumber(string.match(redis.call('INFO', 'stats'), 'rejected_connections:(%d+)'))", "0"}) > 0; }, 30s));
    EXPECT_EQ(waiting.wait_for(20ms), std::future_status::timeout);
    raw.del("k");
    EXPECT_TRUE(waiting.get());
    EXPECT_EQ(reported, 0);
}

class WithoutTheRightTo : public testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(WithoutTheRightTo, AWaiterAsksFromTimeToTimeInSilence) {
    ServerOptions options;
    options.config = {std::string{"user bob on >pw ~* "} + GetParam().second};
    const Server server{options};
    Raw raw{server};
    raw.set("k", "another");
    hiredlock::Endpoint bob = endpoint_of(server);
    bob.username = "bob";
    bob.password = "pw";
    std::atomic<int> reported = 0;
    PoolOptions hooked;
    hooked.on_error = [&](const hiredlock::Error&) { ++reported; };
    Pool pool{bob, hooked};
    Monitor monitor{server};
    Lock lock{pool, "k", 1min, std::defer_lock};
    EXPECT_FALSE(lock.try_lock_for(1s));
    EXPECT_GE(monitor.count(acquires("k")), 3U);
    EXPECT_LE(monitor.count(acquires("k")), 300U);
    auto waiting = wait_for_lock(pool, "k", {});
    ASSERT_TRUE(eventually([&] { return pool.line().is_waited_for("k"); }, 30s));
    raw.del("k");
    EXPECT_TRUE(waiting.get());
    EXPECT_EQ(reported, 0);
}

INSTANTIATE_TEST_SUITE_P(Waiter, WithoutTheRightTo,
                         testing::Values(std::pair{"Channels", "resetchannels +@all"}, std::pair{"Subscribe", "&* +@all -subscribe"},
                                         std::pair{"Track", "&* +@all -client|tracking"}, std::pair{"KnowItsId", "&* +@all -client|id"},
                                         std::pair{"Look", "&* +@all -pttl"}),
                         [](const auto& one) { return std::string{one.param.first}; });

TEST(ServerRestart, IsSurvivedByAllWhoWait) {
    Server server;
    std::vector<std::future<bool>> waiting;
    Pool pool{endpoint_of(server)};
    {
        Raw raw{server};
        for (int i = 0; i < 12; ++i) {
            const std::string key = std::to_string(i % 4);
            raw.set(key, "another");
            waiting.push_back(wait_for_lock(pool, key));
        }
        ASSERT_TRUE(is_armed(raw, 4));
    }
    server.kill();
    server.start();  // and nothing is there any more
    EXPECT_TRUE(all_got_it(waiting));
}

TEST(Fork, OfAProcessWhoseThreadsWaitGivesAChildThatCanWaitToo) {
    if (!guards::follows_threads_after_fork) GTEST_SKIP() << "ThreadSanitizer cannot follow it";
    const Server server;
    Raw raw{server};
    raw.set("k", "another");
    Pool pool{endpoint_of(server)};
    std::vector<std::future<bool>> waiting;
    for (int i = 0; i < 3; ++i) waiting.push_back(wait_for_lock(pool, "k"));
    ASSERT_TRUE(is_armed(raw));
    const auto in_child = [&] {
        if (Lock{pool, "k", 1min, 200ms}.owns_lock()) return 1;
        Lock own{pool, "own", 1min};
        auto next = wait_for_lock(pool, "own");
        if (!eventually([&] { return pool.line().is_waited_for("own"); }, 10s)) return 2;
        if (own.unlock()) return 3;
        return next.get() ? 0 : 4;
    };
    EXPECT_EQ(support::run_in_child(in_child, 30s, support::Leave::by_exit), 0);
    raw.del("k");
    EXPECT_TRUE(all_got_it(waiting));
}

TEST(Waiters, UnderEveryKindOfTroubleLoseNoUpdate) {
    const Server server;
    Pool pool{endpoint_of(server)};
    constexpr int threads = 16, keys = 3;
    std::atomic<int> counters[keys] = {};  // read, then written: only the locks keep updates from being lost
    std::atomic<int> counted[keys] = {};
    std::atomic<bool> over = false;
    std::jthread trouble{[&] {
        Raw raw{server};
        for (int i = 0; !over; ++i) {
            const auto ids = i % 2 == 0 ? subscribers(raw) : trackers(raw);
            if (!ids.empty()) raw({"CLIENT", "KILL", "ID", ids.front()});
            std::this_thread::sleep_for(7ms);
        }
    }};
    {
        std::vector<std::jthread> running;
        for (int t = 0; t < threads; ++t)
            running.emplace_back([&, t] {
                for (int i = 0; i < scaled(400); ++i) {
                    const auto which = static_cast<std::size_t>((t + i) % keys);
                    Lock lock{pool, std::to_string(which), 1min, std::defer_lock};
                    std::error_code error;
                    if (i % 5 == 0 ? !lock.try_lock_for(std::chrono::milliseconds{i % 20}, error) : !lock.try_lock_for(1min, error)) continue;
                    const int seen = counters[which];
                    std::this_thread::yield();
                    counters[which] = seen + 1;
                    ++counted[which];
                }
            });
    }
    over = true;
    for (std::size_t k = 0; k < keys; ++k) {
        EXPECT_EQ(counters[k], counted[k]);
        EXPECT_GT(counters[k], 0);
    }
}

}  // namespace
