// CAD and CAS, as Tair has them, of a module that every server loads.
#include "native_commands.hpp"

#include <support/eventually.hpp>

#include <gtest/gtest.h>

#include <atomic>

namespace {

using namespace std::chrono_literals;
using namespace guards;
using namespace native;
using hiredlock::Connection;
using hiredlock::Endpoint;
using hiredlock::Errc;
using hiredlock::Lock;
using hiredlock::Pool;
using hiredlock::renew::Watchdog;
using hiredlock::unlocking::Deferred;
using support::eventually;
using support::Monitor;
using support::Raw;
using support::Server;
using support::ServerOptions;

/// A server on which CAD and CAS are the only commands for this: one that is built in is taken away.
ServerOptions only_tair() {
    ServerOptions options{.config = {"enable-module-command yes"}, .module = tairstring()};
    if (const auto form = built_in(Server{}))
        for (const std::string& command : commands_of(*form)) options.config.push_back("rename-command " + command + " \"\"");
    return options;
}

Endpoint forced(const Server& server) {
    Endpoint endpoint = endpoint_of(server);
    endpoint.cas = Cas::tair;
    return endpoint;
}

TEST(Tair, IsFoundWhereNothingIsBuiltIn) {
    const Server server{only_tair()};
    Pool pool{endpoint_of(server)};
    speaks(pool, server, Cas::tair);
    Connection connection{endpoint_of(server)};
    speaks(connection, server, Cas::tair);
    const Context context = connected(server);
    Connection borrowed = Connection::borrow(context.get());
    speaks(borrowed, server, Cas::tair);
}

TEST(Tair, ComesAfterWhatIsBuiltIn) {
    const Server server{{.module = tairstring()}};
    Pool pool{endpoint_of(server)};
    EXPECT_EQ(pool.cas(), built_in(server).value_or(Cas::tair));
    Pool asked{forced(server)};
    speaks(asked, server, Cas::tair);
}

TEST(Tair, WorksWhereScriptsAreDeniedAndThenSendsNone) {
    const Server server{only_tair()};
    Raw raw{server};
    set_user(raw, "no-scripts", without(Cas::script));
    Monitor monitor{server};
    for (const Cas wanted : {Cas::automatic, Cas::tair}) {
        Pool pool{as_user(server, "no-scripts", wanted)};
        speaks(pool, server, Cas::tair);
        { const Lock lock{pool, "k", 60s, Deferred{}}; }
        EXPECT_FALSE(pool.ping());
        EXPECT_FALSE(raw.exists("k"));
    }
    EXPECT_EQ(monitor.count(is_scripting), 0U);
    EXPECT_EQ(refused_commands(raw), 0U);
}

TEST(Tair, AnswersZeroForAnothersValueAndThatIsNoSuccess) {
    const Server server{only_tair()};
    Raw raw{server};
    Pool pool{forced(server)};
    Lock lock{pool, "k", 60s};
    raw.set("k", "thief", 50s);
    ASSERT_EQ(raw.number({"CAD", "k", std::string{lock.token()}}), 0);
    ASSERT_EQ(raw.number({"CAS", "k", std::string{lock.token()}, "x", "PX", "1000"}), 0);
    Lock second{pool, "other", 60s};
    raw.set("other", "thief", 50s);
    EXPECT_FALSE(lock.extend(100s));
    EXPECT_FALSE(lock.owns_lock());
    EXPECT_EQ(second.unlock(), Errc::not_held);
    EXPECT_EQ(raw.get("k"), "thief");
    EXPECT_EQ(raw.get("other"), "thief");
    EXPECT_LE(raw.pttl("k"), 50'000);
}

TEST(Tair, AnswersMinusOneForAnAbsentKeyAndThatIsNoSuccess) {
    const Server server{only_tair()};
    Raw raw{server};
    Pool pool{forced(server)};
    Lock lock{pool, "k", 60s};
    Lock second{pool, "other", 60s};
    raw({"FLUSHALL"});
    ASSERT_EQ(raw.number({"CAD", "k", std::string{lock.token()}}), -1);
    ASSERT_EQ(raw.number({"CAS", "k", std::string{lock.token()}, "x", "PX", "1000"}), -1);
    EXPECT_FALSE(lock.extend(100s));
    EXPECT_FALSE(lock.owns_lock());
    EXPECT_EQ(second.unlock(), Errc::not_held);
    EXPECT_EQ(raw.number({"DBSIZE"}), 0);
}

TEST(Tair, OfAKeyOfAnotherTypeIsAnErrorThatSaysSoAndLeavesItAsItWas) {
    const Server server{only_tair()};
    Raw raw{server};
    Pool pool{forced(server)};
    Lock lock{pool, "k", 60s};
    raw.del("k");
    raw({"RPUSH", "k", "a", "b"});
    const std::string words = words_thrown_by([&] { lock.extend(100s); });
    EXPECT_NE(words.find("WRONGTYPE"), std::string::npos) << words;
    EXPECT_EQ(thrown_by([&] { lock.extend(100s); }), Errc::wrong_type);
    EXPECT_EQ(lock.unlock(), Errc::wrong_type);
    EXPECT_EQ(raw.number({"LLEN", "k"}), 2);
    EXPECT_EQ(raw.pttl("k"), -1);
    raw.del("k");
    EXPECT_EQ(lock.unlock(), std::error_code{});  // gone by now, as far as the last answer could tell
}

// --- Out of memory, when the server refuses CAD and CAS, and scripts not.

TEST(TairOutOfMemory, IsDoneByScriptThisOnce) {
    const Server server{only_tair()};
    Raw raw{server};
    Connection connection{endpoint_of(server)};
    Lock lock{connection, "k", 60s};
    const std::string token{lock.token()};
    raw({"CONFIG", "SET", "maxmemory", "1"});
    ASSERT_EQ(raw({"CAD", "k", "x"}).text.substr(0, 4), "OOM ");
    ASSERT_EQ(raw({"CAS", "k", "x", "x"}).text.substr(0, 4), "OOM ");
    EXPECT_TRUE(lock.extend(100s));
    EXPECT_EQ(raw.get("k"), token);
    EXPECT_GT(raw.pttl("k"), 60'000);
    EXPECT_TRUE(lock.owns_lock());
    EXPECT_EQ(connection.cas(), Cas::tair);
    EXPECT_EQ(lock.unlock(), std::error_code{});
    EXPECT_FALSE(raw.exists("k"));
    raw({"CONFIG", "SET", "maxmemory", "0"});
    speaks(connection, server, Cas::tair);
}

TEST(TairOutOfMemory, LosesNoLockThatAWatchdogKeeps) {
    const Server server{only_tair()};
    Raw raw{server};
    Pool pool{endpoint_of(server)};
    std::atomic<int> lost{0};
    Lock lock{pool, "k", 2s, Watchdog{.interval = 50ms, .on_lost = [&](const hiredlock::Error&) { ++lost; }}};
    raw({"CONFIG", "SET", "maxmemory", "1"});
    Monitor monitor{server};
    EXPECT_TRUE(eventually([&] { return monitor.count(extends("k")) >= 5; }));
    EXPECT_TRUE(lock.owns_lock());
    EXPECT_EQ(lost, 0);
    EXPECT_EQ(raw.get("k"), lock.token());
    EXPECT_EQ(lock.unlock(), std::error_code{});
    EXPECT_FALSE(raw.exists("k"));
}

/// Where only CAD and CAS may be used, they fail: that the lock is still held and not released is told, and it is kept.
template <class Store>
void is_told(Store& store, Raw& raw) {
    Lock lock{store, "k", 60s};
    const std::string token{lock.token()};
    raw({"CONFIG", "SET", "maxmemory", "1"});
    const std::string words = words_thrown_by([&] { lock.extend(50s); });
    EXPECT_NE(words.find("OOM"), std::string::npos) << words;
    EXPECT_EQ(thrown_by([&] { lock.extend(50s); }), Errc::out_of_memory);
    EXPECT_TRUE(lock.owns_lock());
    EXPECT_EQ(lock.unlock(), Errc::out_of_memory);
    EXPECT_EQ(raw.get("k"), token);
    raw({"CONFIG", "SET", "maxmemory", "0"});
    EXPECT_EQ(lock.unlock(), std::error_code{});
    EXPECT_FALSE(raw.exists("k"));
}

TEST(TairOutOfMemory, WhereTheScriptWasNotAskedForOrIsDeniedIsNeitherLostNorReleased) {
    const Server server{only_tair()};
    Raw raw{server};
    Connection asked{forced(server)};
    is_told(asked, raw);
    set_user(raw, "no-scripts", without(Cas::script));
    Connection denied{as_user(server, "no-scripts")};
    is_told(denied, raw);
    speaks(denied, server, Cas::tair);
}

TEST(TairOutOfMemory, DeferredReleaseIsDoneOrToldAndTheLockEndsByItsTtl) {
    const Server server{only_tair()};
    Raw raw{server};
    Heard heard;
    Connection connection{endpoint_of(server), heard.hook()};
    { const Lock lock{connection, "k", 60s, Deferred{}}; }  // shows that CAD works, so that the next one is not waited for
    std::string token;
    {
        const Lock lock{connection, "k", 60s, Deferred{}};
        token = lock.token();
        raw({"CONFIG", "SET", "maxmemory", "1"});
    }
    EXPECT_FALSE(connection.ping());
    const bool done = !raw.exists("k");
    EXPECT_EQ(heard.codes(), done ? std::vector<std::error_code>{} : std::vector<std::error_code>{Errc::out_of_memory});
    EXPECT_TRUE(done || raw.pttl("k") > 0);
    EXPECT_EQ(heard.words().find(token), std::string::npos) << heard.words();
}

// --- Replicas, and a module that goes.

TEST(Tair, ReachesReplicas) {
    const Server master{only_tair()};
    const Server replica{{.replica_of_port = master.port()}};  // without the module
    ASSERT_TRUE(replica.wait_until_linked());
    Raw raw{replica};
    Pool pool{forced(master)};
    Lock lock{pool, "k", 20s};
    ASSERT_TRUE(eventually([&] { return raw.get("k") == std::string{lock.token()}; }));
    EXPECT_LE(raw.pttl("k"), 20'000);
    EXPECT_TRUE(lock.extend(100s));
    EXPECT_TRUE(eventually([&] { return raw.pttl("k") > 50'000; }));
    EXPECT_EQ(raw.get("k"), lock.token());
    EXPECT_FALSE(lock.unlock());
    EXPECT_TRUE(eventually([&] { return !raw.exists("k"); }));
}

TEST(TairModule, ThatIsUnloadedUnderALiveConnectionIsReplacedByTheScriptOnce) {
    for (const bool extends_first : {false, true}) {
        SCOPED_TRACE(extends_first ? "at an extend" : "at a release");
        const Server server{only_tair()};
        Raw raw{server};
        Connection connection{endpoint_of(server)};
        speaks(connection, server, Cas::tair);
        Lock lock{connection, "k", 60s};
        ASSERT_TRUE(raw({"MODULE", "UNLOAD", "tairstring"}).is_ok());
        Monitor monitor{server};
        if (extends_first) {
            EXPECT_TRUE(lock.extend(100s));
            EXPECT_GT(raw.pttl("k"), 60'000);
        }
        EXPECT_EQ(lock.unlock(), std::error_code{});
        EXPECT_FALSE(raw.exists("k"));
        EXPECT_EQ(monitor.count([](const auto& command) { return command.name() == "COMMAND"; }), 0U) << "it was another connection";
        speaks(connection, server, Cas::script);
    }
}

TEST(TairModule, ThatIsUnloadedUnderAForcedFormIsUnsupported) {
    const Server server{only_tair()};
    Raw raw{server};
    Heard heard;
    Connection connection{forced(server), heard.hook()};
    speaks(connection, server, Cas::tair);
    std::string token;
    {
        Lock lock{connection, "k", 60s};
        token = lock.token();
        ASSERT_TRUE(raw({"MODULE", "UNLOAD", "tairstring"}).is_ok());
        const std::string words = words_thrown_by([&] { lock.extend(100s); });
        EXPECT_NE(words.find("unknown command"), std::string::npos) << words;
        EXPECT_EQ(words.find(token), std::string::npos) << words;  // which the server quotes
        EXPECT_EQ(lock.unlock(), Errc::unsupported);
        EXPECT_EQ(raw.get("k"), token);
    }
    EXPECT_EQ(heard.codes(), std::vector<std::error_code>{Errc::unsupported});
    EXPECT_EQ(heard.words().find(token), std::string::npos) << heard.words();
}

}  // namespace
