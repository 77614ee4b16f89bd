// Children of fork(): they use the same objects as their parent, leave the scopes of its guards, and exit.
#include <live/guards.hpp>

#include <support/eventually.hpp>
#include <support/process.hpp>

#include <hiredis/hiredis.h>

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <optional>
#include <set>
#include <thread>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace {

using namespace std::chrono_literals;
using namespace guards;
using hiredlock::Connection;
using hiredlock::Errc;
using hiredlock::Lock;
using hiredlock::Pool;
using hiredlock::renew::Watchdog;
using hiredlock::unlocking::Deferred;
using support::eventually;
using support::Leave;
using support::Monitor;
using support::open_descriptors;
using support::open_now;
using support::Raw;
using support::run_in_child;
using support::Server;

/// Uses a store as a program does; 0 when all went well, or else where it did not.
template <class Store>
int use(Store& store, const Server& server, const std::string& key, int times = 1) {
    Raw raw{server};
    for (int i = 0; i < times; ++i) {
        Lock lock{store, key, 60s, std::try_to_lock};
        if (!lock) return 1;
        if (raw.get(key) != lock.token()) return 2;
        if (Lock(store, key, 60s, std::try_to_lock).owns_lock()) return 3;
        if (!lock.extend(90s)) return 4;
        if (lock.unlock()) return 5;
        if (raw.exists(key)) return 6;
        { const Lock deferred{store, key, 60s, Deferred{}}; }
        if (store.ping()) return 7;
        if (raw.exists(key)) return 8;
    }
    return 0;
}

TEST(ForkedChild, UsesThePoolAtTheSameTimeAsItsParent) {
    const Server server;
    Raw raw{server};
    Pool pool{endpoint_of(server)};
    Lock held{pool, "held", 60s};
    std::vector<support::Child> children;
    for (int i = 0; i < 3; ++i) {
        children.push_back(support::Child::fork([&, i](support::Lines&) {
            if (Lock(pool, "held", 60s, std::try_to_lock).owns_lock()) return 10;
            return use(pool, server, "child " + std::to_string(i), 50);
        }));
        EXPECT_EQ(use(pool, server, "parent", 20), 0);
    }
    for (auto& child : children) EXPECT_EQ(child.wait(), 0);
    EXPECT_TRUE(held.owns_lock());
    EXPECT_EQ(raw.get("held"), held.token());
    EXPECT_TRUE(held.extend(90s));
    EXPECT_EQ(held.unlock(), std::error_code{});
}

TEST(ForkedChild, UsesAConnectionAtTheSameTimeAsItsParent) {
    const Server server;
    Connection connection{endpoint_of(server)};
    Lock held{connection, "held", 60s};
    auto child = support::Child::fork([&](support::Lines&) {
        if (Lock(connection, "held", 60s, std::try_to_lock).owns_lock()) return 10;
        return use(connection, server, "child", 50);
    });
    EXPECT_EQ(use(connection, server, "parent", 50), 0);
    EXPECT_EQ(child.wait(), 0);
    EXPECT_EQ(held.unlock(), std::error_code{});
}

TEST(ForkedChild, DoesNotReadTheAnswersThatItsParentStillExpects) {
    const Server server;
    Raw{server}.set("busy", "somebody");
    Pool pool{endpoint_of(server)};
    Connection connection{endpoint_of(server)};
    for (int i = 0; i < 5; ++i) {
        // Both connections have an answer under way that nobody waits for.
        { const Lock lock{pool, "k", 60s, Deferred{}}; }
        { const Lock lock{connection, "l", 60s, Deferred{}}; }
        EXPECT_EQ(run_in_child([&] {
                      const int first = use(pool, server, "child");
                      return first != 0 ? first : use(connection, server, "child");
                  }),
                  0);
        EXPECT_FALSE(Lock(pool, "busy", 60s, std::try_to_lock).owns_lock());
        EXPECT_FALSE(Lock(connection, "busy", 60s, std::try_to_lock).owns_lock());
        EXPECT_EQ(use(pool, server, "parent"), 0);
        EXPECT_EQ(use(connection, server, "parent"), 0);
    }
}

TEST(ForkedChild, KeepsNoneOfItsParentsConnectionsOnceItHasItsOwn) {
    const Server server;
    Pool pool{endpoint_of(server)};
    Connection connection{endpoint_of(server)};
    ASSERT_FALSE(pool.ping());
    ASSERT_FALSE(connection.ping());
    EXPECT_EQ(run_in_child([&] {
                  const auto before = open_descriptors();
                  if (pool.ping() || connection.ping()) return 1;
                  return open_descriptors() == before ? 0 : 2;
              }),
              0);
    EXPECT_EQ(clients_named(*std::make_unique<Raw>(server)).size(), 2U);
}

TEST(ForkedChild, ThatLeavesTheScopeOfAGuardReleasesNothing) {
    const Server server;
    Raw raw{server};
    Pool pool{endpoint_of(server)};
    Connection connection{endpoint_of(server)};
    auto lock = std::make_unique<Lock<Pool>>(pool, "k", 60s);
    auto deferred = std::make_unique<Lock<Pool, Deferred>>(pool, "d", 60s);
    auto watched = std::make_unique<Lock<Pool, Watchdog>>(pool, "w", 60s);
    auto of_connection = std::make_unique<Lock<Connection>>(connection, "c", 60s);
    Monitor monitor{server};
    const auto leaves = [&] {
        if (lock->owns_lock() || *lock || lock->remaining() != 0s) return 1;
        lock.reset();
        deferred.reset();
        watched.reset();
        of_connection.reset();
        return 0;
    };
    EXPECT_EQ(run_in_child(leaves), 0);
    EXPECT_EQ(run_in_child(leaves, 30s, Leave::by_exit), 0);
    EXPECT_TRUE(monitor.commands().empty());
    EXPECT_TRUE(lock->owns_lock() && deferred->owns_lock() && watched->owns_lock() && of_connection->owns_lock());
    EXPECT_EQ(raw.number({"EXISTS", "k", "d", "w", "c"}), 4);
    EXPECT_EQ(lock->unlock(), std::error_code{});
    EXPECT_EQ(of_connection->unlock(), std::error_code{});
    EXPECT_EQ(watched->unlock(), std::error_code{});
}

TEST(ForkedChild, HoldsNothingThroughItsParentsGuardWhateverItAsksOfIt) {
    const Server server;
    Raw raw{server};
    Pool pool{endpoint_of(server)};
    Lock lock{pool, "k", 60s};
    Monitor monitor{server};
    const auto child = [&](auto body) { return run_in_child(body); };
    EXPECT_EQ(child([&] { return lock.unlock() == Errc::not_held ? 0 : 1; }), 0);
    EXPECT_EQ(child([&] { return lock.extend(1s) ? 1 : 0; }), 0);
    EXPECT_EQ(child([&] { return lock.release().token.empty() ? 0 : 1; }), 0);
    EXPECT_EQ(child([&] { return thrown_by([&] { lock.check(); }) == Errc::lost ? 0 : 1; }), 0);
    EXPECT_EQ(child([&] { return lock.token().empty() && lock.expires_at() == hiredlock::Clock::time_point::min() ? 0 : 1; }), 0);
    EXPECT_EQ(child([&] {
                  Lock moved = std::move(lock);
                  return moved.owns_lock() ? 1 : 0;
              }),
              0);
    EXPECT_EQ(child([&] {
                  Lock other{pool, "o", 60s, std::defer_lock};
                  lock = std::move(other);
                  return lock.owns_lock() ? 1 : 0;
              }),
              0);
    EXPECT_TRUE(monitor.commands().empty());
    EXPECT_EQ(child([&] { return lock.try_lock() ? 1 : 0; }), 0);  // busy, as for anybody else
    EXPECT_EQ(raw.get("k"), lock.token());
    EXPECT_GT(raw.pttl("k"), 30'000);
    EXPECT_EQ(lock.unlock(), std::error_code{});
}

TEST(ForkedChild, LocksAgainThroughItsParentsGuardOnceThatIsFree) {
    const Server server;
    Raw raw{server};
    Pool pool{endpoint_of(server)};
    Lock lock{pool, "k", 60s};
    auto child = support::Child::fork([&](support::Lines& parent) {
        parent.write_line("waits");
        if (!lock.try_lock_for(20s)) return 1;
        if (!lock.owns_lock() || Raw{server}.get("k") != lock.token()) return 2;
        parent.write_line("holds");
        parent.read_line();
        return lock.unlock() ? 3 : 0;
    });
    ASSERT_EQ(child.read_line(), "waits");
    EXPECT_EQ(lock.unlock(), std::error_code{});
    ASSERT_EQ(child.read_line(), "holds");
    EXPECT_FALSE(lock.owns_lock());
    EXPECT_FALSE(lock.try_lock());
    child.write_line("go on");
    EXPECT_EQ(child.wait(), 0);
    EXPECT_TRUE(lock.try_lock());
}

TEST(ForkedChild, ReleasesTheLocksThatItAcquiredItself) {
    const Server server;
    Raw raw{server};
    Pool pool{endpoint_of(server)};
    ASSERT_FALSE(pool.ping());
    EXPECT_EQ(run_in_child([&] {
                  const Lock lock{pool, "k", 60s};
                  const Lock watched{pool, "w", 60s, Watchdog{}};
                  return Raw{server}.number({"EXISTS", "k", "w"}) == 2 ? 0 : 1;
              }),
              0);
    EXPECT_EQ(raw.number({"EXISTS", "k", "w"}), 0);
}

TEST(ForkedChild, OfAForkedChildWorksToo) {
    const Server server;
    Pool pool{endpoint_of(server)};
    const Lock lock{pool, "k", 60s};
    EXPECT_EQ(run_in_child([&] {
                  Lock own{pool, "child", 60s};
                  const int status = run_in_child([&] {
                      if (own.owns_lock() || lock.owns_lock()) return 20;
                      return use(pool, server, "grandchild");
                  });
                  if (status != 0) return status;
                  return own.unlock() ? 30 : use(pool, server, "child");
              }),
              0);
    EXPECT_TRUE(lock.owns_lock());
}

/// The child of this test has a static Pool at work and forks a grandchild that exits.
int exits_with_a_static_pool(const Server& server, int (*grandchild)(Pool&, const Server&)) {
    return run_in_child(
        [&] {
            static Pool pool{endpoint_of(server)};
            static Lock guard{pool, "static", 60s, Watchdog{.interval = 5ms}};
            Raw raw{server};
            raw.set("busy", "somebody");
            std::jthread waiting{[&] { const Lock lock{pool, "busy", 60s}; }};  // listens for its release
            Monitor monitor{server};
            if (!monitor.wait_for(extends("static")) || !monitor.wait_for(acquires("busy"))) return 40;
            const int status = run_in_child([&] { return grandchild(pool, server); }, 20s, Leave::by_exit);
            if (status != 0) return status;
            if (!guard.owns_lock() || raw.get("static") != guard.token()) return 41;
            monitor.clear();
            if (!monitor.wait_for(extends("static"))) return 42;
            raw.del("busy");
            waiting.join();
            return use(pool, server, "child");
        },
        40s, Leave::by_exit);
}

TEST(ForkedChild, ThatExitsWithAStaticPoolAtWorkDoesNotHang) {
    const Server server;
    EXPECT_EQ(exits_with_a_static_pool(server, [](Pool&, const Server&) { return 0; }), 0);
    EXPECT_FALSE(Raw{server}.exists("static"));  // its owner has released it in exit()
}

TEST(ForkedChild, ThatHasUsedAStaticPoolAtWorkExitsWithoutHanging) {
    if (!guards::follows_threads_after_fork) GTEST_SKIP() << "ThreadSanitizer cannot follow it";
    const Server server;
    EXPECT_EQ(exits_with_a_static_pool(server,
                                       [](Pool& pool, const Server& own) {
                                           static Lock watched{pool, "of the grandchild", 60s, Watchdog{.interval = 5ms}};
                                           if (Lock(pool, "busy", 60s, 50ms).owns_lock()) return 50;
                                           return use(pool, own, "grandchild");
                                       }),
              0);
    EXPECT_FALSE(Raw{server}.exists("static"));
    EXPECT_FALSE(Raw{server}.exists("of the grandchild"));
}

TEST(ForkedChild, MayDestroyItsParentsPool) {
    const Server server;
    auto pool = std::make_unique<Pool>(endpoint_of(server));
    auto lock = std::make_unique<Lock<Pool, Watchdog>>(*pool, "k", 60s, Watchdog{.interval = 5ms});
    EXPECT_EQ(run_in_child([&] {
                  lock.reset();
                  pool.reset();
                  return 0;
              }),
              0);
    EXPECT_TRUE(lock->owns_lock());
    Monitor monitor{server};
    EXPECT_TRUE(monitor.wait_for(extends("k")));
    EXPECT_EQ(lock->unlock(), std::error_code{});
}

TEST(ForkedChild, ClosesNoDescriptorOfItsOwnThatHasTheNumberOfOneOfItsParents) {
    const Server server;
    const auto before = open_now();
    Pool pool{endpoint_of(server)};
    Connection connection{endpoint_of(server)};
    Lock watched{pool, "watched", 60s, Watchdog{.interval = 1ms}};
    const Lock lock{connection, "lock", 60s};
    ASSERT_TRUE(eventually([&] { return Raw{server}.pttl("watched") > 0; }));
    std::set<int> theirs = open_now();
    for (const int descriptor : before) theirs.erase(descriptor);
    ASSERT_GE(theirs.size(), 3U);
    const auto in_child = [&] {
        struct stat ours {}, now {};
        const int own = ::open("/dev/null", O_RDWR | O_CLOEXEC);
        if (::fstat(own, &ours) != 0) return 20;
        for (const int descriptor : theirs) ::dup2(own, descriptor);
        if (const int where = use(pool, server, "child"); where != 0) return where;
        if (connection.ping()) return 21;
        for (const int descriptor : theirs)
            if (::fstat(descriptor, &now) != 0 || now.st_ino != ours.st_ino) return 22;
        return 0;
    };
    EXPECT_EQ(run_in_child(in_child), 0);
    EXPECT_TRUE(watched.owns_lock());
    EXPECT_FALSE(watched.unlock());
}

TEST(ForkedChild, BornWhileOtherThreadsUseThePoolUsesItToo) {
    if (is_sanitized) GTEST_SKIP() << "another thread may hold one of the sanitizer's own locks at the fork, and then the child hangs";
    const Server server;
    Pool pool{endpoint_of(server)};
    Raw{server}.set("busy", "somebody");
    std::atomic<bool> done = false;
    std::atomic<int> wrong = 0;
    {
        std::vector<std::jthread> running;
        for (int t = 0; t < 3; ++t)
            running.emplace_back([&, t] {
                while (!done)
                    if (use(pool, server, "thread " + std::to_string(t)) != 0) ++wrong;
            });
        running.emplace_back([&] {
            std::error_code ignored;
            while (!done) EXPECT_FALSE(Lock(pool, "busy", 60s, std::defer_lock).try_lock_for(20ms, ignored));
        });
        for (int i = 0; i < 20; ++i) {
            const auto leave = i % 2 == 0 ? Leave::at_once : Leave::by_exit;
            EXPECT_EQ(run_in_child([&] { return use(pool, server, "child"); }, 20s, leave), 0);
        }
        done = true;
    }
    EXPECT_EQ(wrong, 0);
}

TEST(ForkedChild, LeavesABorrowedContextToItsParent) {
    const Server server;
    const std::unique_ptr<redisContext, decltype(&redisFree)> context{redisConnect("127.0.0.1", server.port()), &redisFree};
    Connection connection = Connection::borrow(context.get());
    Lock lock{connection, "k", 60s};
    Monitor monitor{server};
    EXPECT_EQ(run_in_child([&] {
                  std::error_code error;
                  if (Lock(connection, "child", 60s, std::defer_lock).try_lock(error) || error != Errc::unreachable) return 1;
                  if (context->err != 0) return 2;
                  return lock.unlock() == Errc::not_held ? 0 : 3;
              }),
              0);
    EXPECT_TRUE(monitor.commands().empty());
    EXPECT_TRUE(lock.extend(90s));
    EXPECT_EQ(lock.unlock(), std::error_code{});
    EXPECT_EQ(context->err, 0);
}

TEST(ForkedChild, DoesNotCleanUpAfterItsParent) {
    Server server;
    Raw raw{server};
    Pool pool{hurried(server, 250ms)};
    ASSERT_FALSE(pool.ping());
    server.pause();
    std::error_code error;
    EXPECT_FALSE(Lock(pool, "k", 60s, std::defer_lock).try_lock(error));  // its clean-up is under way
    EXPECT_EQ(run_in_child([] { return 0; }, 20s, Leave::by_exit), 0);
    server.resume();
    EXPECT_TRUE(eventually([&] { return !raw.exists("k"); }));
    EXPECT_EQ(use(pool, server, "k"), 0);
}

}  // namespace
