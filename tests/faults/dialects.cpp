// Servers that take a command away: by ACL, under a live connection, by being replaced, or for want of memory; scripts that are forgotten; and
// the answers of a cluster.
#include <live/native_commands.hpp>

#include <support/eventually.hpp>

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <sstream>

namespace {

using namespace std::chrono_literals;
using namespace guards;
using namespace native;
using hiredlock::Connection;
using hiredlock::Endpoint;
using hiredlock::Errc;
using hiredlock::Lock;
using hiredlock::Pool;
using hiredlock::fence::Counter;
using hiredlock::renew::Watchdog;
using hiredlock::unlocking::Deferred;
using support::eventually;
using support::Monitor;
using support::Raw;
using support::Server;
using support::ServerOptions;

/// With the module, so that every server has a command of its own.
ServerOptions with_module() { return {.module = tairstring()}; }

Cas best_with_module(const Server& server) { return built_in(server).value_or(Cas::tair); }

// --- COMMAND INFO lists what ACL denies.

TEST(DeniedCommand, ThatIsListedIsReplacedByTheScriptOncePerConnection) {
    const Server server{with_module()};
    const Cas form = best_with_module(server);
    Raw raw{server};
    set_user(raw, "limited", without(form));
    Connection connection{as_user(server, "limited")};
    EXPECT_EQ(connection.cas(), form);
    raw({"ACL", "LOG", "RESET"});
    for (int i = 0; i < 5; ++i) whole_cycle(connection, raw, "k");
    EXPECT_EQ(connection.cas(), Cas::script);
    EXPECT_EQ(refusals(raw, "delex") + refusals(raw, "delifeq") + refusals(raw, "cad") + refusals(raw, "cas"), 1);
    Pool pool{as_user(server, "limited"), {.size = 1}};
    raw({"ACL", "LOG", "RESET"});
    for (int i = 0; i < 5; ++i) whole_cycle(pool, raw, "k");
    EXPECT_EQ(pool.cas(), Cas::script);
    EXPECT_EQ(refused_commands(raw), 1U);
    raw({"CLIENT", "KILL", "TYPE", "normal"});
    set_user(raw, "limited", {});
    speaks(connection, server, form);  // found out anew
    speaks(pool, server, form);
}

TEST(DeniedCommand, UnderALiveConnectionIsReplacedByTheScript) {
    const Server server{with_module()};
    const Cas form = best_with_module(server);
    Raw raw{server};
    set_user(raw, "limited", {});
    Connection connection{as_user(server, "limited")};
    Pool pool{as_user(server, "limited"), {.size = 1}};
    speaks(connection, server, form);
    speaks(pool, server, form);
    Lock lock{connection, "k", 60s};
    Lock other{pool, "l", 60s};
    set_user(raw, "limited", without(form));
    EXPECT_TRUE(lock.extend(100s));
    EXPECT_TRUE(other.extend(100s));
    EXPECT_EQ(lock.unlock(), std::error_code{});
    EXPECT_EQ(other.unlock(), std::error_code{});
    EXPECT_EQ(raw.number({"DBSIZE"}), 0);
    EXPECT_EQ(connection.cas(), Cas::script);
    EXPECT_EQ(pool.cas(), Cas::script);
}

TEST(DeniedCommand, ThenDeniedScriptIsReplacedByTheCommandAgain) {
    const Server server{with_module()};
    const Cas form = best_with_module(server);
    Raw raw{server};
    set_user(raw, "limited", without(form));
    Connection connection{as_user(server, "limited")};
    whole_cycle(connection, raw, "k");
    EXPECT_EQ(connection.cas(), Cas::script);
    set_user(raw, "limited", without(Cas::script));
    whole_cycle(connection, raw, "k");
    EXPECT_EQ(connection.cas(), form);
}

TEST(DeniedCommand, WhereEverythingIsDeniedIsToldInTheServersWordsWithoutALoop) {
    const Server server{with_module()};
    const Cas form = best_with_module(server);
    Raw raw{server};
    for (const bool blind : {false, true}) {
        SCOPED_TRACE(blind ? "COMMAND is denied too" : "COMMAND is allowed");
        Words rules{"-eval", "-evalsha", "-script", "-cad", "-cas"};
        if (built_in(server)) rules.push_back('-' + commands_of(form)[0]);
        if (blind) rules.emplace_back("-command");
        set_user(raw, "powerless", rules);
        Heard heard;
        Pool pool{as_user(server, "powerless"), {.size = 1, .on_error = heard.hook()}};
        const auto start = std::chrono::steady_clock::now();
        std::string token;
        {
            Lock lock{pool, "k", 60s};
            token = lock.token();
            std::error_code error;
            lock.extend(60s, error);  // by SET ... IFEQ where there is one
            raw({"ACL", "LOG", "RESET"});
            EXPECT_EQ(lock.unlock(), Errc::denied);
            EXPECT_EQ(refusals(raw, "evalsha"), 1);
            EXPECT_EQ(lock.unlock(), Errc::denied);
            EXPECT_EQ(raw.get("k"), token);
        }
        EXPECT_LT(since(start), 5s);
        EXPECT_EQ(heard.codes(), std::vector<std::error_code>{Errc::denied});
        EXPECT_NE(heard.words().find("NOPERM"), std::string::npos) << heard.words();
        EXPECT_EQ(heard.words().find(token), std::string::npos) << heard.words();
        raw.del("k");
    }
}

TEST(DeniedCommand, OfAnExtendIsAnErrorAndNeitherLostNorDone) {
    const Server server;
    Raw raw{server};
    set_user(raw, "limited", {});
    Connection connection{as_user(server, "limited")};
    Lock lock{connection, "k", 60s};
    set_user(raw, "limited", {"-@all", "+set", "+get", "+ping"});  // SET ... IFEQ where there is one
    const bool has_ifeq = built_in(server).has_value();
    std::error_code error;
    EXPECT_EQ(lock.extend(50s, error), has_ifeq);
    EXPECT_EQ(error, has_ifeq ? std::error_code{} : Errc::denied);
    EXPECT_TRUE(lock.owns_lock());
    set_user(raw, "limited", {"-@all", "+get", "+ping"});
    EXPECT_FALSE(lock.extend(40s, error));
    EXPECT_EQ(error, Errc::denied);
    EXPECT_TRUE(lock.owns_lock());
    EXPECT_LE(lock.remaining(), 40s);
    EXPECT_GT(raw.pttl("k"), 40'000);
    set_user(raw, "limited", {});
    EXPECT_TRUE(lock.extend(100s));
    EXPECT_FALSE(lock.unlock());
}

// --- A connection that is kept while its server loses a command, and deferred releases on it.

TEST(DeferredRelease, ThatIsRefusedIsToldAndTheNextFindsAnotherWay) {
    const Server server{with_module()};
    const Cas form = best_with_module(server);
    Raw raw{server};
    set_user(raw, "limited", {});
    Heard heard;
    Connection connection{as_user(server, "limited"), heard.hook()};
    for (int i = 0; i < 2; ++i) {
        const Lock lock{connection, "k", 60s, std::try_to_lock, Deferred{}};
    }
    set_user(raw, "limited", without(form));
    { const Lock lock{connection, "refused", 60s, Deferred{}}; }
    EXPECT_FALSE(connection.ping());
    EXPECT_EQ(heard.codes(), std::vector<std::error_code>{Errc::denied});
    for (int i = 0; i < 3; ++i) {
        const Lock lock{connection, "k", 60s, std::try_to_lock, Deferred{}};
    }
    EXPECT_FALSE(connection.ping());
    EXPECT_FALSE(raw.exists("k"));
    EXPECT_EQ(heard.codes().size(), 1U) << heard.words();
}

TEST(DeferredRelease, WhoseCommandHasGoneIsToldWithoutTheTokenThatTheServerQuotes) {
    ServerOptions options = with_module();
    options.config.emplace_back("enable-module-command yes");
    if (const auto form = built_in(Server{})) options.config.push_back("rename-command " + commands_of(*form)[0] + " \"\"");
    const Server server{options};
    Raw raw{server};
    Heard heard;
    Connection connection{endpoint_of(server), heard.hook()};
    for (int i = 0; i < 2; ++i) {
        const Lock lock{connection, "k", 60s, std::try_to_lock, Deferred{}};
    }
    ASSERT_TRUE(raw({"MODULE", "UNLOAD", "tairstring"}).is_ok());
    std::string token;
    {
        const Lock lock{connection, "refused", 60s, Deferred{}};
        token = lock.token();
    }
    EXPECT_FALSE(connection.ping());
    EXPECT_EQ(heard.codes(), std::vector<std::error_code>{Errc::unsupported});
    EXPECT_NE(heard.words().find("unknown command"), std::string::npos) << heard.words();
    EXPECT_EQ(heard.words().find(token), std::string::npos) << heard.words();
}

// --- Another server behind the same address.

/// The programs that HIREDLOCK_TEST_SERVERS names, with colons between.
std::vector<std::string> other_programs() {
    const char* const listed = std::getenv("HIREDLOCK_TEST_SERVERS");
    std::istringstream list{listed != nullptr ? listed : ""};
    std::vector<std::string> programs;
    for (std::string program; std::getline(list, program, ':');) programs.push_back(program);
    return programs;
}

class ReplacedServer : public testing::Test {
protected:
    /// A lock that is held while its server gives way to another with the same keys, which knows other commands.
    template <class Store>
    void survives(Store& store, Server& first, const ServerOptions& second_options, Cas expected) {
        Raw raw{first};
        speaks(store, first, before_);
        Lock lock{store, "k", 600s};
        Lock other{store, "l", 600s};
        const std::string token{lock.token()}, other_token{other.token()};
        first.kill();
        ServerOptions options = second_options;
        options.port = first.port();
        Server second{options};
        Raw then{second};
        then.set("k", token, 600s);
        then.set("l", other_token, 600s);
        Monitor monitor{second};
        EXPECT_EQ(other.unlock(), std::error_code{});
        EXPECT_FALSE(then.exists("l"));
        EXPECT_TRUE(lock.extend(1000s));
        EXPECT_GT(then.pttl("k"), 700'000);
        EXPECT_EQ(lock.unlock(), std::error_code{});
        EXPECT_FALSE(then.exists("k"));
        speaks(store, second, expected);
        second.kill();
        first.start();
    }

    void stands(const ServerOptions& second_options, Cas expected) {
        Server first{with_module()};
        before_ = best_with_module(first);
        Endpoint endpoint = endpoint_of(first);
        endpoint.command_timeout = endpoint.connect_timeout = 5s;
        Pool pool{endpoint};
        survives(pool, first, second_options, expected);
        Connection connection{endpoint};
        survives(connection, first, second_options, expected);
    }

    Cas before_ = Cas::automatic;
};

TEST_F(ReplacedServer, ThatLacksTheNativeCommandIsSpokenToByScript) {
    ServerOptions lesser;
    if (const auto form = built_in(Server{})) lesser.config.push_back("rename-command " + commands_of(*form)[0] + " \"\"");
    stands(lesser, Cas::script);
}

TEST_F(ReplacedServer, OfAnotherVersionIsSpokenToInItsOwnForm) {
    const auto programs = other_programs();
    if (programs.empty()) GTEST_SKIP() << "HIREDLOCK_TEST_SERVERS names no other servers";
    for (const std::string& program : programs) {
        const ServerOptions other{.program = program};
        const Server known{other};
        SCOPED_TRACE(known.server_version().text());
        stands(other, best(known));
    }
}

// --- Scripts that are forgotten.

TEST(ForgottenScript, IsSentAgainAfterSixHundredForeignOnesHaveTakenItsPlace) {
    const Server server;
    Raw raw{server};
    Connection connection{with_scripts(server)};
    whole_cycle(connection, raw, "k");
    const std::string release{hiredlock::detail::release_script.sha1}, extend{hiredlock::detail::extend_script.sha1};
    const auto known = [&](const std::string& sha1) { return raw({"SCRIPT", "EXISTS", sha1}).elements.at(0).integer == 1; };
    ASSERT_TRUE(known(release) && known(extend)) << "the servers compute other names for our scripts than we do";
    const auto crowd = [&] {
        for (int i = 0; i < 600; ++i) raw({"EVAL", "return " + std::to_string(i), "0"});
    };
    const auto version = server.server_version();
    const bool forgets = version.at_least(support::Kind::redis, 7, 4) || version.at_least(support::Kind::valkey, 8);
    Lock lock{connection, "k", 60s};
    crowd();
    EXPECT_EQ(known(extend), !forgets);
    EXPECT_TRUE(lock.extend(100s));
    EXPECT_TRUE(known(extend));
    crowd();
    EXPECT_EQ(known(release), !forgets);
    EXPECT_EQ(lock.unlock(), std::error_code{});
    EXPECT_FALSE(raw.exists("k"));
    EXPECT_TRUE(known(release));
}

TEST(ForgottenScript, BetweenAnyTwoCommandsIsSentAgain) {
    const Server server;
    Raw raw{server};
    Pool pool{with_scripts(server)};
    for (int i = 0; i < 5; ++i) {
        raw({"SCRIPT", "FLUSH"});
        Lock lock{pool, "k", 10s, Counter{}};
        EXPECT_EQ(lock.fencing_token(), static_cast<unsigned>(i + 1));
        raw({"SCRIPT", "FLUSH"});
        EXPECT_FALSE(Lock(pool, "k", 10s, std::try_to_lock, Counter{}).owns_lock());
        raw({"SCRIPT", "FLUSH"});
        EXPECT_TRUE(lock.extend(100s));
        EXPECT_GT(raw.pttl("k"), 50'000);
        raw({"SCRIPT", "FLUSH"});
        EXPECT_EQ(lock.unlock(), std::error_code{});
        EXPECT_FALSE(raw.exists("k"));
    }
}

// --- Out of memory. The servers refuse SET ... IFEQ, CAS and CAD then, and scripts not.

TEST(OutOfMemory, RepeatsTheExtendAsAScriptAndKeepsTheForm) {
    const Server server;
    Raw raw{server};
    Connection connection{endpoint_of(server)};
    raw({"CONFIG", "SET", "maxmemory", "0"});
    Lock lock{connection, "k", 60s};
    const std::string token{lock.token()};
    raw({"CONFIG", "SET", "maxmemory", "1"});
    ASSERT_EQ(raw({"SET", "k", token, "XX"}).text.substr(0, 4), "OOM ");
    Monitor monitor{server};
    EXPECT_TRUE(lock.extend(100s));
    EXPECT_EQ(monitor.count([](const auto& command) { return command.name() == "EVAL" && command.argv.size() == 6; }), 1U);
    EXPECT_EQ(raw.get("k"), token);
    EXPECT_GT(raw.pttl("k"), 60'000);
    EXPECT_TRUE(lock.owns_lock());
    EXPECT_EQ(connection.cas(), best(server));
    EXPECT_EQ(lock.unlock(), std::error_code{});
    EXPECT_FALSE(raw.exists("k"));
    raw({"CONFIG", "SET", "maxmemory", "0"});
    speaks(connection, server, best(server));
}

TEST(OutOfMemory, WhereTheScriptMayNotHelpIsAnErrorAndTheLockIsHeldAndReleased) {
    const Server server;
    const auto form = built_in(server);
    Raw raw{server};
    set_user(raw, "no-scripts", without(Cas::script));
    for (const Endpoint& endpoint : {as_user(server, "no-scripts"), as_user(server, "no-scripts", form.value_or(Cas::automatic))}) {
        raw({"CONFIG", "SET", "maxmemory", "0"});
        Connection connection{endpoint};
        Lock lock{connection, "k", 60s};
        const std::string token{lock.token()};
        raw({"CONFIG", "SET", "maxmemory", "1"});
        std::error_code error;
        EXPECT_FALSE(lock.extend(50s, error));
        EXPECT_EQ(error, form ? Errc::out_of_memory : Errc::denied);
        EXPECT_TRUE(lock.owns_lock());
        EXPECT_EQ(raw.get("k"), token);
        EXPECT_EQ(lock.unlock(), form ? std::error_code{} : Errc::denied);  // DELEX and DELIFEQ work
        EXPECT_EQ(raw.exists("k"), !form);
        raw.del("k");
    }
}

TEST(OutOfMemory, IsNoLossForAWatchdog) {
    const Server server;
    Raw raw{server};
    Pool pool{endpoint_of(server)};
    std::atomic<int> lost{0};
    Lock lock{pool, "k", 2s, Watchdog{.interval = 50ms, .on_lost = [&](const hiredlock::Error&) { ++lost; }}};
    raw({"CONFIG", "SET", "maxmemory", "1"});
    Monitor monitor{server};
    EXPECT_TRUE(eventually([&] { return monitor.count(extends("k")) >= 5; }));
    EXPECT_TRUE(lock.owns_lock());
    EXPECT_EQ(lost, 0);
    EXPECT_GT(raw.pttl("k"), 1'000);
    EXPECT_EQ(lock.unlock(), std::error_code{});
    EXPECT_FALSE(raw.exists("k"));
}

// --- A cluster. One of its nodes is this server, which has the slots up to 8191; the other one does not exist.

constexpr unsigned last_slot_here = 8191;

/// A key in a slot that is, or is not, this node's.
std::string key_here(bool here) {
    for (int i = 0;; ++i) {
        std::string key = "key" + std::to_string(i);
        if ((hiredlock::detail::cluster_slot(key) <= last_slot_here) == here) return key;
    }
}

class ClusterNode : public testing::Test {
protected:
    ClusterNode() {
        // Keys of the slot of "moving" are on their way to the other node.
        const std::string me(40, 'a'), other(40, 'b');
        server_.stop();
        std::ofstream nodes{server_.socket_path().substr(0, server_.socket_path().rfind('/')) + "/nodes.conf"};
        nodes << me << " 127.0.0.1:" << server_.port() << '@' << server_.port() + 10'000 << " myself,master - 0 0 1 connected 0-"
              << last_slot_here << " [" << hiredlock::detail::cluster_slot(moving_) << "->-" << other << "]\n"
              << other << " 127.0.0.1:1@10001 master - 0 0 2 connected " << last_slot_here + 1 << "-16383\n"
              << "vars currentEpoch 2 lastVoteEpoch 0\n";
        nodes.close();
        server_.start();
        Raw raw{server_};
        is_up_ = eventually([&] { return raw.text({"CLUSTER", "INFO"}).find("cluster_state:ok") != std::string::npos; }, 10s);
    }

    /// That an attempt is a failure of this kind, at once, in the server's words, and leaves no key.
    template <class... Policies>
    void refuses(const std::string& key, Errc code, const std::string& words, const Policies&... policies) {
        SCOPED_TRACE(key);
        Pool pool{endpoint_of(server_)};
        const auto start = std::chrono::steady_clock::now();
        EXPECT_EQ(thrown_by([&] { const Lock lock{pool, key, 60s, std::try_to_lock, policies...}; }), code);
        EXPECT_EQ(thrown_by([&] { const Lock lock{pool, key, 60s, 1h, policies...}; }), code);
        const std::string said = words_thrown_by([&] { const Lock lock{pool, key, 60s, policies...}; });
        EXPECT_LT(since(start), 5s);
        EXPECT_NE(said.find(words), std::string::npos) << said;
        Raw raw{server_};
        EXPECT_EQ(raw.number({"DBSIZE"}), 0);
    }

    const std::string moving_ = key_here(true) + "{" + key_here(true) + "}";
    Server server_{{.config = {"cluster-enabled yes", "cluster-node-timeout 600000"}}};
    bool is_up_ = false;
};

TEST_F(ClusterNode, ServesTheKeysOfItsSlots) {
    ASSERT_TRUE(is_up_);
    Raw raw{server_};
    for (const Cas form : {best(server_), Cas::script}) {
        Endpoint endpoint = endpoint_of(server_);
        endpoint.cas = form;
        Pool pool{endpoint};
        std::string key = "here" + key_here(true);
        while (hiredlock::detail::cluster_slot(key) > last_slot_here ||
               hiredlock::detail::cluster_slot(key) == hiredlock::detail::cluster_slot(moving_))
            key += 'x';
        whole_cycle(pool, raw, key);
        const Lock fenced{pool, key, 60s, Counter{}};
        EXPECT_GT(fenced.fencing_token(), 0U);
    }
}

TEST_F(ClusterNode, ThatSaysMovedAskOrCrossslotIsNotBusy) {
    ASSERT_TRUE(is_up_);
    refuses(key_here(false), Errc::unsupported, "MOVED");
    refuses(key_here(false), Errc::unsupported, "MOVED", Counter{});
    refuses(moving_, Errc::unsupported, "ASK");
    refuses("x{" + key_here(true) + "1}", Errc::unsupported, "CROSSSLOT", Counter{.key = "y{" + key_here(true) + "2}"});
}

TEST_F(ClusterNode, ThatGivesTheSlotOfAHeldLockAwayIsAnErrorAndNotALoss) {
    ASSERT_TRUE(is_up_);
    Raw raw{server_};
    std::string key = "here" + key_here(true);
    while (hiredlock::detail::cluster_slot(key) > last_slot_here ||
           hiredlock::detail::cluster_slot(key) == hiredlock::detail::cluster_slot(moving_))
        key += 'x';
    for (const Cas form : {best(server_), Cas::script}) {
        Endpoint endpoint = endpoint_of(server_);
        endpoint.cas = form;
        Heard heard;
        Pool pool{endpoint, {.on_error = heard.hook()}};
        {
            Lock lock{pool, key, 60s};
            const std::string slot = std::to_string(hiredlock::detail::cluster_slot(key));
            raw.del(key);
            ASSERT_TRUE(raw({"CLUSTER", "SETSLOT", slot, "NODE", std::string(40, 'b')}).is_ok());
            std::error_code error;
            EXPECT_FALSE(lock.extend(50s, error));
            EXPECT_EQ(error, Errc::unsupported);
            EXPECT_TRUE(lock.owns_lock());
            EXPECT_EQ(lock.unlock(), Errc::unsupported);
            ASSERT_TRUE(raw({"CLUSTER", "SETSLOT", slot, "NODE", std::string(40, 'a')}).is_ok());
        }
    }
}

TEST(ClusterNodeWithoutSlots, IsDownAndThatIsNotBusy) {
    const Server server{{.config = {"cluster-enabled yes"}}};
    Pool pool{endpoint_of(server)};
    const std::string words = words_thrown_by([&] { const Lock lock{pool, "k", 60s, std::try_to_lock}; });
    EXPECT_NE(words.find("CLUSTERDOWN"), std::string::npos) << words;
    std::error_code error;
    EXPECT_FALSE(Lock(pool, "k", 60s, std::defer_lock).try_lock(error));
    EXPECT_EQ(error, Errc::loading);
    EXPECT_TRUE(hiredlock::is_transient(error));  // so that it is waited for inside a limit
}

}  // namespace
