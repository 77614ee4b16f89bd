// Who may use a server: users and passwords of any bytes, the rights that each way of locking needs and no more, and what is said without them.
#include "native_commands.hpp"

#include <support/eventually.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <future>
#include <sstream>

namespace {

using namespace std::chrono_literals;
using namespace std::string_literals;
using namespace guards;
using namespace native;
using hiredlock::Connection;
using hiredlock::Endpoint;
using hiredlock::Errc;
using hiredlock::Lock;
using hiredlock::Pool;
using hiredlock::fence::Counter;
using hiredlock::renew::Watchdog;
using hiredlock::replication::Wait;
using hiredlock::replication::WaitAof;
using hiredlock::retry::OnRelease;
using support::eventually;
using support::Monitor;
using support::Raw;
using support::Server;

// --- Names and passwords.

/// Every byte percent-encoded, or only those that a URI gives a meaning to.
std::string encoded(const std::string& text, bool all) {
    std::string out;
    for (const char c : text) {
        const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        if (plain && !all) {
            out += c;
        } else {
            char hex[4];
            std::snprintf(hex, sizeof hex, "%%%02x", static_cast<unsigned>(static_cast<unsigned char>(c)));
            out += hex;
        }
    }
    return out;
}

const std::vector<std::string> unusual_passwords{
    " ",
    "with spaces  in it ",
    "%",
    "%41",
    "@",
    "a@b:c/d?e#f%g",
    "/",
    "#",
    ":",
    "::",
    "'\"\\",
    "p\xc3\xa4ssw\xc3\xb6rt \xf0\x9f\x94\x91",
    "\xff\xfe"s,
    "\0"s,
    "with\0NUL"s,
    "\r\n",
    "line\r\nAUTH default x\r\n",
    std::string(4000, 'p'),
};

void admits(const Endpoint& endpoint, const Server& server, const std::string& user) {
    Raw raw{server};
    Pool pool{endpoint};
    ASSERT_EQ(pool.ping(), std::error_code{});
    EXPECT_NE(raw.text({"CLIENT", "LIST"}).find(" user=" + user), std::string::npos);
    whole_cycle(pool, raw, "k");
}

TEST(Password, OfAnyBytesOpensTheServerInAnEndpointAndInAUri) {
    const Server server;
    Raw raw{server};
    const std::string user = "app";
    const std::string address = "@127.0.0.1:" + std::to_string(server.port());
    for (const std::string& password : unusual_passwords) {
        SCOPED_TRACE(encoded(password.substr(0, 40), true));
        ASSERT_TRUE(raw({"ACL", "SETUSER", user, "reset", "on", ">" + password, "~*", "&*", "+@all"}).is_ok());
        admits(Endpoint{.port = server.port(), .username = user, .password = password}, server, user);
        for (const bool all : {false, true}) admits(Endpoint::parse("redis://app:" + encoded(password, all) + address), server, user);
    }
}

TEST(Password, OfTheDefaultUserAloneIsGivenBehindAColon) {
    const Server server;
    Raw raw{server};
    const std::string password = "p\xc3\xa4 @:/?#%\r\n\0x"s;
    ASSERT_TRUE(raw({"ACL", "SETUSER", "default", ">" + password, "resetpass", ">" + password}).is_ok());
    Pool pool{"redis://:" + encoded(password, false) + "@127.0.0.1:" + std::to_string(server.port())};
    EXPECT_EQ(pool.ping(), std::error_code{});
    Pool nobody{endpoint_of(server)};
    EXPECT_EQ(nobody.ping(), Errc::denied);
}

TEST(User, OfAnyBytesThatTheServerAllowsIsAdmittedWithAPasswordOfAnyBytesInOneUri) {
    const Server server;
    Raw raw{server};
    for (const std::string& user : {"a@b:c/d?e#f%g"s, "%41"s, "j\xc3\xbcrgen\xf0\x9f\x94\x91"s, "\"'\\"s, "redis://x:y@z"s}) {
        for (const std::string& password : {"u:p@h/0?x#y%41 "s, "\0\r\n\xff"s}) {
            SCOPED_TRACE(user);
            ASSERT_TRUE(raw({"ACL", "SETUSER", user, "reset", "on", ">" + password, "~*", "&*", "+@all"}).is_ok());
            for (const bool all : {false, true}) {
                Pool pool{"redis://" + encoded(user, all) + ':' + encoded(password, all) + "@127.0.0.1:" + std::to_string(server.port()) +
                          "/3"};
                ASSERT_EQ(pool.ping(), std::error_code{});
                const Lock lock{pool, "k", 60s};
                raw({"SELECT", "3"});
                EXPECT_EQ(raw.get("k"), lock.token());
            }
            Pool another{"redis://" + encoded(user, false) + ':' + encoded(password + "x", false) +
                         "@127.0.0.1:" + std::to_string(server.port())};
            EXPECT_EQ(another.ping(), Errc::denied);
        }
    }
}

/// That every way in is refused at once, whatever the limit, in the server's words and without a word of the password or a token.
void is_denied(const Endpoint& endpoint, const std::string& servers_words, Errc code = Errc::denied) {
    Heard heard;
    Pool pool{endpoint, {.on_error = heard.hook()}};
    const auto start = std::chrono::steady_clock::now();
    EXPECT_EQ(pool.ping(), code);
    std::string said = words_thrown_by([&] { pool.cas(); });
    said += words_thrown_by([&] { const Lock lock{pool, "lock:k", 60s, std::try_to_lock}; });
    said += words_thrown_by([&] { const Lock lock{pool, "lock:k", 60s, 1h}; });
    said += words_thrown_by([&] { const Lock lock{pool, "lock:k", 60s, Watchdog{}}; });
    EXPECT_EQ(thrown_by([&] { Lock(pool, "lock:k", 60s, std::defer_lock).lock(); }), code);
    const std::string token(32, 'e');
    said += words_thrown_by([&] { const Lock adopted{pool, hiredlock::Ticket{"lock:k", token}, 60s, std::adopt_lock}; });
    EXPECT_LT(since(start), 5s);
    said += heard.words();
    EXPECT_NE(said.find(servers_words), std::string::npos) << said;
    EXPECT_EQ(said.find(endpoint.password), std::string::npos) << said;
    EXPECT_EQ(said.find(token), std::string::npos) << said;
}

TEST(Denied, AtOnceAndWithoutAWordOfThePassword) {
    const Server server{
        {.acl_users = {"default off", "app on >pw ~* &* +@all", "retired off >pw ~* &* +@all", "admin on >admin ~* &* +@all"}}};
    Endpoint endpoint = endpoint_of(server);
    endpoint.username = "app";
    endpoint.password = "s3cret-of-app";
    is_denied(endpoint, "WRONGPASS");
    endpoint.username = "nobody-of-that-name";
    is_denied(endpoint, "WRONGPASS");
    endpoint.username = "retired";
    endpoint.password = "pw";
    is_denied(endpoint, "WRONGPASS");
    endpoint.username = {};
    endpoint.password = "s3cret-of-default";
    is_denied(endpoint, "WRONGPASS");
    endpoint.password = {};
    Pool anonymous{endpoint};
    const std::string words = words_thrown_by([&] { const Lock lock{anonymous, "lock:k", 60s}; });
    EXPECT_NE(words.find("NOAUTH"), std::string::npos) << words;
}

TEST(Denied, WhereTheServerKnowsNoPasswordsWithoutAWordOfTheOneThatItQuotes) {
    const Server server{{.config = {"rename-command AUTH \"\""}}};
    Endpoint endpoint = endpoint_of(server);
    endpoint.username = "app";
    endpoint.password = "s3cret-of-app";
    is_denied(endpoint, "unknown command", Errc::unsupported);
}

TEST(Denied, WhereRightsAreMissing) {
    const Server server;
    Raw raw{server};
    Endpoint endpoint = endpoint_of(server);
    endpoint.username = "app";
    endpoint.password = "s3cret-of-app";
    ASSERT_TRUE(raw({"ACL", "SETUSER", "app", "reset", "on", ">s3cret-of-app", "~lock:*", "+get"}).is_ok());
    is_denied(endpoint, "NOPERM");
    EXPECT_FALSE(raw.exists("lock:k"));
    ASSERT_TRUE(raw({"ACL", "SETUSER", "app", "reset", "on", ">s3cret-of-app", "~elsewhere:*", "+@all", "-ping"}).is_ok());
    is_denied(endpoint, "NOPERM");
    EXPECT_FALSE(raw.exists("lock:k"));
}

TEST(Denied, WhileItWaitsIsToldAtOnce) {
    for (const bool user_goes : {false, true}) {
        SCOPED_TRACE(user_goes ? "the user is deleted" : "the right to write is taken away");
        const Server server;
        Raw raw{server};
        raw.set("k", "another's", 60s);
        set_user(raw, "app", {});
        Pool pool{as_user(server, "app")};
        Monitor monitor{server};
        auto waiter = std::async(std::launch::async, [&] { return thrown_by([&] { const Lock lock{pool, "k", 60s, 1h}; }); });
        ASSERT_TRUE(monitor.wait_for(acquires("k")));
        if (user_goes) {
            raw({"ACL", "DELUSER", "app"});
        } else {
            set_user(raw, "app", {"-set"});
            raw.del("k");
        }
        ASSERT_EQ(waiter.wait_for(10s), std::future_status::ready);
        EXPECT_EQ(waiter.get(), Errc::denied);
    }
}

// --- All over again.

/// The lines of CLIENT LIST of a user.
std::vector<std::string> clients_of(Raw& raw, const std::string& user) {
    std::vector<std::string> lines;
    std::istringstream list{raw.text({"CLIENT", "LIST"})};
    for (std::string line; std::getline(list, line);)
        if (line.find(" user=" + user + ' ') != std::string::npos) lines.push_back(line);
    return lines;
}

class Login : public testing::Test {
protected:
    Login() { endpoint_.database = 3, endpoint_.client_name = "worker"; }

    /// That `count` connections at least are the user's, and that each has its name and its database.
    void are_logged_in(std::size_t count) {
        Raw raw{server_};
        EXPECT_TRUE(eventually([&] { return clients_of(raw, "bob").size() >= count; }));
        for (const std::string& line : clients_of(raw, "bob")) {
            EXPECT_NE(line.find(" name=worker "), std::string::npos) << line;
            EXPECT_NE(line.find(" db=3 "), std::string::npos) << line;
        }
    }

    Server server_{{.acl_users = {"default on nopass ~* &* +@all", "bob on >pw ~* &* +@all"}, .append_only = true}};
    Endpoint endpoint_ = as_user(server_, "bob");
};

TEST_F(Login, IsDoneOnEveryConnectionAndAgainAfterEachIsKilled) {
    Pool pool{endpoint_};
    Lock kept{pool, "kept", 60s, Watchdog{.interval = 20ms}};
    Raw raw{server_};
    raw({"SELECT", "3"});
    raw.set("waited-for", "another's", 600s);
    auto waiter = std::async(std::launch::async, [&] { return Lock{pool, "waited-for", 60s, 60s}.owns_lock(); });
    for (int round = 0; round < 3; ++round) {
        are_logged_in(4);  // of commands, of renewals, and two of the waiter's
        Monitor monitor{server_};
        EXPECT_GE(raw.number({"CLIENT", "KILL", "USER", "bob"}), 1);
        EXPECT_TRUE(eventually([&] { return monitor.count(extends("kept")) >= 2; }));
        whole_cycle(pool, raw, "k");
        EXPECT_EQ(monitor.count([](const auto& command) {
            return (is_extend(command, "kept") || is_acquire(command, "waited-for")) && command.database != 3;
        }),
                  0U);
    }
    EXPECT_TRUE(kept.owns_lock());
    raw.del("waited-for");
    EXPECT_TRUE(waiter.get());
}

TEST_F(Login, IsDoneAgainAfterARestart) {
    Pool pool{endpoint_};
    Connection connection{endpoint_};
    Lock lock{pool, "k", 600s};
    Lock other{connection, "l", 600s};
    server_.restart();
    EXPECT_TRUE(lock.extend(700s));
    EXPECT_TRUE(other.extend(700s));
    are_logged_in(2);
    Raw raw{server_};
    raw({"SELECT", "3"});
    EXPECT_EQ(raw.get("k"), lock.token());
    EXPECT_EQ(raw.get("l"), other.token());
    server_.restart();
    EXPECT_EQ(lock.unlock(), std::error_code{});
    EXPECT_EQ(other.unlock(), std::error_code{});
    EXPECT_EQ(Raw{server_}.number({"DBSIZE"}), 0);
    are_logged_in(2);
}

// --- The least rights.

/// A user who has these rights and no other; the password is "pw". Forgets the scripts and the refusals so far.
void grant(Raw& raw, const Words& rights) {
    Words command{"ACL", "SETUSER", "app", "reset", "on", ">pw"};
    command.insert(command.end(), rights.begin(), rights.end());
    const support::Value answer = raw(command);
    if (!answer.is_ok()) throw std::runtime_error{"ACL SETUSER: " + answer.text};
    raw({"SCRIPT", "FLUSH"});
    raw({"ACL", "LOG", "RESET"});
    raw({"FLUSHALL"});
}

Words operator+(Words left, const Words& right) {
    left.insert(left.end(), right.begin(), right.end());
    return left;
}

Words less(Words rights, const std::string& right) {
    const auto at = std::find(rights.begin(), rights.end(), right);
    if (at == rights.end()) throw std::logic_error{"no such right: " + right};
    rights.erase(at);
    return rights;
}

/// Acquires, extends and releases "lock:k"; says which of these failed, all with Errc::denied, or "".
template <class... Policies>
std::string denied_to(const Endpoint& endpoint, Raw& raw, const Policies&... policies) {
    Connection connection{endpoint};
    Lock lock{connection, "lock:k", 60s, std::defer_lock, policies...};
    std::string denied;
    const auto note = [&](const char* what, std::error_code error) {
        if (error == Errc::denied)
            denied += std::string{denied.empty() ? "" : " "} + what;
        else if (error)
            denied += std::string{what} + ": " + error.message();
    };
    std::error_code error;
    lock.try_lock(error);
    note("acquire", error);
    if (!error) {
        lock.extend(100s, error);
        note("extend", error);
        note("release", lock.unlock());
        if (denied.empty() && raw.exists("lock:k")) denied = "not released";
    } else if (raw.exists("lock:k")) {
        denied += ", and a key is left";
    }
    raw.del("lock:k");
    lock.release();
    return denied;
}

const Words script_rights{"~lock:*", "+set", "+evalsha", "+eval", "+get", "+del", "+pexpire"};
const Words fencing_rights{"~{lock:*}:fence", "+incr"};
const Words waiting_rights{"&__redis__:invalidate", "+subscribe", "+client|id", "+client|tracking", "+pttl"};

Words native_rights(Cas form) {
    Words rights{"~lock:*", "+set"};
    for (const std::string& command : commands_of(form)) rights.push_back('+' + command);
    return rights;
}

TEST(LeastRights, ForTheScriptSufficeAndNoneIsTooMuch) {
    const Server server;
    Raw raw{server};
    for (const Cas wanted : {Cas::script, Cas::automatic}) {
        const Endpoint endpoint = as_user(server, "app", wanted);
        grant(raw, script_rights);
        EXPECT_EQ(denied_to(endpoint, raw), "");
        for (const auto& [right, denied] : std::vector<std::pair<std::string, std::string>>{{"~lock:*", "acquire"},
                                                                                            {"+set", "acquire"},
                                                                                            {"+evalsha", "extend release"},
                                                                                            {"+eval", "extend release"},
                                                                                            {"+get", "extend release"},
                                                                                            {"+del", "release"},
                                                                                            {"+pexpire", "extend"}}) {
            SCOPED_TRACE(right);
            grant(raw, less(script_rights, right));
            std::string expected = denied;
            // SET ... IFEQ is tried where COMMAND may not be asked, and needs no right but that of SET.
            const auto version = server.server_version();
            const bool has_ifeq = built_in(version) || version.at_least(support::Kind::valkey, 8, 1);
            if (wanted == Cas::automatic && has_ifeq && expected.starts_with("extend")) expected = expected == "extend" ? "" : "release";
            EXPECT_EQ(denied_to(endpoint, raw), expected);
        }
    }
}

TEST(LeastRights, ForTheServersOwnCommandSufficeAndNoneIsTooMuch) {
    const Server server{{.module = tairstring()}};
    Raw raw{server};
    std::vector<Cas> forms{Cas::tair};
    if (const auto form = built_in(server)) forms.push_back(*form);
    for (const Cas form : forms) {
        SCOPED_TRACE(name(form));
        const Endpoint endpoint = as_user(server, "app", form);
        const Words rights = native_rights(form);
        grant(raw, rights);
        EXPECT_EQ(denied_to(endpoint, raw), "");
        for (const std::string& right : rights) {
            SCOPED_TRACE(right);
            grant(raw, less(rights, right));
            EXPECT_EQ(denied_to(endpoint, raw), right == "~lock:*" || right == "+set" ? "acquire" : right == "+cas" ? "extend" : "release");
        }
    }
}

TEST(LeastRights, ToAskForCommandsSpareAConnectionARefusal) {
    const Server server{{.module = tairstring()}};
    Raw raw{server};
    const Cas form = built_in(server).value_or(Cas::tair);
    const Endpoint endpoint = as_user(server, "app");
    grant(raw, native_rights(form) + Words{"+command|info", "+client|setname"});
    EXPECT_EQ(denied_to(endpoint, raw), "");
    EXPECT_EQ(refused_commands(raw), 0U);
    grant(raw, native_rights(form) + Words{"+client|setname"});
    EXPECT_EQ(denied_to(endpoint, raw), "");
    EXPECT_EQ(refusals(raw, "command|info"), 1);
    EXPECT_EQ(refusals(raw, "evalsha"), 1);
    grant(raw, native_rights(form) + script_rights + Words{"+ping"});  // with both, the script is what it finds
    Connection connection{endpoint};
    EXPECT_EQ(connection.cas(), Cas::script);
    whole_cycle(connection, raw, "lock:k");
    EXPECT_EQ(connection.cas(), Cas::script);
}

TEST(LeastRights, ForFencingNumbersSufficeAndNoneIsTooMuch) {
    const Server server{{.module = tairstring()}};
    Raw raw{server};
    const Endpoint by_script = as_user(server, "app", Cas::script);
    grant(raw, script_rights + fencing_rights);
    EXPECT_EQ(denied_to(by_script, raw, Counter{}), "");
    for (const std::string& right : fencing_rights) {
        SCOPED_TRACE(right);
        grant(raw, less(script_rights + fencing_rights, right));
        EXPECT_EQ(denied_to(by_script, raw, Counter{}), "acquire");
    }
    // Without scripts it is a transaction.
    const Cas form = built_in(server).value_or(Cas::tair);
    const Words rights = native_rights(form) + fencing_rights + Words{"+multi", "+exec"};
    const Endpoint by_command = as_user(server, "app", form);
    grant(raw, rights);
    EXPECT_EQ(denied_to(by_command, raw, Counter{}), "");
    for (const std::string right : {"~lock:*", "+set", "~{lock:*}:fence", "+incr", "+multi", "+exec"}) {
        SCOPED_TRACE(right);
        grant(raw, less(rights, right));
        EXPECT_EQ(denied_to(by_command, raw, Counter{}), "acquire");
    }
}

TEST(LeastRights, ForReplicasADatabaseANameAndAPingAreOneEach) {
    const Server server;
    Raw raw{server};
    const auto outcome_of = [&](const Words& rights, const auto& policy) {
        grant(raw, script_rights + rights);
        Connection connection{as_user(server, "app", Cas::script)};
        const auto error = thrown_by([&] { const Lock lock{connection, "lock:k", 60s, std::try_to_lock, policy}; });
        EXPECT_FALSE(raw.exists("lock:k"));
        return error;
    };
    const Wait wait{.replicas = 1, .timeout = 20ms};
    EXPECT_EQ(outcome_of({}, wait), Errc::denied);
    EXPECT_EQ(outcome_of({"+wait"}, wait), Errc::not_replicated);
    const auto version = server.server_version();
    if (version.at_least(support::Kind::redis, 7, 2) || version.at_least(support::Kind::valkey, 7, 2)) {
        const WaitAof wait_aof{.local = 0, .replicas = 1, .timeout = 20ms};
        EXPECT_EQ(outcome_of({}, wait_aof), Errc::denied);
        EXPECT_EQ(outcome_of({"+waitaof"}, wait_aof), Errc::not_replicated);
    }
    Endpoint endpoint = as_user(server, "app", Cas::script);
    endpoint.database = 2;
    grant(raw, script_rights);
    EXPECT_EQ(denied_to(endpoint, raw), "acquire");
    grant(raw, script_rights + Words{"+select"});
    EXPECT_EQ(denied_to(endpoint, raw), "");
    endpoint.database = 0;
    for (const bool granted : {false, true}) {
        grant(raw, script_rights + (granted ? Words{"+ping", "+client|setname"} : Words{}));
        Pool pool{endpoint};
        EXPECT_EQ(pool.ping(), granted ? std::error_code{} : Errc::denied);
        const Lock lock{pool, "lock:k", 60s};
        ASSERT_EQ(clients_of(raw, "app").size(), 1U);
        EXPECT_EQ(clients_of(raw, "app")[0].find(" name=hiredlock ") != std::string::npos, granted);
    }
}

/// How a Pool waits for a lock that another holds.
struct Waiting {
    bool served = false;       ///< once the other let go
    bool is_told = false;      ///< the server keeps the key in mind for it
    std::size_t attempts = 0;  ///< before that
};

Waiting waits(const Server& server, const Words& rights, OnRelease retry, std::chrono::milliseconds time) {
    Raw raw{server};
    grant(raw, rights);
    raw.set("lock:k", "another's");
    Pool pool{as_user(server, "app", Cas::script)};
    Monitor monitor{server};
    auto waiter = std::async(std::launch::async, [&] { return Lock{pool, "lock:k", 60s, 20s, retry}.owns_lock(); });
    Waiting waiting;
    EXPECT_TRUE(eventually([&] { return monitor.count(acquires("lock:k")) >= 2; }));  // the second one is asked in line
    const auto told = [&] {
        return raw.text({"INFO", "clients"}).find("tracking_clients:1") != std::string::npos &&
               raw({"PUBSUB", "NUMSUB", "__redis__:invalidate"}).elements.at(1).integer == 1;
    };
    const auto until = std::chrono::steady_clock::now() + time;
    while (std::chrono::steady_clock::now() < until) waiting.is_told = told();
    waiting.attempts = monitor.count(acquires("lock:k"));
    raw.del("lock:k");
    waiting.served = waiter.get();
    return waiting;
}

TEST(LeastRights, ToBeToldOfAReleaseSufficeAndWithoutAnyTheWaiterAsksInstead) {
    const Server server;
    const OnRelease never_asks{.poll = 1h};
    const Waiting full = waits(server, script_rights + waiting_rights, never_asks, 200ms);
    EXPECT_TRUE(full.served);
    EXPECT_TRUE(full.is_told);
    EXPECT_LE(full.attempts, 2U);
    for (const std::string right : {"&__redis__:invalidate", "+subscribe", "+client|id", "+client|tracking"}) {
        SCOPED_TRACE(right);
        const Waiting waiting = waits(server, less(script_rights + waiting_rights, right), never_asks, 200ms);
        EXPECT_TRUE(waiting.served);
        EXPECT_FALSE(waiting.is_told);
        EXPECT_GE(waiting.attempts, 3U);
    }
}

TEST(LeastRights, ToReadATtlKeepAWaiterFromAskingAtEachPoll) {
    const Server server;
    const Waiting waiting = waits(server, less(script_rights + waiting_rights, "+pttl"), OnRelease{.poll = 100ms}, 300ms);
    EXPECT_TRUE(waiting.served);
    EXPECT_GE(waiting.attempts, 3U);
    EXPECT_LE(waiting.attempts, 12U);  // and not as often as it can
}

}  // namespace
