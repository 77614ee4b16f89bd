// Fencing numbers: they grow with every grant of a key, whatever happened to the grants before, and live in a key beside the lock's.
#include "losses.hpp"

#include <support/eventually.hpp>
#include <support/process.hpp>

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <optional>

namespace {

using namespace std::chrono_literals;
using namespace guards;
using hiredlock::Errc;
using hiredlock::Lock;
using hiredlock::Pool;
using hiredlock::Ticket;
using hiredlock::fence::Counter;
using support::Child;
using support::eventually;
using support::Lines;
using support::Monitor;
using support::Raw;
using support::Server;

TEST(FencingNumber, GrowsOverReleasesExpiriesRenewalsAndRestarts) {
    Server server{{.config = {"appendfsync always"}, .append_only = true}};
    std::optional<Raw> raw{server};
    std::uint64_t last = 0;
    const auto grows = [&last](const auto& lock) {
        EXPECT_TRUE(lock.owns_lock());
        EXPECT_GT(lock.fencing_token(), last);
        last = lock.fencing_token();
    };
    std::optional<Pool> pool{endpoint_of(server)};
    for (int i = 0; i < 5; ++i) grows(Lock{*pool, "k", 10s, Counter{}});  // released
    for (int i = 0; i < 3; ++i) {
        Lock lock{*pool, "k", 20ms, 5s, Counter{}};
        grows(lock);
        EXPECT_TRUE(eventually([&] { return !raw->exists("k"); }));  // expired
    }
    {
        Losses losses;
        Lock lock{*pool, "k", 10s, Counter{}, losses.watchdog(5ms)};
        grows(lock);
        Monitor monitor{server};
        EXPECT_TRUE(eventually([&] { return monitor.count(extends("k")) >= 3; }));  // renewed
        EXPECT_TRUE(lock.extend(20s));
        EXPECT_EQ(lock.fencing_token(), last);  // of the grant, as it was
    }
    pool.emplace(endpoint_of(server));  // the client started again
    grows(Lock{*pool, "k", 10s, Counter{}});
    server.restart();
    raw.emplace(server);
    grows(Lock{*pool, "k", 10s, Counter{}});
    grows(Lock{*pool, "k", 10s, 1s, Counter{}});
    Lock deferred{*pool, "k", 10s, std::defer_lock, Counter{}};
    EXPECT_EQ(deferred.fencing_token(), 0U);
    EXPECT_TRUE(deferred.try_lock());
    grows(deferred);
    deferred.unlock();
    deferred.lock();
    grows(deferred);
    EXPECT_EQ(raw->get("{k}:fence"), std::to_string(last));
    EXPECT_EQ(raw->pttl("{k}:fence"), -1);
}

TEST(FencingNumber, IsNotTakenByARefusedAttempt) {
    const Server server;
    Pool pool{endpoint_of(server)};
    const Lock lock{pool, "k", 10s, Counter{}};
    for (int i = 0; i < 5; ++i) {
        const Lock busy{pool, "k", 10s, std::try_to_lock, Counter{}};
        EXPECT_FALSE(busy.owns_lock());
        EXPECT_EQ(busy.fencing_token(), 0U);
    }
    EXPECT_EQ(Raw{server}.get("{k}:fence"), std::to_string(lock.fencing_token()));
}

TEST(FencingNumber, IsTakenInOneStepWithTheGrant) {
    const Server server;
    Pool pool{endpoint_of(server)};
    { const Lock first{pool, "k", 10s, Counter{}}; }
    Monitor monitor{server};
    const Lock lock{pool, "k", 10s, Counter{}};
    const auto said = said_by_clients(monitor);
    ASSERT_EQ(said.size(), 1U);
    EXPECT_EQ(said[0].at(0), "EVALSHA");
    EXPECT_EQ(said[0].at(3), "k");
    EXPECT_EQ(said[0].at(4), "{k}:fence");
    EXPECT_LE(Raw{server}.pttl("k"), 10'000);
    EXPECT_GT(Raw{server}.pttl("k"), 0);
}

TEST(FencingNumber, OfEightProcessesGrowsWithEachGrant) {
    const Server server;
    Raw raw{server};
    constexpr int cycles = 25;
    std::vector<Child> children;
    for (int i = 0; i < 8; ++i)
        children.push_back(Child::fork([&](Lines&) {
            Raw list{server};
            Pool pool{endpoint_of(server)};
            for (int n = 0; n < cycles; ++n) {
                const Lock lock{pool, "k", 30s, Counter{}, hiredlock::retry::Fixed{2ms}};
                list({"RPUSH", "numbers", std::to_string(lock.fencing_token())});
            }
            return 0;
        }));
    for (auto& child : children) EXPECT_EQ(child.wait(60s), 0);
    const auto numbers = raw({"LRANGE", "numbers", "0", "-1"}).elements;
    ASSERT_EQ(numbers.size(), 8U * cycles);
    for (std::size_t i = 1; i < numbers.size(); ++i) EXPECT_LT(std::stoull(numbers[i - 1].text), std::stoull(numbers[i].text));
}

TEST(FencingNumber, GoesWithATicket) {
    const Server server;
    Pool pool{endpoint_of(server)};
    { const Lock first{pool, "k", 10s, Counter{}}; }
    Lock lock{pool, "k", 10s, Counter{}};
    const Ticket ticket = lock.release();
    EXPECT_EQ(ticket.fencing, 2U);
    const Lock adopted{pool, ticket, 10s, std::adopt_lock, Counter{}};
    EXPECT_TRUE(adopted.owns_lock());
    EXPECT_EQ(adopted.fencing_token(), 2U);
}

TEST(FencingNumber, IsKeptInTheKeyThatIsGiven) {
    const Server server;
    Raw raw{server};
    raw.set("numbers", "41");
    Pool pool{endpoint_of(server)};
    {
        const Lock lock{pool, "k", 10s, Counter{.key = "numbers"}};
        EXPECT_EQ(lock.fencing_token(), 42U);
    }
    EXPECT_EQ(raw.get("numbers"), "42");
    EXPECT_EQ(raw.pttl("numbers"), -1);
    EXPECT_EQ(raw.number({"DBSIZE"}), 1);
}

TEST(FencingNumber, InTheLocksOwnKeyIsRefusedBeforeAnythingIsSent) {
    const Server server;
    Pool pool{endpoint_of(server)};
    Monitor monitor{server};
    EXPECT_EQ(thrown_by([&] { const Lock lock{pool, "k", 10s, Counter{.key = "k"}}; }), Errc::invalid_argument);
    EXPECT_TRUE(monitor.commands().empty());
}

/// What is in the way of the number keeps the lock from being taken, and nothing of it stays.
void expect_the_lock_is_not_kept(const Server& server, const hiredlock::Endpoint& endpoint, Errc expected) {
    Raw raw{server};
    Pool pool{endpoint};
    Lock lock{pool, "k", 30s, std::defer_lock, Counter{}};
    std::error_code error;
    EXPECT_FALSE(lock.try_lock(error));
    EXPECT_EQ(error, expected) << error.message();
    EXPECT_FALSE(lock.owns_lock());
    EXPECT_FALSE(raw.exists("k"));
}

TEST(FencingNumber, WhoseKeyHoldsAnotherTypeIsAnErrorAndTheLockIsReleased) {
    const Server server;
    Raw raw{server};
    raw({"LPUSH", "{k}:fence", "a"});
    expect_the_lock_is_not_kept(server, endpoint_of(server), Errc::wrong_type);
    raw.del("{k}:fence");
    Pool pool{endpoint_of(server)};
    EXPECT_TRUE((Lock{pool, "k", 30s, std::try_to_lock, Counter{}}.owns_lock()));
}

TEST(FencingNumber, WhoseKeyHoldsNoNumberIsAnErrorAndTheLockIsReleased) {
    const Server server;
    Raw raw{server};
    Pool pool{endpoint_of(server)};
    for (const char* value : {"not a number", "9223372036854775807"}) {
        raw.set("{k}:fence", value);
        const std::string words = words_thrown_by([&] { const Lock lock{pool, "k", 30s, std::try_to_lock, Counter{}}; });
        EXPECT_NE(words.find("k"), std::string::npos) << value;
        EXPECT_FALSE(raw.exists("k")) << value;
        EXPECT_EQ(raw.get("{k}:fence"), value);
    }
}

// --- Where scripts are denied.

hiredlock::Endpoint without_scripts(const Server& server) {
    auto endpoint = endpoint_of(server);
    endpoint.username = "bob";
    endpoint.password = "pw";
    return endpoint;
}
const support::ServerOptions no_scripts{.acl_users = {"default on nopass ~* &* +@all", "bob on >pw ~* &* +@all -eval -evalsha"}};

TEST(FencingNumber, GrowsWhereScriptsAreDenied) {
    const Server server{no_scripts};
    Raw raw{server};
    Pool pool{without_scripts(server)};
    std::uint64_t last = 0;
    Monitor monitor{server};
    for (int i = 0; i < 5; ++i) {
        Lock lock{pool, "k", 10s, std::defer_lock, Counter{}};
        EXPECT_TRUE(lock.try_lock());
        EXPECT_GT(lock.fencing_token(), last);
        last = lock.fencing_token();
        EXPECT_EQ(raw.get("k"), lock.token());
        EXPECT_FALSE((Lock{pool, "k", 10s, std::try_to_lock, Counter{}}.owns_lock()));
        EXPECT_EQ(raw.get("k"), lock.token());
        lock.release();  // a server without a command of its own for it cannot compare and delete here
        raw.del("k");
    }
    EXPECT_GE(monitor.count(called("MULTI")), 5U);
    EXPECT_EQ(raw.pttl("{k}:fence"), -1);
}

TEST(FencingNumber, WhoseKeyHoldsAnotherTypeReleasesTheLockWithoutScriptsToo) {
    const Server server{no_scripts};
    Raw raw{server};
    raw({"LPUSH", "{k}:fence", "a"});
    {
        Pool pool{without_scripts(server)};
        if (pool.cas() == hiredlock::Cas::script) GTEST_SKIP() << "this server can only compare and delete by script";
    }
    expect_the_lock_is_not_kept(server, without_scripts(server), Errc::wrong_type);
}

// --- In a cluster the number's key has to be where the lock's is.

constexpr std::array<std::string_view, 13> odd_keys{"a", "x{y}z", "{}", "{a", "a}b", "}", "{}x{y}", "{{a}}", "a{b", "}{", "{}{}", "a}{b}c{d}", "{x}"};

TEST(ClusterSlot, IsWhatAServerSays) {
    const Server node{{.config = {"cluster-enabled yes"}}};
    Raw raw{node};
    const auto slot = [&raw](std::string_view key) { return raw.number({"CLUSTER", "KEYSLOT", std::string{key}}); };
    for (const std::string_view key : odd_keys) {
        EXPECT_EQ(hiredlock::detail::cluster_slot(key), slot(key)) << key;
        EXPECT_EQ(slot(hiredlock::detail::fence_key_beside(std::string{key})), slot(key)) << key;
        EXPECT_NE(hiredlock::detail::fence_key_beside(std::string{key}), key);
    }
    const std::string binary("\0\xff}\r\n", 5);
    EXPECT_EQ(hiredlock::detail::cluster_slot(binary), slot(binary));
    EXPECT_EQ(slot(hiredlock::detail::fence_key_beside(binary)), slot(binary));
}

TEST(ClusterSlot, OfTheNumberIsThatOfTheLockSoThatAClusterNodeGrantsBoth) {
    const Server node{{.config = {"cluster-enabled yes"}}};
    Raw raw{node};
    ASSERT_TRUE(raw({"CLUSTER", "ADDSLOTSRANGE", "0", "16383"}).is_ok());
    ASSERT_TRUE(eventually([&] { return raw({"SET", "up", "1"}).is_ok(); }));
    Pool pool{endpoint_of(node)};
    for (const std::string_view key : odd_keys) {
        Lock lock{pool, std::string{key}, 10s, Counter{}};
        EXPECT_EQ(lock.fencing_token(), 1U) << key;  // and no two keys share a number
        EXPECT_FALSE(lock.unlock());
        lock.lock();
        EXPECT_EQ(lock.fencing_token(), 2U) << key;
    }
}

}  // namespace
