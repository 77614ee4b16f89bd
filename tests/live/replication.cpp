// Grants and extensions that count only once replicas, or disks, have them: on servers with one replica, two, a stopped one, a slow one, a promoted one.
#include "losses.hpp"

#include <support/eventually.hpp>

#include <gtest/gtest.h>

#include <limits>
#include <memory>

namespace {

using namespace std::chrono_literals;
using namespace guards;
using hiredlock::Errc;
using hiredlock::Lock;
using hiredlock::Pool;
using hiredlock::Ticket;
using hiredlock::renew::Watchdog;
using hiredlock::replication::Wait;
using hiredlock::replication::WaitAof;
using support::Direction;
using support::eventually;
using support::Kind;
using support::Monitor;
using support::Proxy;
using support::Raw;
using support::Server;

/// A replica that is in step, of a server or of a relay before one.
template <class Master>
std::unique_ptr<Server> replica_of(const Master& master, bool append_only = false) {
    auto replica = std::make_unique<Server>(support::ServerOptions{.replica_of_port = master.port(), .append_only = append_only});
    EXPECT_TRUE(replica->wait_until_linked());
    return replica;
}

/// A server begins to count a replica a moment after that has called itself in step.
void set_going(const Server& master, int replicas) {
    Raw raw{master};
    EXPECT_TRUE(eventually([&] {
        raw.set("going", "1");
        return raw.number({"WAIT", std::to_string(replicas), "100"}) >= replicas;
    }));
}

std::vector<std::string> names_of(Monitor& monitor) {
    std::vector<std::string> names;
    for (const auto& argv : said_by_clients(monitor))
        if (argv[0] != "PING" && argv[0] != "REPLCONF") names.push_back(argv[0]);
    return names;
}

// --- WAIT.

TEST(Wait, GrantsWhatTheReplicaHas) {
    const Server master;
    const auto replica = replica_of(master);
    set_going(master, 1);
    Pool pool{endpoint_of(master)};
    Raw there{*replica};
    for (int i = 0; i < 20; ++i) {
        const Lock lock{pool, "k", 10s, 5s, Wait{.replicas = 1, .timeout = 5s}};
        ASSERT_TRUE(lock.owns_lock());
        EXPECT_EQ(there.get("k"), lock.token());  // already
    }
}

TEST(Wait, ForTwoReplicasNeedsBoth) {
    const Server master;
    const auto first = replica_of(master), second = replica_of(master);
    set_going(master, 2);
    Pool pool{endpoint_of(master)};
    {
        const Lock lock{pool, "k", 10s, 5s, Wait{.replicas = 2, .timeout = 5s}};
        ASSERT_TRUE(lock.owns_lock());
        EXPECT_EQ(Raw{*first}.get("k"), lock.token());
        EXPECT_EQ(Raw{*second}.get("k"), lock.token());
    }
    second->pause();
    {
        const Lock lock{pool, "k", 10s, 5s, Wait{.replicas = 1, .timeout = 5s}};
        EXPECT_TRUE(lock.owns_lock());
    }
    std::error_code error;
    Lock lock{pool, "k", 10s, std::defer_lock, Wait{.replicas = 2, .timeout = 50ms}};
    EXPECT_FALSE(lock.try_lock(error));
    EXPECT_EQ(error, Errc::not_replicated);
    EXPECT_FALSE(Raw{master}.exists("k"));
}

TEST(Wait, IsSaidAfterAGrantOnlyAndNeverBeforeARelease) {
    const Server master;
    const auto replica = replica_of(master);
    set_going(master, 1);
    Raw raw{master};
    Pool pool{endpoint_of(master)};
    const Wait wait{.replicas = 1, .timeout = 1234ms};
    { const Lock first{pool, "first", 10s, wait}; }
    Monitor monitor{master};
    { const Lock lock{pool, "k", 10s, wait}; }
    const auto said = said_by_clients(monitor);
    ASSERT_GE(said.size(), 3U);
    EXPECT_EQ(said[0][0], "SET");
    EXPECT_EQ(said[1], (std::vector<std::string>{"WAIT", "1", "1234"}));
    EXPECT_EQ(monitor.count(called("WAIT")), 1U);

    raw.set("k", "somebody");
    monitor.clear();
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < 5; ++i) EXPECT_FALSE((Lock{pool, "k", 10s, std::try_to_lock, Wait{.replicas = 3, .timeout = 2s}}));
    EXPECT_LT(since(start), 2s);
    EXPECT_EQ(monitor.count(called("WAIT")), 0U);
    EXPECT_EQ(monitor.count(acquires("k")), 5U);

    raw.del("k");
    Lock lost{pool, "k", 10s, wait};
    raw.set("k", "thief");
    monitor.clear();
    EXPECT_FALSE(lost.extend(20s));
    EXPECT_EQ(lost.unlock(), Errc::not_held);
    EXPECT_EQ(monitor.count(called("WAIT")), 0U);
}

TEST(Wait, WithoutEnoughReplicasReleasesTheKeyAndSaysSo) {
    const Server alone;
    Raw raw{alone};
    Pool pool{endpoint_of(alone)};
    Lock lock{pool, "k", 30s, std::defer_lock, Wait{.replicas = 1, .timeout = 50ms}};
    std::error_code error;
    EXPECT_FALSE(lock.try_lock(error));
    EXPECT_EQ(error, Errc::not_replicated);
    EXPECT_FALSE(lock.owns_lock());
    EXPECT_FALSE(raw.exists("k"));
    const std::string words = words_thrown_by([&] { lock.lock(); });
    EXPECT_NE(words.find("0 of 1 replicas"), std::string::npos) << words;
    EXPECT_FALSE(raw.exists("k"));
}

TEST(Wait, ForAStoppedReplicaIsBoundedByItsTimeout) {
    const Server master;
    const auto replica = replica_of(master);
    set_going(master, 1);
    replica->pause();
    Raw raw{master};
    Pool pool{endpoint_of(master)};
    Lock lock{pool, "k", 30s, std::defer_lock, Wait{.replicas = 1, .timeout = 300ms}};
    std::error_code error;
    const auto start = std::chrono::steady_clock::now();
    EXPECT_FALSE(lock.try_lock(error));
    EXPECT_GE(since(start), 290ms);
    EXPECT_LT(since(start), 2s);
    EXPECT_EQ(error, Errc::not_replicated);
    EXPECT_FALSE(raw.exists("k"));
}

TEST(Wait, IsBoundedByTheCallersLimit) {
    const Server master;
    const auto replica = replica_of(master);
    set_going(master, 1);
    replica->pause();
    Raw raw{master};
    Pool pool{endpoint_of(master)};
    Lock lock{pool, "k", 30s, std::defer_lock, Wait{.replicas = 1, .timeout = 20s}};
    std::error_code error;
    const auto start = std::chrono::steady_clock::now();
    EXPECT_FALSE(lock.try_lock_for(300ms, error));
    EXPECT_LT(since(start), 3s);
    EXPECT_TRUE(eventually([&] { return !raw.exists("k"); }));
}

TEST(Wait, MayTakeLongerThanTheCommandTimeout) {
    const Server master;
    const auto replica = replica_of(master);
    set_going(master, 1);
    Pool pool{hurried(master, 200ms)};
    Lock lock{pool, "k", 30s, std::defer_lock, Wait{.replicas = 1, .timeout = 20s}};
    replica->pause();
    std::jthread later{[&] {
        std::this_thread::sleep_for(600ms);
        replica->resume();
    }};
    const auto start = std::chrono::steady_clock::now();
    EXPECT_TRUE(lock.try_lock());
    EXPECT_GE(since(start), 500ms);
    later.join();
    EXPECT_TRUE(lock.owns_lock());
    EXPECT_LE(lock.remaining(), 30s - 300ms - 500ms);  // the time counts against the lease
}

TEST(Wait, ThatTakesLongerThanTheLeaseGrantsNothing) {
    const Server master;
    const auto replica = replica_of(master);
    set_going(master, 1);
    Pool pool{endpoint_of(master)};
    Raw raw{master};
    replica->pause();
    std::jthread later{[&] {
        std::this_thread::sleep_for(600ms);
        replica->resume();
    }};
    std::error_code error;
    Lock lock{pool, "k", 200ms, std::defer_lock, Wait{.replicas = 1, .timeout = 20s}};
    EXPECT_FALSE(lock.try_lock(error));
    EXPECT_TRUE(error);
    EXPECT_FALSE(lock.owns_lock());
    EXPECT_FALSE(raw.exists("k"));
    later.join();
}

TEST(Wait, OnAReplicaIsRefusedAsTheReplicaItIs) {
    const Server master;
    const auto replica = replica_of(master);
    set_going(master, 1);
    Pool pool{endpoint_of(*replica)};
    Monitor monitor{*replica};
    std::error_code error;
    Lock lock{pool, "k", 10s, std::defer_lock, Wait{.replicas = 1, .timeout = 1s}};
    EXPECT_FALSE(lock.try_lock(error));
    EXPECT_EQ(error, Errc::read_only);
    EXPECT_EQ(monitor.count(called("WAIT")), 0U);
}

TEST(Wait, MeansThatAPromotedReplicaKnowsTheLock) {
    Server master;
    const auto replica = replica_of(master);
    set_going(master, 1);
    Pool pool{endpoint_of(master)};
    Lock lock{pool, "k", 30s, Wait{.replicas = 1, .timeout = 5s}};
    const Ticket ticket{.key = "k", .token = std::string{lock.token()}};
    master.kill();
    Raw there{*replica};
    EXPECT_TRUE(there({"REPLICAOF", "NO", "ONE"}).is_ok());
    Pool next{endpoint_of(*replica)};
    EXPECT_FALSE((Lock{next, "k", 30s, std::try_to_lock}.owns_lock()));
    Lock adopted{next, ticket, 30s, std::adopt_lock};
    EXPECT_TRUE(adopted.owns_lock());
    EXPECT_FALSE(adopted.unlock());
    EXPECT_TRUE(lock.release().token == ticket.token);  // its server is gone: nothing to unlock
}

TEST(Wait, WithValuesThatCannotWorkIsRefusedBeforeAnythingIsSent) {
    const Server server;
    Pool pool{endpoint_of(server)};
    Monitor monitor{server};
    const auto refuses = [&pool](const auto& policy) {
        return thrown_by([&] { const Lock lock{pool, "k", 10s, policy}; }) == Errc::invalid_argument &&
               thrown_by([&] { const Lock lock{pool, "k", 10s, std::try_to_lock, policy}; }) == Errc::invalid_argument;
    };
    EXPECT_TRUE(refuses(Wait{.replicas = 1, .timeout = 0ms}));  // to the server 0 means for ever
    EXPECT_TRUE(refuses(Wait{.replicas = 1, .timeout = -1ms}));
    EXPECT_TRUE(refuses(Wait{.replicas = 1, .timeout = std::chrono::milliseconds::min()}));
    EXPECT_TRUE(refuses(Wait{.replicas = 1, .timeout = std::chrono::milliseconds::max()}));
    EXPECT_TRUE(refuses(Wait{.replicas = 0}));
    EXPECT_TRUE(refuses(Wait{.replicas = -1}));
    EXPECT_TRUE(refuses(WaitAof{.local = 1, .timeout = 0ms}));
    EXPECT_TRUE(refuses(WaitAof{.local = 1, .timeout = -1ms}));
    EXPECT_TRUE(refuses(WaitAof{.local = 2}));
    EXPECT_TRUE(refuses(WaitAof{.local = -1}));
    EXPECT_TRUE(refuses(WaitAof{.local = 0, .replicas = 0}));
    EXPECT_TRUE(refuses(WaitAof{.local = 0, .replicas = -1}));
    EXPECT_TRUE(monitor.commands().empty());
}

TEST(Wait, ConfirmsAnExtensionAndAShortfallLeavesTheEarlierDeadline) {
    const Server master;
    const auto replica = replica_of(master);
    set_going(master, 1);
    Raw raw{master};
    Pool pool{endpoint_of(master)};
    Lock lock{pool, "k", 10s, Wait{.replicas = 1, .timeout = 300ms}};
    Monitor monitor{master};
    EXPECT_TRUE(lock.extend(20s));
    EXPECT_GT(lock.remaining(), 15s);
    const auto names = names_of(monitor);
    ASSERT_GE(names.size(), 2U);
    EXPECT_EQ(names.back(), "WAIT");
    EXPECT_GT(Raw{*replica}.pttl("k"), 15'000);

    const auto deadline = lock.expires_at();
    replica->pause();
    std::error_code error;
    EXPECT_FALSE(lock.extend(60s, error));
    EXPECT_EQ(error, Errc::not_replicated);
    EXPECT_TRUE(lock.owns_lock());
    EXPECT_EQ(lock.expires_at(), deadline);
    EXPECT_FALSE(lock.extend(5s, error));
    EXPECT_EQ(error, Errc::not_replicated);
    EXPECT_LT(lock.remaining(), 5s);
    EXPECT_LE(raw.pttl("k"), 5'000);
}

TEST(Wait, UnderAWatchdogIsSaidOnceForABatch) {
    Server master;
    const auto replica = replica_of(master);
    set_going(master, 1);
    Pool pool{endpoint_of(master)};
    Losses losses;
    std::vector<Lock<Pool, Watchdog, Wait>> guards;
    for (int i = 0; i < 20; ++i) guards.emplace_back(pool, "k" + std::to_string(i), 6s, losses.watchdog(400ms), Wait{.replicas = 1, .timeout = 1s});
    Monitor monitor{master};
    master.pause();
    std::this_thread::sleep_for(700ms);  // meanwhile all of them become due
    master.resume();
    // How many extends one WAIT is for: in the thread's one connection the commands are in order.
    std::size_t largest = 0;
    EXPECT_TRUE(eventually([&] {
        std::size_t extended = 0;
        for (const auto& argv : said_by_clients(monitor)) {
            if (argv[0] == "WAIT") {
                largest = std::max(largest, extended);
                extended = 0;
            } else if (argv.size() > 4) {
                ++extended;
            }
        }
        return largest >= 10;
    }));
    for (const auto& lock : guards) EXPECT_TRUE(lock.owns_lock());
    EXPECT_EQ(losses.count(), 0);
}

TEST(Wait, UnderAWatchdogEndsTheLeaseWhereTheReplicaStaysAway) {
    const Server master;
    const auto replica = replica_of(master);
    set_going(master, 1);
    Pool pool{endpoint_of(master)};
    Losses losses;
    const Lock lock{pool, "k", 900ms, losses.watchdog(), Wait{.replicas = 1, .timeout = 100ms}};
    EXPECT_TRUE(stays([&] { return lock.owns_lock(); }, 1200ms));
    replica->pause();
    EXPECT_TRUE(losses.wait_for(1));
    EXPECT_FALSE(lock.owns_lock());
    EXPECT_EQ(losses.count(), 1);
}

TEST(Wait, UnderAWatchdogIsGivenItsTimeThoughOthersRenewOften) {
    const Server master;
    Proxy far{master};
    const auto replica = replica_of(far);
    set_going(master, 1);
    Pool pool{endpoint_of(master)};
    Losses losses, others;
    const Lock lock{pool, "k", 1200ms, losses.watchdog(), Wait{.replicas = 1, .timeout = 1s}};
    std::vector<Lock<Pool, Watchdog>> busy;
    for (int i = 0; i < 40; ++i) busy.emplace_back(pool, "k" + std::to_string(i), 600ms, others.watchdog(100ms));
    far.delay(Direction::to_client, 60ms);
    EXPECT_TRUE(stays([&] { return lock.owns_lock(); }, 3s));
    EXPECT_EQ(losses.count(), 0);
    EXPECT_EQ(others.count(), 0);
}

TEST(Wait, ForAReplicaThatStaysAwayHarmsNoOtherLock) {
    const Server master;
    const auto replica = replica_of(master);
    set_going(master, 1);
    Pool pool{endpoint_of(master)};
    Losses losses, others;
    const Lock lock{pool, "k", 1500ms, losses.watchdog(), Wait{.replicas = 1, .timeout = 1500ms}};
    std::vector<Lock<Pool, Watchdog>> neighbours;
    for (int i = 0; i < 10; ++i) neighbours.emplace_back(pool, "k" + std::to_string(i), 600ms, others.watchdog());
    replica->pause();
    EXPECT_TRUE(losses.wait_for(1));
    EXPECT_EQ(others.count(), 0);
    for (const auto& neighbour : neighbours) EXPECT_TRUE(neighbour.owns_lock());
}

// --- WAITAOF.

bool has_waitaof(const Server& server) {
    const auto version = server.server_version();
    return version.at_least(Kind::redis, 7, 2) || version.at_least(Kind::valkey, 7, 2);
}

TEST(WaitAof, GrantsWhatIsOnDisk) {
    Server server{{.config = {"appendfsync everysec"}, .append_only = true}};
    if (!has_waitaof(server)) GTEST_SKIP() << "this server has no WAITAOF";
    Pool pool{endpoint_of(server)};
    Monitor monitor{server};
    Lock lock{pool, "k", 60s, WaitAof{.local = 1, .timeout = 10s}};
    EXPECT_TRUE(lock.owns_lock());
    EXPECT_EQ(monitor.count([](const auto& command) { return command.argv == std::vector<std::string>{"WAITAOF", "1", "0", "10000"}; }), 1U);
    EXPECT_TRUE(lock.extend(50s));
    EXPECT_EQ(monitor.count(called("WAITAOF")), 2U);
    server.kill();
    server.start();
    EXPECT_EQ(Raw{server}.get("k"), lock.token());
    EXPECT_FALSE(lock.unlock());
}

TEST(WaitAof, OfAReplicaNeedsItsDisk) {
    const Server master{{.append_only = true}};
    if (!has_waitaof(master)) GTEST_SKIP() << "this server has no WAITAOF";
    const auto replica = replica_of(master, true);
    set_going(master, 1);
    Pool pool{endpoint_of(master)};
    { const Lock lock{pool, "k", 60s, WaitAof{.local = 1, .replicas = 1, .timeout = 20s}}; }
    replica->pause();
    Lock lock{pool, "k", 60s, std::defer_lock, WaitAof{.local = 0, .replicas = 1, .timeout = 100ms}};
    std::error_code error;
    EXPECT_FALSE(lock.try_lock(error));
    EXPECT_EQ(error, Errc::not_replicated);
    EXPECT_FALSE(Raw{master}.exists("k"));
}

TEST(WaitAof, OfAServerWithoutAnAppendOnlyFileReleasesTheKeyAndSaysSo) {
    const Server server;
    if (!has_waitaof(server)) GTEST_SKIP() << "this server has no WAITAOF";
    Pool pool{endpoint_of(server)};
    Lock lock{pool, "k", 60s, std::defer_lock, WaitAof{.local = 1, .timeout = 1s}};
    const std::string words = words_thrown_by([&] { lock.try_lock(); });
    EXPECT_NE(words.find("appendonly"), std::string::npos) << words;
    EXPECT_FALSE(lock.owns_lock());
    EXPECT_FALSE(Raw{server}.exists("k"));
}

TEST(WaitAof, OfAServerThatDoesNotKnowItIsUnsupportedAndTheKeyIsReleased) {
    const Server server{{.config = {has_waitaof(Server{}) ? "rename-command WAITAOF \"\"" : "appendfsync everysec"}}};
    Pool pool{endpoint_of(server)};
    Lock lock{pool, "k", 60s, std::defer_lock, WaitAof{.local = 1, .timeout = 1s}};
    std::error_code error;
    EXPECT_FALSE(lock.try_lock(error));
    EXPECT_EQ(error, Errc::unsupported);
    EXPECT_FALSE(lock.owns_lock());
    EXPECT_FALSE(Raw{server}.exists("k"));
}

}  // namespace
