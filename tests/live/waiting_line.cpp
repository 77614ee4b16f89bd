// Waiting for a lock: told of its release by the server, in one line for each process, and no longer than asked.
#include "waiters.hpp"

#include <support/process.hpp>

#include <gtest/gtest.h>

#include <atomic>
#include <ctime>
#include <future>
#include <mutex>
#include <stop_token>
#include <thread>

namespace {

using namespace std::chrono_literals;
using namespace guards;
using hiredlock::Lock;
using hiredlock::Pool;
using hiredlock::PoolOptions;
using hiredlock::renew::Watchdog;
using support::Child;
using support::eventually;
using support::Lines;
using support::Monitor;
using support::Raw;
using support::Server;
using support::ServerOptions;

// --- The lock is handed over.

/// One of two processes that pass a lock to each other. The longest time from an unlock() until the other had it.
template <class Other>
std::chrono::milliseconds play_ping_pong(const Server& server, int rounds, int me, Other& other) {
    Pool pool{endpoint_of(server)};
    Lock lock{pool, "ball", 30s, std::defer_lock, only_when_told};
    std::chrono::milliseconds longest{0};
    if (me == 0) lock.lock();
    other.write_line("ready");
    other.read_line();
    for (int i = 0; i < rounds; ++i) {
        if (i % 2 == me) {
            other.read_line();
            const auto start = std::chrono::steady_clock::now();
            if (lock.unlock()) return 1h;
            if (!other.read_line()) return 1h;
            longest = std::max(longest, since(start));
        } else {
            other.write_line("I come");
            lock.lock();
            other.write_line("I have it");
        }
    }
    return longest;
}

TEST(HandOver, AThousandTimesBetweenTwoProcessesNeverPauses) {
    const Server server;
    const int rounds = scaled(1000);
    auto other = Child::fork([&](Lines& parent) { return play_ping_pong(server, rounds, 1, parent) < 1s ? 0 : 1; });
    EXPECT_LT(play_ping_pong(server, rounds, 0, other), 1s);
    EXPECT_EQ(other.wait(), 0);
}

TEST(HandOver, ToSomebodyWhoIsTold) {
    const Server server;
    Raw raw{server};
    Pool pool{endpoint_of(server)};
    const std::vector<std::vector<std::string>> ways = {
        {"DEL", "k"},
        {"UNLINK", "k"},
        {"GETDEL", "k"},
        {"RENAME", "k", "l"},
        {"PEXPIRE", "k", "0"},
        {"PEXPIRE", "k", "100"},
        {"EVAL", "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end", "1", "k", "another"},
        {"FLUSHDB"},
        {"FLUSHALL"},
        {"FLUSHALL", "ASYNC"},
    };
    for (const auto& way : ways) {
        raw.set("k", "another");
        auto waiting = wait_for_lock(pool, "k");
        ASSERT_TRUE(is_armed(raw)) << way.front();
        EXPECT_FALSE(raw(way).is_error()) << way.front();
        EXPECT_TRUE(waiting.get()) << way.front();
    }
}

TEST(HandOver, AtTheEndOfATtlDoesNotWaitUntilTheServerNotices) {
    ServerOptions options;
    options.config = {"enable-debug-command yes"};
    const Server server{options};
    Raw raw{server};
    ASSERT_TRUE(raw({"DEBUG", "SET-ACTIVE-EXPIRE", "0"}).is_ok());
    raw.set("k", "another", 1s);
    Pool pool{endpoint_of(server)};
    const auto start = std::chrono::steady_clock::now();
    EXPECT_TRUE(wait_for_lock(pool, "k").get());
    EXPECT_GE(since(start), 900ms);
    EXPECT_LT(since(start), 1s + slack);
}

TEST(HandOver, OfAKeyInAnotherDatabaseIsNoneOfOurs) {
    const Server server;
    Raw raw{server};
    raw.set("k", "another");
    Raw elsewhere{server};
    ASSERT_TRUE(elsewhere({"SELECT", "3"}).is_ok());
    elsewhere.set("k", "another");
    Pool pool{endpoint_of(server)};
    auto waiting = wait_for_lock(pool, "k");
    ASSERT_TRUE(is_armed(raw));
    elsewhere.del("k");
    EXPECT_EQ(waiting.wait_for(100ms), std::future_status::timeout);
    raw.del("k");
    EXPECT_TRUE(waiting.get());
}

// --- One line for each process.

/// A Pool that knows how many have joined its lines.
class CountingPool : public Pool {
public:
    using Pool::Pool;

    class Place {
    public:
        Place(CountingPool& pool, const std::string& key) : place_{pool.Pool::line(), key} { ++pool.joined; }
        bool wait_for_turn(const hiredlock::Patience& patience) { return place_.wait_for_turn(patience); }
        void wait(const hiredlock::Patience& patience) { place_.wait(patience); }
        auto outage() const { return place_.outage(); }
        void set_outage(decltype(std::declval<hiredlock::detail::Notifier::Place>().outage()) outage) { place_.set_outage(std::move(outage)); }

    private:
        hiredlock::detail::Notifier::Place place_;
    };
    struct Line {
        CountingPool& pool;
        bool is_waited_for(const std::string& key) const { return pool.Pool::line().is_waited_for(key); }
        Place join(const std::string& key) const { return Place{pool, key}; }
    };
    Line line() { return {*this}; }

    std::atomic<int> joined{0};
};

/// Threads that stand in a line for "k" one behind the other, and what became of them.
class Queue {
public:
    explicit Queue(const Server& server) : pool_{endpoint_of(server)} {}

    /// False where it did not come to stand there.
    template <class... Limit>
    bool add(Limit... limit) {
        const int number = pool_.joined;
        std::stop_source& stop = stops_.emplace_back();
        waiting_.push_back(std::async(std::launch::async, [this, number, token = stop.get_token(), limit...] {
            Lock lock{pool_, "k", 1min, std::defer_lock, only_when_told};
            const bool got = acquire(lock, token, limit...);
            if (!got) return false;
            const std::scoped_lock guard{mutex_};
            served_.push_back(number);
            return true;
        }));
        return eventually([&] { return pool_.joined == number + 1; }, 30s);
    }
    void cancel(std::size_t i) { stops_[i].request_stop(); }
    bool get(std::size_t i) { return waiting_[i].get(); }
    bool is_waiting(std::size_t i) { return waiting_[i].wait_for(20ms) == std::future_status::timeout; }
    std::vector<int> served() {
        const std::scoped_lock guard{mutex_};
        return served_;
    }

private:
    template <class L>
    static bool acquire(L& lock, const std::stop_token& token) {
        return lock.lock(token);
    }
    template <class L>
    static bool acquire(L& lock, const std::stop_token&, std::chrono::milliseconds limit) {
        return lock.try_lock_for(limit);
    }

    CountingPool pool_;
    std::mutex mutex_;
    std::vector<int> served_;
    std::deque<std::stop_source> stops_;
    std::vector<std::future<bool>> waiting_;
};

TEST(WaitingLine, ServesThoseOfAProcessInTheOrderInWhichTheyCame) {
    const Server server;
    Raw raw{server};
    raw.set("k", "another");
    Queue queue{server};
    std::vector<int> order;
    for (int i = 0; i < 8; ++i) {
        ASSERT_TRUE(queue.add());
        order.push_back(i);
    }
    raw.del("k");
    for (std::size_t i = 0; i < order.size(); ++i) EXPECT_TRUE(queue.get(i));
    EXPECT_EQ(queue.served(), order);
}

TEST(WaitingLine, IsLeftByWhoIsCancelledWithoutLossForTheOthers) {
    const Server server;
    Raw raw{server};
    for (const std::size_t leaver : {0U, 1U, 2U}) {
        raw.set("k", "another");
        Queue queue{server};
        for (int i = 0; i < 3; ++i) ASSERT_TRUE(queue.add());
        ASSERT_TRUE(is_armed(raw));
        const auto start = std::chrono::steady_clock::now();
        queue.cancel(leaver);
        EXPECT_FALSE(queue.get(leaver));
        EXPECT_LT(since(start), slack);
        for (std::size_t i = 0; i < 3; ++i) {
            if (i != leaver) {
                EXPECT_TRUE(queue.is_waiting(i));
            }
        }
        raw.del("k");
        for (std::size_t i = 0; i < 3; ++i) {
            if (i != leaver) {
                EXPECT_TRUE(queue.get(i)) << i << " behind or before " << leaver;
            }
        }
    }
}

TEST(WaitingLine, IsLeftAtALimitWithoutLossForTheOthers) {
    const Server server;
    Raw raw{server};
    for (const std::size_t leaver : {0U, 1U, 2U}) {
        raw.set("k", "another");
        Queue queue{server};
        for (std::size_t i = 0; i < 3; ++i) ASSERT_TRUE(i == leaver ? queue.add(1500ms) : queue.add());
        EXPECT_FALSE(queue.get(leaver));
        raw.del("k");
        for (std::size_t i = 0; i < 3; ++i) {
            if (i != leaver) {
                EXPECT_TRUE(queue.get(i)) << i << " behind or before " << leaver;
            }
        }
    }
}

TEST(WaitingLine, IsEmptiedByCancelsAtAnyMoment) {
    const Server server;
    Raw raw{server};
    Pool pool{endpoint_of(server)};
    std::atomic<int> wrong = 0, got = 0;
    {
        std::vector<std::jthread> running;
        for (int t = 0; t < 8; ++t)
            running.emplace_back([&, t] {
                const std::string key = t % 2 == 0 ? "a" : "b";
                for (int i = 0; i < scaled(400); ++i) {
                    std::stop_source stop;
                    std::jthread canceller{[&] {
                        std::this_thread::sleep_for(std::chrono::microseconds{i % 16 * 100});
                        stop.request_stop();
                    }};
                    Lock lock{pool, key, 1min, std::defer_lock, only_when_told};
                    const bool locked = lock.lock(stop.get_token());
                    got += locked ? 1 : 0;
                    if (locked != lock.owns_lock()) ++wrong;
                }
            });
    }
    EXPECT_EQ(wrong, 0);
    EXPECT_TRUE(eventually([&] { return !raw.exists("a") && !raw.exists("b"); }));
    EXPECT_GT(got, 0);
    EXPECT_TRUE(wait_for_lock(pool, "a").get());
}

/// A process with many that wait for "k". Its exit status is 0 when all of them got it.
int wait_together(const Server& server, int threads) {
    Pool pool{endpoint_of(server)};
    std::vector<std::future<bool>> waiting;
    waiting.push_back(wait_for_lock(pool, "k"));
    if (!eventually([&] { return pool.line().is_waited_for("k"); }, 20s)) return 1;
    for (int t = 1; t < threads; ++t) waiting.push_back(wait_for_lock(pool, "k"));
    return all_got_it(waiting) ? 0 : 2;
}

TEST(WaitingLine, AsksTheServerOnceForEachProcessAndNotForEachThread) {
    const Server server;
    Raw raw{server};
    raw.set("k", "another");
    constexpr std::size_t processes = 3, rounds = 5;
    std::vector<Child> running;
    for (std::size_t p = 0; p < processes; ++p) running.push_back(Child::fork([&](Lines&) { return wait_together(server, 5); }));
    ASSERT_TRUE(is_armed(raw, processes));
    Monitor monitor{server};
    for (std::size_t round = 1; round <= rounds; ++round) {
        // Gone, and another's again before anybody can ask.
        raw({"MULTI"});
        raw({"DEL", "k"});
        raw({"SET", "k", "yet another"});
        raw({"EXEC"});
        ASSERT_TRUE(eventually([&] { return monitor.count(acquires("k")) >= round * processes; }, 30s));
        ASSERT_TRUE(is_armed(raw, processes));
    }
    EXPECT_EQ(monitor.count(acquires("k")), rounds * processes);
    raw.del("k");
    for (auto& process : running) EXPECT_EQ(process.wait(1min), 0);
}

TEST(WaitingLine, OfManyProcessesServesEveryone) {
    const Server server;
    constexpr int processes = 10, threads = 5;
    const int times = is_sanitized ? 1 : 4;
    std::vector<Child> running;
    for (int p = 0; p < processes; ++p)
        running.push_back(Child::fork([&](Lines&) {
            Pool pool{endpoint_of(server)};
            std::atomic<int> served = 0;
            {
                std::vector<std::jthread> waiting;
                for (int t = 0; t < threads; ++t)
                    waiting.emplace_back([&] {
                        for (int i = 0; i < times; ++i) {
                            const Lock lock{pool, "k", 1min, 1min, only_when_told};
                            served += lock.owns_lock() ? 1 : 0;
                            std::this_thread::sleep_for(1ms);
                        }
                    });
            }
            return served == threads * times ? 0 : 1;
        }));
    for (auto& process : running) EXPECT_EQ(process.wait(2min), 0);
}

TEST(WaitingLine, IsNotDisturbedBeyondMeasureByRenewals) {
    const Server server;
    Raw raw{server};
    Pool holding{endpoint_of(server)}, pool{endpoint_of(server)};
    Lock holder{holding, "k", 2s, Watchdog{.interval = 50ms}};
    std::vector<std::future<bool>> waiting;
    waiting.push_back(wait_for_lock(pool, "k"));
    ASSERT_TRUE(is_armed(raw));
    for (int i = 1; i < 20; ++i) waiting.push_back(wait_for_lock(pool, "k"));
    Monitor monitor{server};
    ASSERT_TRUE(eventually([&] { return monitor.count(extends("k")) >= 30; }, 30s));
    // Each renewal is told of once, and is told of again only to who has looked again.
    const std::size_t asked = monitor.count(acquires("k"));
    EXPECT_GE(asked, 5U);
    EXPECT_LE(asked, monitor.count(extends("k")) + 5);
    EXPECT_FALSE(holder.unlock());
    EXPECT_TRUE(all_got_it(waiting));
}

TEST(WaitingLine, CostsNextToNothingWhileNothingHappens) {
    const Server server;
    Raw{server}.set("k", "another");
    const auto wait_idly = [&] {
        Pool pool{endpoint_of(server)};
        std::vector<std::future<bool>> waiting;
        for (int i = 0; i < 10; ++i)
            waiting.push_back(std::async(std::launch::async, [&] { return Lock{pool, "k", 1min, 4s}.owns_lock(); }));
        if (!eventually([&] { return pool.line().is_waited_for("k"); }, 3s)) return 1;
        const std::clock_t before = std::clock();
        if (all_got_it(waiting)) return 2;
        const auto used = std::chrono::milliseconds{1000 * (std::clock() - before) / CLOCKS_PER_SEC};
        return used < (is_sanitized ? 2000ms : 200ms) ? 0 : 3;
    };
    EXPECT_EQ(support::run_in_child(wait_idly), 0);
}

// --- Connections.

TEST(Waiters, OfTwoHundredKeysNeedTwoConnectionsBesideThoseOfThePool) {
    ServerOptions options;
    options.config = {"maxclients 20"};
    const Server server{options};
    Raw raw{server};
    PoolOptions four;
    four.size = 4;
    Pool pool{endpoint_of(server), four};
    std::vector<std::future<bool>> waiting;
    for (int i = 0; i < 200; ++i) {
        const std::string key = std::to_string(i);
        raw.set(key, "another");
        waiting.push_back(wait_for_lock(pool, key));
    }
    ASSERT_TRUE(is_armed(raw, 200));
    EXPECT_LE(clients(raw).size(), 6U);
    EXPECT_EQ(subscribers(raw).size(), 1U);
    EXPECT_EQ(trackers(raw).size(), 1U);
    raw({"FLUSHALL"});
    EXPECT_TRUE(all_got_it(waiting));
    EXPECT_LE(clients(raw).size(), 6U);
}

TEST(Waiters, KeepTheirConnectionsForTenSecondsAndNotForEver) {
    const Server server;
    Raw raw{server};
    raw.set("k", "another");
    Pool pool{endpoint_of(server)};
    auto waiting = wait_for_lock(pool, "k");
    ASSERT_TRUE(is_armed(raw));
    raw.del("k");
    EXPECT_TRUE(waiting.get());
    const auto start = std::chrono::steady_clock::now();
    EXPECT_EQ(subscribers(raw).size() + trackers(raw).size(), 2U);
    EXPECT_TRUE(eventually([&] { return subscribers(raw).empty() && trackers(raw).empty(); }, 25s));
    EXPECT_GE(since(start), 8s);
    raw.set("k", "another");
    auto again = wait_for_lock(pool, "k");
    ASSERT_TRUE(is_armed(raw));
    raw.del("k");
    EXPECT_TRUE(again.get());
}

// --- Limits.

TEST(WaitLimit, OfZeroIsExactlyOneAttempt) {
    const Server server;
    Raw{server}.set("k", "another");
    Pool pool{endpoint_of(server)};
    ASSERT_FALSE(pool.ping());
    Monitor monitor{server};
    Lock lock{pool, "k", 1min, std::defer_lock};
    EXPECT_FALSE(lock.try_lock_for(0s));
    EXPECT_EQ(said_by_clients(monitor).size(), 1U);
    EXPECT_EQ(monitor.count(acquires("k")), 1U);
}

TEST(WaitLimit, IsUsedInFullAndTheLastAttemptIsMadeAtItsEnd) {
    const Server server;
    Raw{server}.set("k", "another");
    Pool pool{endpoint_of(server)};
    for (const auto limit : {200ms, 1500ms}) {
        Monitor monitor{server};
        Lock lock{pool, "k", 1min, std::defer_lock, only_when_told};
        const auto start = std::chrono::steady_clock::now();
        EXPECT_FALSE(lock.try_lock_for(limit));
        EXPECT_GE(since(start), limit - 5ms);
        EXPECT_LT(since(start), limit + slack);
        std::vector<std::chrono::microseconds> asked;
        for (const auto& command : monitor.commands())
            if (is_acquire(command, "k")) asked.push_back(command.time);
        ASSERT_GE(asked.size(), 2U);
        EXPECT_LE(asked.size(), 5U);
        EXPECT_GE(asked.back() - asked.front(), limit * 9 / 10 - 20ms);
    }
}

TEST(WaitLimit, LeavesTheLockToOthers) {
    const Server server;
    Raw raw{server};
    raw.set("k", "another");
    Pool pool{endpoint_of(server)};
    for (int i = 0; i < 20; ++i) {
        std::error_code error;
        Lock lock{pool, "k", 1min, std::defer_lock};
        EXPECT_FALSE(lock.try_lock_for(std::chrono::milliseconds{i}, error));
        EXPECT_TRUE(!error || error == hiredlock::Errc::timed_out) << error.message();  // where the machine was too busy for that
    }
    EXPECT_EQ(raw.get("k"), "another");
    raw.del("k");
    EXPECT_TRUE(wait_for_lock(pool, "k").get());
    EXPECT_FALSE(raw.exists("k"));
}

}  // namespace
