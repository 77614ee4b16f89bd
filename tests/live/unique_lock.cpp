// A guard behaves as std::unique_lock does, and can be used where one can.
#include "guards.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <thread>

namespace {

using namespace std::chrono_literals;
using namespace guards;
using hiredlock::Errc;
using hiredlock::Lock;
using hiredlock::Pool;
using support::Monitor;
using support::Raw;
using support::Server;

class LikeUniqueLock : public testing::Test {
protected:
    /// The keys that are there.
    long long keys() { return raw_.number({"DBSIZE"}); }

    Server server_{};
    Raw raw_{server_};
    Pool pool_{endpoint_of(server_)};
};

TEST_F(LikeUniqueLock, ConstructsHeldTriedDeferredOrTimed) {
    {
        const Lock held{pool_, "k", 10s};
        EXPECT_TRUE(held.owns_lock());
        EXPECT_TRUE(static_cast<bool>(held));
        EXPECT_EQ(held.key(), "k");
        EXPECT_EQ(raw_.get("k"), held.token());
        const Lock tried{pool_, "k", 10s, std::try_to_lock};
        EXPECT_FALSE(tried);
        const Lock deferred{pool_, "k", 10s, std::defer_lock};
        EXPECT_FALSE(deferred);
        const Lock timed{pool_, "k", 10s, 150ms};
        EXPECT_FALSE(timed);
        const Lock until{pool_, "k", 10s, std::chrono::steady_clock::now() + 150ms};
        EXPECT_FALSE(until);
        const Lock by_wall_clock{pool_, "k", 10s, std::chrono::system_clock::now() + 150ms};
        EXPECT_FALSE(by_wall_clock);
    }
    EXPECT_EQ(keys(), 0);
    const Lock timed{pool_, "k", 10s, 1s};
    EXPECT_TRUE(timed);
    const Lock until{pool_, "l", 10s, std::chrono::system_clock::now() + 1s};
    EXPECT_TRUE(until);
}

TEST_F(LikeUniqueLock, GoesIntoAScopedLock) {
    Lock a{pool_, "a", 10s, std::defer_lock};
    Lock b{pool_, "b", 10s, std::defer_lock};
    Lock c{pool_, "c", 10s, std::defer_lock};
    {
        const std::scoped_lock all{a, b, c};
        EXPECT_TRUE(a && b && c);
        EXPECT_EQ(keys(), 3);
    }
    EXPECT_FALSE(a || b || c);
    EXPECT_EQ(keys(), 0);
}

TEST_F(LikeUniqueLock, IsLockedTogetherWithOthersInAnyOrderWithoutDeadlock) {
    int rounds = 0;  // a plain int: only the two locks protect it
    const auto work = [this, &rounds](const char* first, const char* second) {
        Lock one{pool_, first, 10s, std::defer_lock};
        Lock other{pool_, second, 10s, std::defer_lock};
        for (int i = 0; i < 10; ++i) {
            const std::scoped_lock both{one, other};
            EXPECT_TRUE(one.owns_lock() && other.owns_lock());
            ++rounds;
        }
    };
    std::jthread there{work, "a", "b"};
    work("b", "a");
    there.join();
    EXPECT_EQ(rounds, 20);
    EXPECT_EQ(keys(), 0);
}

TEST_F(LikeUniqueLock, IsTheMutexOfAUniqueLock) {
    Lock lock{pool_, "k", 10s, std::defer_lock};
    {
        std::unique_lock guard{lock};
        EXPECT_TRUE(guard.owns_lock() && lock.owns_lock());
        EXPECT_EQ(keys(), 1);
        guard.unlock();
        EXPECT_EQ(keys(), 0);
        EXPECT_TRUE(guard.try_lock());
    }
    EXPECT_EQ(keys(), 0);
    {
        const std::unique_lock timed{lock, std::chrono::steady_clock::now() + 1s};
        EXPECT_TRUE(timed.owns_lock() && lock.owns_lock());
    }
    {
        const std::unique_lock limited{lock, 1s};
        EXPECT_TRUE(limited.owns_lock() && lock.owns_lock());
    }
    EXPECT_EQ(keys(), 0);
    Lock other{pool_, "k", 10s};
    const std::unique_lock tried{lock, std::try_to_lock};
    EXPECT_FALSE(tried.owns_lock());
    const std::unique_lock timed{lock, 150ms};
    EXPECT_FALSE(timed.owns_lock());
}

TEST_F(LikeUniqueLock, LockedTwiceIsADeadlockThatIsTold) {
    Lock lock{pool_, "k", 10s};
    const std::string token{lock.token()};
    EXPECT_EQ(thrown_by([&] { lock.lock(); }), std::errc::resource_deadlock_would_occur);
    EXPECT_EQ(thrown_by([&] { lock.try_lock(); }), std::errc::resource_deadlock_would_occur);
    EXPECT_EQ(thrown_by([&] { lock.try_lock_for(1s); }), std::errc::resource_deadlock_would_occur);
    std::error_code error;
    EXPECT_FALSE(lock.try_lock_until(std::chrono::steady_clock::now(), error));
    EXPECT_EQ(error, std::errc::resource_deadlock_would_occur);
    EXPECT_TRUE(lock.owns_lock());
    EXPECT_EQ(lock.token(), token);
    EXPECT_EQ(raw_.get("k"), token);
}

TEST_F(LikeUniqueLock, IsNotReentrant) {
    const Lock outer{pool_, "k", 10s};
    EXPECT_FALSE(Lock(pool_, "k", 10s, std::try_to_lock).owns_lock());
    EXPECT_TRUE(outer.owns_lock());
}

TEST_F(LikeUniqueLock, MovedFromOwnsNothingAndCannotLock) {
    Lock first{pool_, "k", 10s};
    const std::string token{first.token()};
    const Lock second = std::move(first);
    EXPECT_TRUE(second.owns_lock());
    EXPECT_EQ(second.token(), token);
    EXPECT_EQ(second.key(), "k");
    EXPECT_FALSE(first.owns_lock());  // that a guard moved from can be asked is what is tested
    EXPECT_EQ(first.remaining(), 0s);
    EXPECT_TRUE(first.token().empty());
    EXPECT_FALSE(first.extend(10s));
    EXPECT_TRUE(first.release().token.empty());
    EXPECT_EQ(thrown_by([&] { first.lock(); }), std::errc::operation_not_permitted);
    EXPECT_EQ(thrown_by([&] { first.try_lock_for(1s); }), std::errc::operation_not_permitted);
    EXPECT_EQ(thrown_by([&] { first.check(); }), Errc::lost);
    EXPECT_EQ(raw_.get("k"), token);
}

TEST_F(LikeUniqueLock, AssignedOntoAHeldGuardReleasesThatOnce) {
    Monitor monitor{server_};
    {
        Lock a{pool_, "a", 10s};
        Lock b{pool_, "b", 10s};
        a = std::move(b);
        EXPECT_FALSE(raw_.exists("a"));
        EXPECT_EQ(raw_.get("b"), a.token());
        EXPECT_EQ(a.key(), "b");
        EXPECT_TRUE(a.owns_lock());
        EXPECT_FALSE(b.owns_lock());
        b = Lock{pool_, "c", 10s};  // a guard moved from takes a new lock
        EXPECT_TRUE(b.owns_lock());
    }
    EXPECT_EQ(keys(), 0);
    for (const char* key : {"a", "b", "c"}) {
        EXPECT_EQ(monitor.count([&](const auto& command) { return is_release(command, key) && command.name() != "EVAL"; }), 1U) << key;
        EXPECT_EQ(monitor.count(acquires(key)), 1U) << key;
    }
}

TEST_F(LikeUniqueLock, MovedOntoItselfStaysHeld) {
    Lock lock{pool_, "k", 10s};
    auto& same = lock;
    lock = std::move(same);
    EXPECT_TRUE(lock.owns_lock());
    EXPECT_EQ(raw_.get("k"), lock.token());
    EXPECT_FALSE(lock.unlock());
    EXPECT_EQ(keys(), 0);
}

TEST_F(LikeUniqueLock, LivesInAVectorThatGrows) {
    { const Lock first{pool_, "first", 10s}; }
    Monitor monitor{server_};
    constexpr int count = 40;
    {
        std::vector<Lock<Pool>> guards;
        for (int i = 0; i < count; ++i) guards.emplace_back(pool_, std::to_string(i), 10s);
        EXPECT_EQ(keys(), count);
        for (const auto& guard : guards) EXPECT_TRUE(guard.owns_lock()) << guard.key();
        guards.erase(guards.begin() + 5);
        EXPECT_FALSE(raw_.exists("5"));
        std::swap(guards.front(), guards.back());
        EXPECT_EQ(keys(), count - 1);
    }
    EXPECT_EQ(keys(), 0);
    for (int i = 0; i < count; ++i) {
        EXPECT_EQ(monitor.count(acquires(std::to_string(i))), 1U) << i;
        EXPECT_EQ(monitor.count(releases(std::to_string(i))), 1U) << i;
    }
}

TEST_F(LikeUniqueLock, LeavesByReturnValueAndBySharedOwnership) {
    const auto made = [this] { return std::make_shared<Lock<Pool>>(pool_, "k", 10s); };
    auto one = made();
    auto two = one;
    one.reset();
    EXPECT_EQ(keys(), 1);
    two.reset();
    EXPECT_EQ(keys(), 0);
    const auto returned = [this] {
        Lock lock{pool_, "k", 10s};
        return lock;
    }();
    EXPECT_TRUE(returned.owns_lock());
    EXPECT_EQ(keys(), 1);
}

TEST_F(LikeUniqueLock, AsAMemberNamesItsPolicies) {
    struct Service {
        explicit Service(Pool& pool) : lock{pool, "member", 10s, std::defer_lock} {}
        Lock<Pool, hiredlock::retry::Fixed, hiredlock::unlocking::Deferred> lock;
    };
    Service service{pool_};
    EXPECT_EQ(keys(), 0);
    {
        const std::scoped_lock guard{service.lock};
        EXPECT_EQ(keys(), 1);
    }
    EXPECT_FALSE(pool_.ping());
    EXPECT_EQ(keys(), 0);
}

TEST_F(LikeUniqueLock, IsAskedFromOtherThreadsWhileItIsUsed) {
    Lock lock{pool_, "k", 10s, std::defer_lock};
    std::atomic<bool> done = false;
    std::atomic<int> seen = 0;
    std::jthread watcher{[&] {
        while (!done) {
            if (lock.owns_lock() && lock.remaining() > 0s) ++seen;
            static_cast<void>(lock.expires_at());
            try {
                lock.check();
            } catch (const hiredlock::Error&) {
            }
        }
    }};
    const auto end = std::chrono::steady_clock::now() + 10s;
    for (int i = 0; (i < 50 || seen == 0) && std::chrono::steady_clock::now() < end; ++i) {
        lock.lock();
        EXPECT_TRUE(lock.extend(20s));
        EXPECT_FALSE(lock.unlock());
    }
    done = true;
    EXPECT_GT(seen, 0);
}

}  // namespace
