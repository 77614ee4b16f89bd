// A lock that one guard lets go and another adopts, here or in another process.
#include "guards.hpp"

#include <support/eventually.hpp>
#include <support/process.hpp>

#include <gtest/gtest.h>

namespace {

using namespace std::chrono_literals;
using namespace guards;
using hiredlock::Errc;
using hiredlock::Lock;
using hiredlock::Pool;
using hiredlock::Ticket;
using support::eventually;
using support::Monitor;
using support::Raw;
using support::Server;

TEST(Ticket, LetsGoWithoutAWordToTheServer) {
    const Server server;
    Raw raw{server};
    Pool pool{endpoint_of(server)};
    Lock lock{pool, "k", 10s};
    const std::string token{lock.token()};
    Monitor monitor{server};
    const Ticket ticket = lock.release();
    EXPECT_EQ(ticket.key, "k");
    EXPECT_EQ(ticket.token, token);
    EXPECT_EQ(ticket.fencing, 0U);
    EXPECT_FALSE(lock.owns_lock());
    EXPECT_TRUE(lock.token().empty());
    EXPECT_EQ(lock.unlock(), Errc::not_held);
    EXPECT_TRUE(lock.release().token.empty());
    EXPECT_TRUE(monitor.commands().empty());
    EXPECT_EQ(raw.get("k"), token);
}

TEST(Ticket, IsAdoptedByAGuardOfAnotherPool) {
    const Server server;
    Raw raw{server};
    Pool here{endpoint_of(server)};
    Pool there{endpoint_of(server)};
    Ticket ticket = Lock{here, "k", 10s}.release();
    Lock adopted{there, ticket, 100s, std::adopt_lock};
    EXPECT_TRUE(adopted.owns_lock());
    EXPECT_EQ(adopted.key(), "k");
    EXPECT_EQ(adopted.token(), ticket.token);
    EXPECT_GT(raw.pttl("k"), 50'000);
    EXPECT_GT(adopted.remaining(), 50s);
    EXPECT_FALSE(adopted.unlock());
    EXPECT_FALSE(raw.exists("k"));
}

TEST(Ticket, IsAdoptedInAnotherProcess) {
    const Server server;
    Raw raw{server};
    Pool pool{endpoint_of(server)};
    Lock lock{pool, "k", 10s};
    const Ticket ticket = lock.release();
    const int status = support::run_in_child([&] {
        Pool own{endpoint_of(server)};
        const Lock adopted{own, ticket, 100s, std::adopt_lock};
        return adopted.owns_lock() && Raw{server}.pttl("k") > 50'000 ? 0 : 1;
    });
    EXPECT_EQ(status, 0);
    EXPECT_FALSE(raw.exists("k"));
}

TEST(Ticket, ThatHasExpiredOrIsAnothersIsNotAdopted) {
    const Server server;
    Raw raw{server};
    Pool pool{endpoint_of(server)};
    const Ticket ticket = Lock{pool, "k", 10s}.release();
    raw.del("k");
    const Lock expired{pool, ticket, 100s, std::adopt_lock};
    EXPECT_FALSE(expired.owns_lock());
    EXPECT_FALSE(raw.exists("k"));
    raw.set("k", "somebody", 10s);
    {
        Lock anothers{pool, ticket, 100s, std::adopt_lock};
        EXPECT_FALSE(anothers.owns_lock());
        EXPECT_EQ(anothers.unlock(), Errc::not_held);
    }
    EXPECT_EQ(raw.get("k"), "somebody");
    EXPECT_LE(raw.pttl("k"), 10'000);
}

TEST(Ticket, OfNothingIsNotAdopted) {
    const Server server;
    Pool pool{endpoint_of(server)};
    const Ticket nothing = Lock{pool, "k", 10s, std::defer_lock}.release();
    EXPECT_EQ(nothing.key, "k");
    EXPECT_TRUE(nothing.token.empty());
    Monitor monitor{server};
    Raw{server}.set("k", "");
    monitor.clear();
    Lock adopted{pool, nothing, 10s, std::adopt_lock};
    EXPECT_FALSE(adopted.owns_lock());
    EXPECT_TRUE(monitor.commands().empty());
}

TEST(Ticket, ThatNobodyAdoptsLeavesTheLockToItsTtl) {
    const Server server;
    Pool pool{endpoint_of(server)};
    { Lock{pool, "k", 200ms}.release(); }
    EXPECT_FALSE(Lock(pool, "k", 10s, std::try_to_lock).owns_lock());
    EXPECT_TRUE(Lock(pool, "k", 10s, 10s).owns_lock());
}

TEST(Ticket, MayBeTriedAgainWhereTheServerCouldNotBeReached) {
    Server server{{.append_only = true}};
    Pool pool{endpoint_of(server)};
    const Ticket ticket = Lock{pool, "k", 100s}.release();
    server.stop();
    EXPECT_EQ(thrown_by([&] { const Lock adopted{pool, ticket, 100s, std::adopt_lock}; }), Errc::unreachable);
    server.start();
    const Lock adopted{pool, ticket, 100s, std::adopt_lock};
    EXPECT_TRUE(adopted.owns_lock());
}

}  // namespace
