// Which compare-and-delete command is used on this server, seen by MONITOR: the one found, the one asked for, and the one that is left.
#include "native_commands.hpp"

#include <support/eventually.hpp>

#include <gtest/gtest.h>

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
using hiredlock::unlocking::Deferred;
using support::Monitor;
using support::Raw;
using support::Server;

Endpoint speaking(const Server& server, Cas form) {
    Endpoint endpoint = endpoint_of(server);
    endpoint.cas = form;
    return endpoint;
}

std::vector<Cas> forms_of(const Server& server) {
    std::vector<Cas> forms{Cas::script};
    if (const auto form = built_in(server)) forms.push_back(*form);
    return forms;
}

/// That a Store finds at once that the server lacks the command asked for, and takes no lock there.
template <class Store>
void is_unsupported(Store& store, const Server& server) {
    Raw raw{server};
    Monitor monitor{server};
    ASSERT_EQ(store.ping(), Errc::unsupported);
    EXPECT_EQ(thrown_by([&] { store.cas(); }), Errc::unsupported);
    const auto start = std::chrono::steady_clock::now();
    ASSERT_EQ(thrown_by([&] { const Lock lock{store, "k", 60s, std::try_to_lock}; }), Errc::unsupported);
    EXPECT_EQ(thrown_by([&] { const Lock lock{store, "k", 60s, 1h}; }), Errc::unsupported);
    EXPECT_EQ(thrown_by([&] { const Lock lock{store, "k", 60s}; }), Errc::unsupported);
    EXPECT_LT(since(start), 5s);
    EXPECT_FALSE(raw.exists("k"));
    EXPECT_EQ(monitor.count(acquires("k")), 0U);
    EXPECT_EQ(monitor.count(is_scripting), 0U);
}

TEST(AutomaticForm, IsTheServersOwnCommandWhereThereIsOne) {
    const Server server;
    Pool pool{endpoint_of(server)};
    speaks(pool, server, best(server));
    Connection connection{endpoint_of(server)};
    speaks(connection, server, best(server));
    const Context context = connected(server);
    Connection borrowed = Connection::borrow(context.get());
    speaks(borrowed, server, best(server));
}

TEST(AutomaticForm, IsFoundWithoutARoundTripOfItsOwn) {
    const Server server;
    support::Proxy proxy{server};
    Connection connection{endpoint_of(proxy)};
    ASSERT_FALSE(connection.ping());
    proxy.cut();
    Monitor monitor{server};
    proxy.hold(support::Direction::to_server);  // the first write of a new connection
    auto waiter = std::thread{[&] { EXPECT_FALSE(connection.ping()); }};
    EXPECT_TRUE(support::eventually([&] { return proxy.held(support::Direction::to_server) > 0; }));
    const auto first = proxy.held(support::Direction::to_server);
    proxy.release(support::Direction::to_server);
    waiter.join();
    const auto said = said_by_clients(monitor);
    ASSERT_EQ(said.size(), 3U);
    EXPECT_EQ(said[0], (Words{"CLIENT", "SETNAME", "hiredlock"}));
    EXPECT_EQ(said[1], (Words{"COMMAND", "INFO", "DELEX", "DELIFEQ", "CAD", "CAS"}));
    EXPECT_EQ(said[2], (Words{"PING"}));
    EXPECT_GT(first, 60U) << "the name and the question were not written together";
}

TEST(ForcedForm, IsTheOnlyOneUsedWhereTheServerHasIt) {
    const Server server;
    for (const Cas form : forms_of(server)) {
        SCOPED_TRACE(name(form));
        Pool pool{speaking(server, form)};
        speaks(pool, server, form);
        Connection connection{speaking(server, form)};
        speaks(connection, server, form);
    }
}

TEST(ForcedForm, ThatTheServerLacksIsUnsupportedAtOnce) {
    const Server server;
    for (const Cas form : {Cas::tair, Cas::delex, Cas::delifeq}) {
        if (form == built_in(server)) continue;
        SCOPED_TRACE(name(form));
        Pool pool{speaking(server, form)};
        is_unsupported(pool, server);
        Connection connection{speaking(server, form)};
        is_unsupported(connection, server);
    }
}

TEST(ForcedForm, ThatTheServerLacksIsUnsupportedAtOnceAlsoWhereCommandIsDenied) {
    const Server server;
    Raw raw{server};
    set_user(raw, "asks-nothing", {"-command"});
    for (const Cas form : {Cas::tair, Cas::delex, Cas::delifeq}) {
        if (form == built_in(server)) continue;
        SCOPED_TRACE(name(form));
        Pool pool{as_user(server, "asks-nothing", form)};
        is_unsupported(pool, server);
        Connection connection{as_user(server, "asks-nothing", form)};
        is_unsupported(connection, server);
    }
    for (const Cas form : forms_of(server)) {
        Pool pool{as_user(server, "asks-nothing", form)};
        speaks(pool, server, form);
    }
}

TEST(ForcedForm, ThatIsDeniedIsDenied) {
    const Server server;
    Raw raw{server};
    for (const Cas form : forms_of(server)) {
        SCOPED_TRACE(name(form));
        set_user(raw, "limited", without(form));
        Heard heard;
        Pool pool{as_user(server, "limited", form), {.on_error = heard.hook()}};
        std::string token;
        {
            Lock lock{pool, "k", 60s};
            token = lock.token();
            EXPECT_EQ(lock.unlock(), Errc::denied);
            EXPECT_EQ(lock.unlock(), Errc::denied);
            EXPECT_EQ(raw.get("k"), token);
        }
        EXPECT_EQ(heard.codes(), std::vector<std::error_code>{Errc::denied});
        EXPECT_NE(heard.words().find("NOPERM"), std::string::npos) << heard.words();
        EXPECT_EQ(heard.words().find(token), std::string::npos) << heard.words();
        raw.del("k");
    }
}

// --- Without scripts. Where the server has nothing built in, a module gives it CAD and CAS.

TEST(ServersOwnCommand, WorksWhereScriptsAreDeniedAndThenSendsNone) {
    const Server server{{.module = tairstring()}};
    const Cas form = built_in(server).value_or(Cas::tair);
    Raw raw{server};
    set_user(raw, "no-scripts", without(Cas::script));
    for (const Cas wanted : {Cas::automatic, form}) {
        SCOPED_TRACE(name(wanted));
        raw({"ACL", "LOG", "RESET"});
        Monitor monitor{server};
        Pool pool{as_user(server, "no-scripts", wanted)};
        speaks(pool, server, form);
        Connection connection{as_user(server, "no-scripts", wanted)};
        speaks(connection, server, form);
        for (int i = 0; i < 3; ++i) {
            const Lock lock{pool, "deferred", 60s, Deferred{}};
        }
        EXPECT_FALSE(pool.ping());
        EXPECT_FALSE(raw.exists("deferred"));
        EXPECT_EQ(monitor.count(is_scripting), 0U);
        EXPECT_EQ(refused_commands(raw), 0U);
    }
    const Context context = connected(server, "no-scripts");
    Connection borrowed = Connection::borrow(context.get());
    Monitor monitor{server};
    speaks(borrowed, server, form);
    EXPECT_EQ(monitor.count(is_scripting), 0U);
    EXPECT_EQ(refused_commands(raw), 0U);
}

TEST(ServersOwnCommand, ServesFencedLocksWhereScriptsAreDenied) {
    const Server server{{.module = tairstring()}};
    const Cas form = built_in(server).value_or(Cas::tair);
    Raw raw{server};
    set_user(raw, "no-scripts", without(Cas::script));
    std::uint64_t last = 0;
    for (const Cas wanted : {Cas::automatic, form}) {
        SCOPED_TRACE(name(wanted));
        raw({"ACL", "LOG", "RESET"});
        Connection connection{as_user(server, "no-scripts", wanted)};
        for (int i = 0; i < 5; ++i) {
            Lock lock{connection, "k", 60s, Counter{}};
            EXPECT_GT(lock.fencing_token(), last);
            last = lock.fencing_token();
            EXPECT_TRUE(lock.extend(100s));
            EXPECT_FALSE(Lock(connection, "k", 60s, std::try_to_lock, Counter{}).owns_lock());
            EXPECT_FALSE(lock.unlock());
            EXPECT_FALSE(raw.exists("k"));
        }
        // Found out once on a connection; where the script was not asked for it is not tried.
        EXPECT_EQ(refusals(raw, "evalsha"), wanted == Cas::automatic ? 1 : 0);
        EXPECT_EQ(refusals(raw, "eval"), 0);
    }
}

TEST(ServersOwnCommand, IsFoundByTryingWhereScriptsAreDeniedAndCommandIsToo) {
    const Server server{{.module = tairstring()}};
    Raw raw{server};
    set_user(raw, "blind", {"-command", "-eval", "-evalsha", "-script"});
    Heard heard;
    Pool pool{as_user(server, "blind"), {.on_error = heard.hook()}};
    { const Lock lock{pool, "k", 60s}; }
    EXPECT_FALSE(raw.exists("k"));
    EXPECT_TRUE(heard.codes().empty()) << heard.words();
    raw({"ACL", "LOG", "RESET"});
    speaks(pool, server, built_in(server).value_or(Cas::tair));
    EXPECT_EQ(refused_commands(raw), 0U) << "it was found out more than once on one connection";
}

TEST(ServersOwnCommand, IsFoundByTryingBeforeADeferredReleaseRelies) {
    const Server server{{.module = tairstring()}};
    Raw raw{server};
    set_user(raw, "blind", {"-command", "-eval", "-evalsha", "-script"});
    Heard heard;
    Connection connection{as_user(server, "blind"), heard.hook()};
    for (int i = 0; i < 3; ++i) {
        Lock lock{connection, "k", 60s, std::try_to_lock, Deferred{}};
        EXPECT_TRUE(lock.extend(100s));  // SET ... IFEQ, which does not tell the two forms apart
        EXPECT_FALSE(lock.unlock());
        EXPECT_FALSE(connection.ping());
        EXPECT_FALSE(raw.exists("k"));
    }
    EXPECT_TRUE(heard.codes().empty()) << heard.words();
}

// --- A key of another type.

TEST(KeyOfAnotherType, IsToldByEachFormAndLeftAsItWas) {
    const Server server;
    Raw raw{server};
    for (const Cas form : forms_of(server)) {
        SCOPED_TRACE(name(form));
        Connection connection{speaking(server, form)};
        Lock lock{connection, "k", 60s};
        const std::string token{lock.token()};
        raw.del("k");
        raw({"RPUSH", "k", "a", "b"});
        const std::string extending = words_thrown_by([&] { lock.extend(100s); });
        EXPECT_EQ(thrown_by([&] { lock.extend(100s); }), Errc::wrong_type);
        EXPECT_EQ(lock.unlock(), Errc::wrong_type);
        EXPECT_TRUE(extending.find("WRONGTYPE") != std::string::npos || extending.find("string type") != std::string::npos) << extending;
        EXPECT_EQ(extending.find(token), std::string::npos) << extending;
        EXPECT_EQ(raw.number({"LLEN", "k"}), 2);
        EXPECT_EQ(raw.pttl("k"), -1);
        raw.del("k");
        EXPECT_EQ(lock.unlock(), std::error_code{});  // gone by now, as far as the last answer could tell
    }
}

#if HIREDIS_MAJOR >= 1
TEST(BorrowedContext, InResp3SpeaksTheServersOwnCommandToo) {
    const Server server;
    const Context context = connected(server);
    freeReplyObject(redisCommand(context.get(), "HELLO 3"));
    Connection borrowed = Connection::borrow(context.get());
    speaks(borrowed, server, best(server));
    Raw raw{server};
    raw.set("k", "another's", 60s);
    EXPECT_FALSE(Lock(borrowed, "k", 60s, std::try_to_lock).owns_lock());
}
#endif

}  // namespace
