// Reaching a server: by TCP and by unix socket, with password, user, database and name, again after the connection was cut.
#include "guards.hpp"

#include <support/eventually.hpp>

#include <gtest/gtest.h>

namespace {

using namespace std::chrono_literals;
using namespace guards;
using hiredlock::Cas;
using hiredlock::Connection;
using hiredlock::Endpoint;
using hiredlock::Errc;
using hiredlock::Lock;
using hiredlock::Pool;
using support::eventually;
using support::Kind;
using support::Monitor;
using support::Raw;
using support::Server;

template <class Store>
void serves(Store& store, Raw& raw) {
    {
        const Lock lock{store, "k", 60s};
        EXPECT_EQ(raw.get("k"), lock.token());
    }
    EXPECT_FALSE(raw.exists("k"));
}

TEST(Address, IsAUriOrAnEndpointByTcpOrByUnixSocket) {
    const Server server;
    Raw raw{server};
    Pool by_uri{server.uri()};
    serves(by_uri, raw);
    Pool by_unix_uri{server.unix_uri()};
    serves(by_unix_uri, raw);
    Pool by_port{Endpoint{.port = server.port()}};
    serves(by_port, raw);
    Pool by_path{Endpoint{.host = "nowhere.invalid", .port = 1, .unix_socket = server.socket_path()}};
    serves(by_path, raw);
    Pool by_name{Endpoint{.host = "localhost", .port = server.port()}};
    serves(by_name, raw);
    Connection own{server.uri()};
    serves(own, raw);
    Connection own_unix{Endpoint::parse(server.unix_uri())};
    serves(own_unix, raw);
}

TEST(Address, OfAServerWithoutTcpIsItsUnixSocket) {
    const Server server{{.tcp = false}};
    Raw raw{server};
    Pool pool{server.unix_uri() + "?db=3"};
    const Lock lock{pool, "k", 60s};
    raw({"SELECT", "3"});
    EXPECT_EQ(raw.get("k"), lock.token());
}

TEST(Address, MakesNoConnectionUntilItIsUsed) {
    const Server server;
    const support::Proxy proxy{server};
    Pool pool{endpoint_of(proxy)};
    Connection connection{endpoint_of(proxy)};
    const Lock lock{pool, "k", 60s, std::defer_lock};
    EXPECT_EQ(proxy.accepted(), 0U);
    Pool nobody{Endpoint{.port = 1}};
    EXPECT_EQ(nobody.ping(), Errc::unreachable);
    Pool no_socket{Endpoint{.unix_socket = "nowhere.sock"}};
    EXPECT_EQ(no_socket.ping(), Errc::unreachable);
}

TEST(LoggingIn, TakesAPasswordAnAclUserADatabaseAndAName) {
    const std::string password = "p @:/?#%\"\\\r\n";
    const Server server{{.password = "pw", .acl_users = {"bob on >secret ~* &* +@all"}}};
    Raw raw{server};
    raw({"CONFIG", "SET", "requirepass", password});
    Pool pool{Endpoint{.port = server.port(), .password = password, .database = 2, .client_name = "worker"}};
    const Lock lock{pool, "k", 60s};
    raw({"SELECT", "2"});
    EXPECT_EQ(raw.get("k"), lock.token());
    Pool bob{"redis://bob:secret@127.0.0.1:" + std::to_string(server.port()) + "/7"};
    const Lock of_bob{bob, "k", 60s};
    raw({"SELECT", "7"});
    EXPECT_EQ(raw.get("k"), of_bob.token());
    const std::string clients = raw.text({"CLIENT", "LIST"});
    EXPECT_NE(clients.find(" name=worker "), std::string::npos) << clients;
    EXPECT_NE(clients.find(" name=hiredlock "), std::string::npos) << clients;
    EXPECT_NE(clients.find(" user=bob"), std::string::npos) << clients;
}

TEST(LoggingIn, OfADatabaseThatDoesNotExistIsAnInvalidArgument) {
    const Server server;
    Pool pool{Endpoint{.port = server.port(), .database = 5000}};
    EXPECT_EQ(pool.ping(), Errc::invalid_argument);
    const auto start = std::chrono::steady_clock::now();
    EXPECT_EQ(thrown_by([&] { const Lock lock{pool, "k", 60s, 30s}; }), Errc::invalid_argument);
    EXPECT_LT(since(start), 5s);
    EXPECT_EQ(Raw{server}.number({"DBSIZE"}), 0);
}

TEST(LoggingIn, IsDoneAgainOnANewConnection) {
    const Server server{{.password = "pw"}};
    Raw raw{server};
    Endpoint endpoint = endpoint_of(server);
    endpoint.password = "pw";
    endpoint.database = 4;
    endpoint.client_name = "worker";
    Pool pool{endpoint};
    Connection connection{endpoint};
    { const Lock lock{pool, "k", 60s}; }
    { const Lock lock{connection, "l", 60s}; }
    Monitor monitor{server};
    for (int round = 0; round < 5; ++round) {
        ASSERT_GE(kill_clients(raw, "worker"), 2U);
        Lock lock{pool, "k", 60s};
        Lock other{connection, "l", 60s};
        for (const std::string& client : clients_named(raw, "worker")) EXPECT_NE(client.find(" db=4 "), std::string::npos) << client;
        ASSERT_GE(kill_clients(raw, "worker"), 2U);
        EXPECT_FALSE(lock.unlock());
        EXPECT_TRUE(other.extend(90s));
        EXPECT_FALSE(other.unlock());
    }
    const auto elsewhere = [](const auto& command) { return command.database != 4 && (names("k")(command) || names("l")(command)); };
    EXPECT_EQ(monitor.count(elsewhere), 0U);
    EXPECT_GE(monitor.count(acquires("k")), 5U);
}

TEST(Connection, KilledBetweenTwoCommandsIsReplacedUnseen) {
    const Server server;
    Raw raw{server};
    Pool pool{endpoint_of(server)};
    Connection connection{endpoint_of(server)};
    for (int round = 0; round < 20; ++round) {
        EXPECT_TRUE(Lock(pool, "k", 60s, std::try_to_lock).owns_lock());
        ASSERT_GE(kill_clients(raw), 1U);
        Lock lock{pool, "k", 60s, std::try_to_lock};
        EXPECT_TRUE(lock.owns_lock());
        ASSERT_GE(kill_clients(raw), 1U);
        EXPECT_TRUE(lock.extend(90s));
        ASSERT_GE(kill_clients(raw), 1U);
        EXPECT_EQ(lock.unlock(), std::error_code{});
        kill_clients(raw);
        Lock other{connection, "l", 60s, std::try_to_lock};
        EXPECT_TRUE(other.owns_lock());
        ASSERT_GE(kill_clients(raw), 1U);
        EXPECT_EQ(other.unlock(), std::error_code{});
    }
    EXPECT_TRUE(eventually([&] { return raw.number({"DBSIZE"}) == 0; }));
}

TEST(Connection, UsesTheNativeCommandWhereTheServerHasOne) {
    const Server server;
    Pool pool{endpoint_of(server)};
    const auto version = server.server_version();
    const Cas expected = version.at_least(Kind::redis, 8, 4) ? Cas::delex : version.at_least(Kind::valkey, 9) ? Cas::delifeq : Cas::script;
    EXPECT_EQ(pool.cas(), expected) << version.text();
    Connection connection{endpoint_of(server)};
    EXPECT_EQ(connection.cas(), expected) << version.text();
}

TEST(Connection, ToAServerThatLacksTheChosenCommandIsUnsupported) {
    const Server server;
    Endpoint endpoint = endpoint_of(server);
    endpoint.cas = Cas::tair;
    Pool pool{endpoint};
    EXPECT_EQ(pool.ping(), Errc::unsupported);
    EXPECT_EQ(thrown_by([&] { const Lock lock{pool, "k", 60s}; }), Errc::unsupported);
    EXPECT_EQ(Raw{server}.number({"DBSIZE"}), 0);
}

}  // namespace
