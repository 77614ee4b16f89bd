// Many that want one lock: threads, processes, and processes that are killed while they hold it.
#include "guards.hpp"

#include <support/eventually.hpp>
#include <support/process.hpp>

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <stop_token>
#include <thread>

#include <sys/mman.h>
#include <unistd.h>

namespace {

using namespace std::chrono_literals;
using namespace guards;
using hiredlock::Clock;
using hiredlock::Connection;
using hiredlock::Errc;
using hiredlock::Lock;
using hiredlock::Pool;
using support::eventually;
using support::Monitor;
using support::Raw;
using support::Server;

/// A T that this process and those forked from it share.
template <class T>
class Shared {
public:
    Shared() : at_{::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)} {
        if (at_ == MAP_FAILED) throw std::bad_alloc{};
        new (at_) T{};
    }
    Shared(const Shared&) = delete;
    Shared& operator=(const Shared&) = delete;
    ~Shared() { ::munmap(at_, sizeof(T)); }

    T& operator*() const noexcept { return *static_cast<T*>(at_); }
    T* operator->() const noexcept { return static_cast<T*>(at_); }

private:
    void* at_;
};

TEST(Contention, OfThreadsCountsRight) {
    const Server server;
    Pool pool{endpoint_of(server)};
    constexpr int threads = 8, each = 20;
    std::atomic<int> counter = 0;  // read, then written: only the lock keeps updates from being lost (a race that is not ThreadSanitizer's to see)
    {
        std::vector<std::jthread> running;
        for (int t = 0; t < threads; ++t)
            running.emplace_back([&] {
                for (int i = 0; i < each; ++i) {
                    const Lock lock{pool, "counter", 30s};
                    const int seen = counter;
                    std::this_thread::yield();
                    counter = seen + 1;
                }
            });
    }
    EXPECT_EQ(counter, threads * each);
    EXPECT_FALSE(Raw{server}.exists("counter"));
}

TEST(Contention, OfProcessesCountsRight) {
    const Server server;
    const Shared<volatile int> counter;
    constexpr int processes = 4, each = 30;
    std::vector<support::Child> running;
    for (int p = 0; p < processes; ++p)
        running.push_back(support::Child::fork([&](support::Lines&) {
            Connection own{endpoint_of(server)};
            for (int i = 0; i < each; ++i) {
                const Lock lock{own, "counter", 30s};
                const int seen = *counter;
                std::this_thread::yield();
                *counter = seen + 1;
            }
            return 0;
        }));
    for (auto& process : running) EXPECT_EQ(process.wait(60s), 0);
    EXPECT_EQ(*counter, processes * each);
}

/// What processes write down while they hold the lock.
struct Section {
    std::atomic<Clock::rep> held_until{0};  ///< the lease of whoever is inside; 0: nobody
    std::atomic<int> entered{0};
    std::atomic<int> overlapped{0};
};

/// Enters, and finds out whether the one before is inside still and has the right to be.
int hold_again_and_again(const Server& server, Section& section, std::chrono::milliseconds ttl) {
    Pool pool{endpoint_of(server)};
    for (;;) {
        const Lock lock{pool, "section", ttl};
        const auto mine = lock.expires_at().time_since_epoch().count();
        const auto now = Clock::now();
        if (now >= lock.expires_at()) continue;
        const auto before = section.held_until.exchange(mine);
        if (now.time_since_epoch().count() < before) ++section.overlapped;
        ++section.entered;
        std::this_thread::sleep_for(1ms);
        auto expected = mine;
        section.held_until.compare_exchange_strong(expected, 0);
    }
    return 0;
}

TEST(Contention, OfProcessesThatAreKilledNeverLetsTwoIn) {
    const Server server;
    const Shared<Section> section;
    const auto start_one = [&] { return support::Child::fork([&](support::Lines&) { return hold_again_and_again(server, *section, 250ms); }); };
    std::vector<support::Child> running;
    for (int i = 0; i < 3; ++i) running.push_back(start_one());
    for (int round = 0; round < 6; ++round) {
        const int before = section->entered;
        ASSERT_TRUE(eventually([&] { return section->entered > before + 3; }, 30s));
        auto& victim = running[static_cast<std::size_t>(round) % running.size()];
        victim.kill();
        victim = start_one();
    }
    EXPECT_EQ(section->overlapped, 0);
    EXPECT_GT(section->entered, 20);
}

TEST(Contention, AKilledHoldersLockIsFreeAtTheEndOfItsTtlAndNotBefore) {
    const Server server;
    Raw raw{server};
    auto holder = support::Child::fork([&](support::Lines& parent) {
        Pool own{endpoint_of(server)};
        const Lock lock{own, "k", 500ms};
        parent.write_line("held");
        parent.read_line(1min);
        return 0;
    });
    ASSERT_EQ(holder.read_line(), "held");
    holder.kill();
    const auto left = raw.pttl("k");
    Pool pool{endpoint_of(server)};
    const auto start = std::chrono::steady_clock::now();
    const Lock lock{pool, "k", 10s, 20s};
    EXPECT_TRUE(lock.owns_lock());
    EXPECT_GE(since(start), std::chrono::milliseconds{left} - 5ms);
    EXPECT_LT(since(start), 10s);
}

TEST(Contention, AWaiterGetsTheLockSoonAfterItsRelease) {
    const Server server;
    Pool pool{endpoint_of(server)};
    Lock holder{pool, "k", 60s};
    auto waiting = std::async(std::launch::async, [&] { return Lock{pool, "k", 60s, 30s}.owns_lock(); });
    EXPECT_EQ(waiting.wait_for(50ms), std::future_status::timeout);
    EXPECT_FALSE(holder.unlock());
    const auto start = std::chrono::steady_clock::now();
    EXPECT_TRUE(waiting.get());
    EXPECT_LT(since(start), 5s);
}

TEST(Contention, SixteenThreadsOfOnePoolEachGetTheirOwnAnswers) {
    const Server server;
    hiredlock::PoolOptions options;
    options.size = 4;
    Pool pool{endpoint_of(server), options};
    Raw{server}.set("busy", "somebody");
    std::atomic<int> wrong = 0;
    {
        std::vector<std::jthread> running;
        for (int t = 0; t < 16; ++t)
            running.emplace_back([&, t] {
                Raw raw{server};
                const std::string key = std::to_string(t);
                Lock own{pool, key, 60s, std::defer_lock};
                Lock busy{pool, "busy", 60s, std::defer_lock};
                for (int i = 0; i < scaled(200); ++i) {
                    if (!own.try_lock()) ++wrong;
                    if (raw.get(key) != own.token()) ++wrong;
                    if (busy.try_lock()) ++wrong;
                    if (!own.extend(90s)) ++wrong;
                    if (own.unlock()) ++wrong;
                    if (own.unlock() != Errc::not_held) ++wrong;
                    if (raw.exists(key)) ++wrong;
                }
            });
    }
    EXPECT_EQ(wrong, 0);
    EXPECT_EQ(Raw{server}.number({"DBSIZE"}), 1);
}

TEST(Contention, APoolOfOneConnectionServesManyThreads) {
    const Server server;
    hiredlock::PoolOptions options;
    options.size = 1;
    Pool pool{endpoint_of(server), options};
    std::atomic<int> locked = 0;
    {
        std::vector<std::jthread> running;
        for (int t = 0; t < 8; ++t)
            running.emplace_back([&, t] {
                for (int i = 0; i < 20; ++i) locked += Lock{pool, std::to_string(t), 60s, std::try_to_lock}.owns_lock() ? 1 : 0;
            });
    }
    EXPECT_EQ(locked, 160);
}

TEST(Pool, UsesNoMoreConnectionsForCommandsThanItsSize) {
    const Server server;
    const support::Proxy proxy{server};
    hiredlock::PoolOptions options;
    options.size = 3;
    Pool pool{endpoint_of(proxy), options};
    EXPECT_EQ(proxy.accepted(), 0U);  // it connects when it is used
    {
        std::vector<std::jthread> running;
        for (int t = 0; t < 8; ++t)
            running.emplace_back([&, t] {
                for (int i = 0; i < 20; ++i) const Lock lock{pool, std::to_string(t), 60s};
            });
    }
    EXPECT_GE(proxy.accepted(), 1U);
    EXPECT_LE(proxy.accepted(), 3U);
}

TEST(Pool, WithAllConnectionsInUseSaysSoInTime) {
    Server server;
    hiredlock::PoolOptions options;
    options.size = 1;
    Pool pool{hurried(server, 250ms), options};
    ASSERT_FALSE(pool.ping());
    server.pause();
    std::vector<std::future<std::error_code>> asking;
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < 3; ++i) asking.push_back(std::async(std::launch::async, [&] { return pool.ping(); }));
    for (auto& one : asking) EXPECT_EQ(one.get(), Errc::timed_out);
    EXPECT_LT(since(start), 3s);
    server.resume();
    EXPECT_FALSE(pool.ping());
}

TEST(Cancel, EndsAWaitWithFalseAndLeavesNothingBehind) {
    const Server server;
    Raw raw{server};
    raw.set("k", "somebody");
    Pool pool{endpoint_of(server)};
    Lock lock{pool, "k", 60s, std::defer_lock};
    Monitor monitor{server};
    std::stop_source stop;
    auto waiting = std::async(std::launch::async, [&] { return lock.lock(stop.get_token()); });
    ASSERT_TRUE(monitor.wait_for(acquires("k")));
    EXPECT_EQ(waiting.wait_for(20ms), std::future_status::timeout);
    const auto start = std::chrono::steady_clock::now();
    stop.request_stop();
    EXPECT_FALSE(waiting.get());
    EXPECT_LT(since(start), 3s);
    EXPECT_FALSE(lock.owns_lock());
    raw.del("k");
    EXPECT_FALSE(raw.exists("k"));
    EXPECT_TRUE(lock.lock(std::stop_token{}));
}

TEST(Cancel, RequestedBeforehandLeavesNothingBehind) {
    const Server server;
    Raw raw{server};
    Pool pool{endpoint_of(server)};
    std::stop_source stop;
    stop.request_stop();
    Lock lock{pool, "k", 60s, std::defer_lock};
    std::error_code error = make_error_code(Errc::protocol);
    EXPECT_FALSE(lock.lock(stop.get_token(), error));
    EXPECT_FALSE(error);
    EXPECT_FALSE(lock.owns_lock());
    EXPECT_TRUE(eventually([&] { return !raw.exists("k"); }));
    EXPECT_TRUE(lock.try_lock());
}

TEST(Cancel, WithoutAStopLocks) {
    const Server server;
    Pool pool{endpoint_of(server)};
    std::stop_source stop;
    Lock lock{pool, "k", 60s, std::defer_lock};
    EXPECT_TRUE(lock.lock(stop.get_token()));
    EXPECT_TRUE(lock.owns_lock());
    stop.request_stop();
    EXPECT_TRUE(lock.owns_lock());
}

TEST(Cancel, AtAnyMomentOfAHandOverLeavesTheKeyToWhoeverHoldsIt) {
    const Server server;
    Raw raw{server};
    Pool pool{endpoint_of(server)};
    for (int round = 0; round < 40; ++round) {
        Lock holder{pool, "k", 60s};
        Lock lock{pool, "k", 60s, std::defer_lock, hiredlock::retry::Fixed{100us}};
        std::stop_source stop;
        auto waiting = std::async(std::launch::async, [&] { return lock.lock(stop.get_token()); });
        std::this_thread::sleep_for(std::chrono::microseconds{round * 50});
        holder.unlock();
        stop.request_stop();
        const bool locked = waiting.get();
        EXPECT_EQ(locked, lock.owns_lock());
        if (locked) {
            EXPECT_EQ(raw.get("k"), lock.token());
            EXPECT_FALSE(lock.unlock());
        }
        ASSERT_TRUE(eventually([&] { return !raw.exists("k"); }));
    }
}

}  // namespace
