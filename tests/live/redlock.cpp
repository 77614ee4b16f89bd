// A lock that the majority of independent servers grants.
#include "servers.hpp"

#include <support/process.hpp>

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <mutex>
#include <sstream>
#include <stop_token>
#include <thread>

namespace {

using namespace std::chrono_literals;
using namespace guards;
using hiredlock::Clock;
using hiredlock::Endpoint;
using hiredlock::Errc;
using hiredlock::Error;
using hiredlock::Lock;
using hiredlock::Redlock;
using hiredlock::Ticket;
using hiredlock::renew::Watchdog;
using hiredlock::replication::Wait;
using hiredlock::unlocking::Deferred;
using support::eventually;
using support::Monitor;
using support::Raw;
using support::Server;

TEST(Redlock, TakesTheLockOnEveryServerAndReleasesItEverywhere) {
    Servers servers{5};
    Redlock quorum{servers.endpoints()};
    {
        const Lock lock{quorum, "k", 60s};
        EXPECT_TRUE(lock.owns_lock());
        EXPECT_LT(lock.remaining(), 60s - 602ms);
        ASSERT_TRUE(servers.holds_everywhere("k"));
        for (auto& server : servers) {
            EXPECT_EQ(Raw{server}.get("k"), lock.token());
            EXPECT_GT(Raw{server}.pttl("k"), 0);
        }
    }
    EXPECT_TRUE(servers.is_gone("k"));
}

TEST(Redlock, TakesTheFirstLockOnEveryServerToo) {
    Servers servers{5};
    for (int i = 0; i < 20; ++i) {
        Redlock quorum{servers.endpoints()};
        const Lock lock{quorum, "k", 60s, std::try_to_lock};
        ASSERT_TRUE(lock.owns_lock());
        ASSERT_TRUE(servers.holds_everywhere("k"));
    }
}

TEST(Redlock, IsBusyForAnotherWhileItIsHeld) {
    Servers servers{3};
    Redlock one{servers.endpoints()}, other{servers.endpoints()};
    Lock held{one, "k", 60s};
    Lock second{other, "k", 60s, std::defer_lock};
    EXPECT_FALSE(second.try_lock());
    EXPECT_FALSE(second.try_lock_for(50ms));
    EXPECT_FALSE(held.unlock());
    EXPECT_TRUE(second.try_lock_for(10s));
    EXPECT_EQ(held.unlock(), Errc::not_held);
}

TEST(Redlock, ExtendsOnEveryServer) {
    Servers servers{3};
    Redlock quorum{servers.endpoints()};
    Lock lock{quorum, "k", 10s};
    ASSERT_TRUE(servers.holds_everywhere("k"));
    EXPECT_TRUE(lock.extend(100s));
    EXPECT_GT(lock.remaining(), 90s);
    for (auto& server : servers) EXPECT_TRUE(eventually([&] { return Raw{server}.pttl("k") > 90'000; }));
}

TEST(Redlock, SaysThatItWasLostOnceAMajorityHasLostIt) {
    Servers servers{3};
    Redlock quorum{servers.endpoints()};
    Lock lock{quorum, "k", 60s};
    ASSERT_TRUE(servers.holds_everywhere("k"));
    Raw{servers[0]}.del("k");
    EXPECT_TRUE(lock.extend(60s));
    Raw{servers[1]}.set("k", "thief", 60s);
    EXPECT_FALSE(lock.extend(60s));
    EXPECT_FALSE(lock.owns_lock());
    EXPECT_EQ(lock.unlock(), Errc::not_held);
    EXPECT_EQ(Raw{servers[1]}.get("k"), "thief");
}

TEST(Redlock, TakesALockThatIsForeignOnAMinorityAndLeavesThatAlone) {
    Servers servers{5};
    Redlock quorum{servers.endpoints()};
    for (std::size_t i = 0; i < 2; ++i) Raw{servers[i]}.set("k", "foreign", 60s);
    {
        Lock lock{quorum, "k", 60s};
        EXPECT_TRUE(lock.extend(60s));
        EXPECT_FALSE(lock.unlock());
    }
    EXPECT_TRUE(eventually([&] { return servers.count("k") == 2; }));
    for (std::size_t i = 0; i < 2; ++i) EXPECT_EQ(Raw{servers[i]}.get("k"), "foreign");
}

TEST(Redlock, RefusesALockThatIsForeignOnAMajorityAndLeavesNothingOnTheOthers) {
    Servers servers{5};
    Redlock quorum{servers.endpoints()};
    for (std::size_t i = 0; i < 3; ++i) Raw{servers[i]}.set("k", "foreign", 60s);
    for (int i = 0; i < 20; ++i) EXPECT_FALSE((Lock{quorum, "k", 60s, std::try_to_lock}.owns_lock()));
    EXPECT_FALSE((Lock{quorum, "k", 60s, 50ms}.owns_lock()));
    EXPECT_TRUE(eventually([&] { return servers.count("k") == 3; }));
    for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(Raw{servers[i]}.get("k"), "foreign");
}

TEST(Redlock, OfAnyNumberOfServersNeedsMoreThanHalfOfThoseConfigured) {
    for (const std::size_t count : {1U, 2U, 3U, 4U, 5U}) {
        Servers servers{count};
        Redlock quorum{servers.endpoints()};
        for (std::size_t down = 0; down <= count; ++down) {
            SCOPED_TRACE(testing::Message() << down << " of " << count << " are down");
            Lock lock{quorum, "k", 60s, std::defer_lock};
            std::error_code error;
            const bool enough = count - down >= count / 2 + 1;
            EXPECT_EQ(lock.try_lock(error), enough);
            EXPECT_EQ(error, enough ? std::error_code{} : make_error_code(Errc::no_quorum));
            EXPECT_EQ(quorum.ping(), error);
            EXPECT_EQ(lock.unlock(), enough ? std::error_code{} : make_error_code(Errc::not_held));
            if (down < count) servers[down].kill();
        }
    }
}

TEST(Redlock, IsBusyWhereAFailedServerIsNotWhatIsMissing) {
    Servers servers{3};
    Redlock quorum{servers.endpoints()};
    const Lock held{quorum, "k", 60s};
    servers[2].kill();
    for (int i = 0; i < 20; ++i) EXPECT_FALSE((Lock{quorum, "k", 60s, std::try_to_lock}.owns_lock()));
    servers[1].kill();
    EXPECT_EQ(thrown_by([&] { Lock{quorum, "k", 60s, std::try_to_lock}; }), Errc::no_quorum);
}

TEST(Redlock, OfAnEvenNumberThatIsSplitIsBusyAtOnceAndLeavesNothingBehind) {
    for (const std::size_t count : {2U, 4U}) {
        Servers servers{count};
        Redlock quorum{servers.endpoints()};
        for (std::size_t i = 0; i < count / 2; ++i) Raw{servers[i]}.set("k", "rival", 60s);
        const auto start = std::chrono::steady_clock::now();
        EXPECT_FALSE((Lock{quorum, "k", 60s, std::try_to_lock}.owns_lock()));
        EXPECT_LT(since(start), 900ms);
        EXPECT_TRUE(eventually([&] { return servers.count("k") == count / 2; }));
    }
}

TEST(Redlock, CountsServersThatWereDownAtTheStart) {
    Servers servers{3};
    servers[0].kill();
    servers[1].kill();
    Redlock quorum{servers.endpoints()};
    Lock lock{quorum, "k", 60s, std::defer_lock};
    EXPECT_EQ(thrown_by([&] { lock.try_lock(); }), Errc::no_quorum);
    servers[0].start();
    EXPECT_TRUE(lock.try_lock_for(10s));
    EXPECT_FALSE(lock.unlock());
    servers[1].start();
    EXPECT_TRUE(eventually([&] {
        lock.try_lock();
        const bool everywhere = servers.count("k") == 3;
        lock.unlock();
        return everywhere;
    }));
    EXPECT_TRUE(servers.is_gone("k"));
}

TEST(Redlock, TellsOfEachServerWhyItDidNotAgree) {
    Servers servers{7};
    servers[0].kill();
    Raw{servers[1]}({"CONFIG", "SET", "requirepass", "secret"});
    Raw{servers[2]}.set("k", "foreign", 60s);
    servers[3].pause();
    servers[4].pause();
    Redlock quorum{servers.endpoints()};
    Lock lock{quorum, "k", 60s, std::defer_lock};
    const std::string words = words_thrown_by([&] { lock.try_lock_for(300ms); });
    const auto name = [&](std::size_t i) { return "; 127.0.0.1:" + std::to_string(servers[i].port()); };
    for (const std::string& part : std::vector<std::string>{"2 of 7 servers said yes", "no majority of servers", name(0) + ": Connection refused",
                                                            name(1) + ": NOAUTH", name(2) + " said no", name(3) + ": no answer in time",
                                                            name(4) + ": no answer in time", name(5) + " said yes", name(6) + " said yes"})
        EXPECT_NE(words.find(part), std::string::npos) << part << " is not in: " << words;
    EXPECT_EQ(words.find("secret"), std::string::npos) << words;
}

// --- Which servers.

TEST(Redlock, RefusesNoServersAndOneThatIsGivenTwice) {
    const auto made_of = [](std::vector<Endpoint> servers) { return thrown_by([&] { Redlock{std::move(servers)}; }); };
    const Endpoint a{.port = 7001}, b{.port = 7002}, other_database{.port = 7001, .database = 1};
    EXPECT_EQ(made_of({}), Errc::invalid_argument);
    EXPECT_EQ(made_of({a, b, a}), Errc::invalid_argument);
    EXPECT_EQ(made_of({a, b, other_database}), Errc::invalid_argument);
    EXPECT_EQ(made_of({a, {.port = 0}}), Errc::invalid_argument);
    EXPECT_EQ(made_of({a, b}), std::error_code{});
    EXPECT_EQ(thrown_by([&] { Redlock{{a, b}, {.size = 0}}; }), Errc::invalid_argument);
    EXPECT_EQ(thrown_by([&] { Redlock{"redis://a", "redis://b", "redis://a:6379/3"}; }), Errc::invalid_argument);
}

TEST(Redlock, FindsOutThatTwoNamesAreOneServer) {
    Servers servers{2};
    Redlock quorum{{endpoint_of(servers[0]), endpoint_of(servers[1]), Endpoint{.unix_socket = servers[0].socket_path()}}};
    Lock lock{quorum, "k", 60s, std::defer_lock};
    // The two others may have been quicker, which is a majority of different servers.
    EXPECT_TRUE(eventually([&] { return quorum.ping() == Errc::invalid_argument; }));
    for (int i = 0; i < 5; ++i) EXPECT_EQ(thrown_by([&] { lock.try_lock(); }), Errc::invalid_argument);
    EXPECT_NE(words_thrown_by([&] { lock.lock(); }).find("the same server"), std::string::npos);
    EXPECT_TRUE(servers.is_gone("k"));
}

TEST(Redlock, FindsOutThatANameLeadsToTheSameServerAsAnotherByNow) {
    Servers servers{3};
    const support::Directory directory;
    const std::string link = directory.file("link");
    std::filesystem::create_symlink(servers[2].socket_path(), link);
    Redlock quorum{{endpoint_of(servers[0]), endpoint_of(servers[1]), Endpoint{.unix_socket = link}}};
    { const Lock lock{quorum, "k", 60s}; }
    EXPECT_FALSE(quorum.ping());
    std::filesystem::remove(link);
    std::filesystem::create_symlink(servers[0].socket_path(), link);
    Raw{servers[2]}({"CLIENT", "KILL", "TYPE", "normal"});
    EXPECT_TRUE(eventually([&] { return quorum.ping() == Errc::invalid_argument; }));
    std::filesystem::remove(link);
    std::filesystem::create_symlink(servers[2].socket_path(), link);
    Raw{servers[0]}({"CLIENT", "KILL", "TYPE", "normal"});
    EXPECT_TRUE(eventually([&] { return !quorum.ping(); }));
    { const Lock lock{quorum, "k", 60s}; }
    EXPECT_TRUE(servers.is_gone("k"));
}

TEST(Redlock, TakesServersOfDifferentKinds) {
    const char* listed = std::getenv("HIREDLOCK_TEST_SERVERS");
    std::istringstream programs{listed != nullptr ? listed : ""};
    std::deque<Server> servers;
    std::vector<Endpoint> endpoints;
    for (std::string program; std::getline(programs, program, ':');) endpoints.push_back(endpoint_of(servers.emplace_back(support::ServerOptions{.program = program})));
    if (servers.size() < 2) GTEST_SKIP() << "needs several kinds of servers";
    Redlock quorum{endpoints};
    for (int i = 0; i < 20; ++i) {
        Lock lock{quorum, "k", 10s};
        EXPECT_TRUE(lock.extend(60s));
        for (auto& server : servers) EXPECT_TRUE(eventually([&] { return Raw{server}.pttl("k") > 10'000; }));
        EXPECT_FALSE(lock.unlock());
        for (auto& server : servers) EXPECT_TRUE(eventually([&] { return !Raw{server}.exists("k"); }));
    }
}

// --- With the policies.

TEST(Redlock, ReleasesWithoutWaiting) {
    Servers servers{3};
    Redlock quorum{servers.endpoints()};
    for (int i = 0; i < 30; ++i) {
        Lock lock{quorum, "k", 60s, Deferred{}};
        EXPECT_FALSE(lock.unlock());
        EXPECT_TRUE(servers.is_gone("k"));
    }
    {
        Lock lock{quorum, "k", 60s, Deferred{}};
        for (auto& server : servers) server.pause();
        const auto start = std::chrono::steady_clock::now();
        EXPECT_FALSE(lock.unlock());
        EXPECT_LT(since(start), 500ms);  // half of what it would wait
        for (auto& server : servers) server.resume();
    }
    EXPECT_TRUE(servers.is_gone("k"));
}

TEST(Redlock, SaysThatADeferredReleaseCouldNotBeSent) {
    Servers servers{3};
    Redlock quorum{servers.endpoints()};
    Lock lock{quorum, "k", 60s, Deferred{}};
    servers[0].kill();
    servers[1].kill();
    std::this_thread::sleep_for(60ms);  // an idle connection is looked at before it is used again
    EXPECT_EQ(lock.unlock(), Errc::no_quorum);
    EXPECT_FALSE(lock.owns_lock());
}

TEST(Redlock, AdoptsALockThatAnotherLetGo) {
    Servers servers{3};
    Redlock one{servers.endpoints()}, other{servers.endpoints()};
    Lock lock{one, "k", 10s};
    const Ticket ticket = lock.release();
    Lock adopted{other, ticket, 60s, std::adopt_lock};
    EXPECT_TRUE(adopted.owns_lock());
    EXPECT_GT(adopted.remaining(), 50s);
    EXPECT_FALSE(adopted.unlock());
    EXPECT_TRUE(servers.is_gone("k"));
    EXPECT_FALSE((Lock{other, ticket, 60s, std::adopt_lock}.owns_lock()));
}

TEST(Redlock, WaitsForEachServersOwnReplicas) {
    Servers servers{3};
    Redlock quorum{servers.endpoints()};
    std::deque<Server> replicas;
    const auto give_replica = [&](Server& server) {
        replicas.emplace_back(support::ServerOptions{.replica_of_port = server.port()});
        ASSERT_TRUE(replicas.back().wait_until_linked());
    };
    const auto try_briefly = [&] { Lock{quorum, "k", 60s, std::try_to_lock, Wait{.replicas = 1, .timeout = 50ms}}; };
    EXPECT_EQ(thrown_by(try_briefly), Errc::not_replicated);
    EXPECT_TRUE(servers.is_gone("k"));
    give_replica(servers[0]);
    EXPECT_EQ(thrown_by(try_briefly), Errc::not_replicated);
    EXPECT_TRUE(servers.is_gone("k"));
    give_replica(servers[1]);
    Lock lock{quorum, "k", 60s, Wait{.replicas = 1, .timeout = 20s}};
    EXPECT_TRUE(lock.extend(60s));
    for (auto& replica : replicas) EXPECT_EQ(Raw{replica}.get("k"), lock.token());
    EXPECT_FALSE(lock.unlock());
}

TEST(Redlock, WaitsForTheReplicasOfTheServerThatDecidesThoughOneVotesForAnother) {
    Servers servers{3};
    Redlock quorum{servers.endpoints()};
    EXPECT_FALSE(quorum.ping());
    std::deque<Server> replicas;
    for (const std::size_t i : {1U, 2U}) {
        replicas.emplace_back(support::ServerOptions{.replica_of_port = servers[i].port()});
        ASSERT_TRUE(replicas.back().wait_until_linked());
    }
    Raw{servers[0]}.set("k", "foreign", 60s);
    replicas[1].pause();
    Lock lock{quorum, "k", 60s, std::defer_lock, Wait{.replicas = 1, .timeout = 20s}};
    auto locking = std::async(std::launch::async, [&] { return lock.try_lock(); });
    EXPECT_EQ(locking.wait_for(300ms), std::future_status::timeout);  // of the two that are left, one waits for its replica
    replicas[1].resume();
    EXPECT_TRUE(locking.get());
}

TEST(Redlock, DoesNotLetReplicasHoldItUpPastTheCallersLimit) {
    Servers servers{3};
    Redlock quorum{servers.endpoints()};
    EXPECT_FALSE(quorum.ping());
    Lock lock{quorum, "k", 60s, std::defer_lock, Wait{.replicas = 1, .timeout = 20s}};
    const auto start = std::chrono::steady_clock::now();
    EXPECT_TRUE(thrown_by([&] { lock.try_lock_for(100ms); }));
    EXPECT_LT(since(start), 2s);
    EXPECT_TRUE(servers.is_gone("k"));
}

TEST(Redlock, UnderAWatchdogIsKeptByAMajority) {
    Servers servers{3};
    Redlock quorum{servers.endpoints()};
    std::atomic<int> lost{0};
    Lock lock{quorum, "k", 400ms, Watchdog{.on_lost = [&](const Error&) { ++lost; }}};
    ASSERT_TRUE(servers.holds_everywhere("k"));
    Raw{servers[0]}.set("k", "thief", 60s);
    Monitor monitor{servers[1]};
    ASSERT_TRUE(eventually([&] { return monitor.count(extends("k")) >= 6; }, 30s));  // longer than the ttl
    EXPECT_TRUE(lock.owns_lock());
    EXPECT_EQ(lost, 0);
    EXPECT_FALSE(lock.unlock());
    EXPECT_EQ(Raw{servers[0]}.get("k"), "thief");
}

TEST(Redlock, UnderAWatchdogIsLostOnceAMajorityHasLostIt) {
    Servers servers{3};
    Redlock quorum{servers.endpoints()};
    std::atomic<int> lost{0};
    Lock lock{quorum, "k", 60s, Watchdog{.interval = 50ms, .on_lost = [&](const Error&) { ++lost; }}};
    ASSERT_TRUE(servers.holds_everywhere("k"));
    const auto stop = lock.stop_token();
    Raw{servers[0]}.del("k");
    Raw{servers[2]}.del("k");
    EXPECT_TRUE(eventually([&] { return lost == 1; }));
    EXPECT_TRUE(stop.stop_requested());
    EXPECT_FALSE(lock.owns_lock());
    EXPECT_EQ(lock.unlock(), Errc::not_held);
    EXPECT_TRUE(servers.is_gone("k"));
    EXPECT_EQ(lost, 1);
}

// --- Waiting.

TEST(Redlock, WaitsNoLongerThanItsLimit) {
    Servers servers{3};
    Redlock quorum{servers.endpoints()}, rival{servers.endpoints()};
    const Lock held{rival, "k", 60s};
    for (const auto limit : {0ms, 1ms, 50ms, 300ms}) {
        const auto start = std::chrono::steady_clock::now();
        EXPECT_FALSE((Lock{quorum, "k", 60s, limit}.owns_lock()));
        EXPECT_GE(since(start), limit - 20ms);  // so that the last answer arrives at the limit
        EXPECT_LT(since(start), limit + 900ms);
    }
    ASSERT_TRUE(eventually([&] { return servers.count("k") == 3; }));
    for (auto& server : servers) EXPECT_EQ(Raw{server}.get("k"), held.token());
}

TEST(Redlock, EndsAWaitOnAStopAndLeavesNothingBehind) {
    Servers servers{3};
    Redlock quorum{servers.endpoints()};
    for (const std::size_t held : {2U, 3U}) {
        for (std::size_t i = 0; i < held; ++i) Raw{servers[i]}.set("k", "foreign", 60s);
        Lock lock{quorum, "k", 60s, std::defer_lock};
        Monitor monitor{servers[2]};
        std::stop_source stop;
        auto waiting = std::async(std::launch::async, [&] { return lock.lock(stop.get_token()); });
        ASSERT_TRUE(monitor.wait_for(acquires("k")));
        stop.request_stop();
        EXPECT_FALSE(waiting.get());
        EXPECT_TRUE(eventually([&] { return servers.count("k") == held; }));
        for (std::size_t i = 0; i < held; ++i) Raw{servers[i]}.del("k");
    }
    for (auto& server : servers) server.pause();
    Lock lock{quorum, "k", 60s, std::defer_lock};
    std::stop_source stop;
    auto waiting = std::async(std::launch::async, [&] { return lock.lock(stop.get_token()); });
    EXPECT_EQ(waiting.wait_for(50ms), std::future_status::timeout);
    const auto start = std::chrono::steady_clock::now();
    stop.request_stop();
    EXPECT_FALSE(waiting.get());
    EXPECT_LT(since(start), 500ms);  // not what is left of the second that the servers have
    for (auto& server : servers) server.resume();
    EXPECT_TRUE(servers.is_gone("k"));
}

TEST(Redlock, AsksWithAFreshTokenEachTimeSoThatNoLateReleaseMeetsALaterLock) {
    Servers servers{3};
    Redlock quorum{servers.endpoints()};
    for (std::size_t i = 0; i < 2; ++i) Raw{servers[i]}.set("k", "foreign", 60s);
    Monitor monitor{servers[2]};
    EXPECT_FALSE((Lock{quorum, "k", 60s, 200ms}.owns_lock()));
    std::vector<std::string> tokens;
    for (const auto& command : monitor.commands())
        if (is_acquire(command, "k")) tokens.push_back(command.argv[2]);
    EXPECT_GE(tokens.size(), 2U);
    std::sort(tokens.begin(), tokens.end());
    EXPECT_EQ(std::adjacent_find(tokens.begin(), tokens.end()), tokens.end());
}

// --- Threads and processes.

TEST(Redlock, OfManyThreadsCountsRight) {
    Servers servers{3};
    Redlock quorum{servers.endpoints(), {.size = 3}};
    constexpr int threads = 6, each = 15;
    std::atomic<int> counter = 0;  // read, then written: only the lock keeps updates from being lost (a race that is not ThreadSanitizer's to see)
    {
        std::vector<std::jthread> running;
        for (int t = 0; t < threads; ++t)
            running.emplace_back([&, t] {
                for (int i = 0; i < each; ++i) {
                    const auto count = [&] {
                        const int seen = counter;
                        std::this_thread::yield();
                        counter = seen + 1;
                    };
                    if (t % 2 == 0) {
                        const Lock lock{quorum, "counter", 30s};
                        count();
                    } else {
                        const Lock lock{quorum, "counter", 30s, Deferred{}, Watchdog{}};
                        count();
                    }
                }
            });
    }
    EXPECT_EQ(counter, threads * each);
    EXPECT_TRUE(servers.is_gone("counter"));
}

TEST(Redlock, InAForkedChildMakesConnectionsOfItsOwnAndLeavesTheParentsLockAlone) {
    if (!guards::follows_threads_after_fork) GTEST_SKIP() << "ThreadSanitizer cannot follow it";
    Servers servers{3};
    Redlock quorum{servers.endpoints()};
    Lock lock{quorum, "k", 60s, Watchdog{.interval = 50ms}};
    ASSERT_TRUE(servers.holds_everywhere("k"));
    EXPECT_EQ(support::run_in_child(
                  [&] {
                      if (lock.owns_lock()) return 1;
                      if (lock.unlock() != Errc::not_held) return 2;
                      if (Lock{quorum, "k", 60s, std::try_to_lock}.owns_lock()) return 3;
                      Lock own{quorum, "l", 60s};
                      return own.owns_lock() && own.extend(60s) && !own.unlock() ? 0 : 4;
                  },
                  20s, support::Leave::by_exit),
              0);
    EXPECT_TRUE(lock.owns_lock());
    EXPECT_EQ(servers.count("k"), 3U);
    EXPECT_TRUE(lock.extend(60s));
    EXPECT_FALSE(lock.unlock());
    EXPECT_TRUE(servers.is_gone("k"));
    EXPECT_TRUE(servers.is_gone("l"));
}

TEST(Redlock, HoldsTwoLocksUnderOneScopedLock) {
    Servers servers{3};
    Redlock quorum{servers.endpoints()};
    Lock a{quorum, "a", 60s, std::defer_lock}, b{quorum, "b", 60s, std::defer_lock};
    {
        const std::scoped_lock both{a, b};
        EXPECT_TRUE(a.owns_lock() && b.owns_lock());
    }
    EXPECT_TRUE(servers.is_gone("a"));
    EXPECT_TRUE(servers.is_gone("b"));
}

}  // namespace
