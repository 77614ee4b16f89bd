// A server that answers, but not with what was asked for: out of memory, disk errors, replicas, missing rights, forgotten scripts.
#include <live/guards.hpp>

#include <support/eventually.hpp>
#include <support/port.hpp>

#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <filesystem>
#include <future>
#include <mutex>
#include <thread>

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
using support::Monitor;
using support::Proxy;
using support::Raw;
using support::Server;

constexpr auto soon = 5s;  // many times what an answer takes, and much less than the limits that are given

/// That an attempt with any limit fails with `expected`, at once.
template <class Store>
void fails_at_once(Store& store, const std::string& key, Errc expected) {
    const auto start = std::chrono::steady_clock::now();
    EXPECT_EQ(thrown_by([&] { const Lock lock{store, key, 60s, std::try_to_lock}; }), expected);
    EXPECT_EQ(thrown_by([&] { const Lock lock{store, key, 60s, 1h}; }), expected);
    EXPECT_EQ(thrown_by([&] { const Lock lock{store, key, 60s}; }), expected);
    std::error_code error;
    EXPECT_FALSE(Lock(store, key, 60s, std::defer_lock).lock({}, error));
    EXPECT_EQ(error, expected);
    EXPECT_LT(since(start), soon);
}

TEST(OutOfMemory, IsAnErrorThatSaysSoAndNotBusy) {
    const Server server;
    Raw raw{server};
    raw({"CONFIG", "SET", "maxmemory", "1"});
    Pool pool{endpoint_of(server)};
    fails_at_once(pool, "k", Errc::out_of_memory);
    EXPECT_FALSE(raw.exists("k"));
    const std::string words = words_thrown_by([&] { const Lock lock{pool, "k", 60s}; });
    EXPECT_NE(words.find("OOM"), std::string::npos) << words;
}

TEST(OutOfMemory, NeitherLosesALockNorKeepsItFromBeingReleased) {
    const Server server;
    Raw raw{server};
    for (const Endpoint& endpoint : {endpoint_of(server), with_scripts(server)}) {
        Pool pool{endpoint};
        Lock lock{pool, "k", 60s};
        Lock other{pool, "l", 60s};
        raw({"CONFIG", "SET", "maxmemory", "1"});
        EXPECT_TRUE(lock.extend(1000s));
        EXPECT_GT(raw.pttl("k"), 900'000);
        EXPECT_EQ(lock.unlock(), std::error_code{});
        EXPECT_FALSE(raw.exists("k"));
        EXPECT_EQ(other.unlock(), std::error_code{});
        EXPECT_FALSE(raw.exists("l"));
        raw({"CONFIG", "SET", "maxmemory", "0"});
    }
}

TEST(DiskError, IsAnErrorThatSaysSoAndNoReleaseClaimsASuccessThatItDidNotHave) {
    const Server server{{.config = {"save 3600 1000000", "dbfilename taken", "stop-writes-on-bgsave-error no"}}};
    Raw raw{server};
    for (const Endpoint& endpoint : {endpoint_of(server), with_scripts(server)}) {
        raw({"CONFIG", "SET", "stop-writes-on-bgsave-error", "no"});
        Pool pool{endpoint};
        Lock lock{pool, "k", 60s};
        Lock extended{pool, "l", 60s};
        // A folder where the file has to go.
        std::filesystem::create_directories(std::filesystem::path{server.socket_path()}.parent_path() / "taken" / "by a folder");
        raw({"BGSAVE"});
        ASSERT_TRUE(eventually([&] { return raw.text({"INFO", "persistence"}).find("rdb_last_bgsave_status:err") != std::string::npos; }));
        raw({"CONFIG", "SET", "stop-writes-on-bgsave-error", "yes"});
        fails_at_once(pool, "other", Errc::disk_error);
        std::error_code error;
        EXPECT_FALSE(extended.extend(1000s, error));
        EXPECT_EQ(error, Errc::disk_error);
        EXPECT_TRUE(extended.owns_lock());
        EXPECT_EQ(lock.unlock(), Errc::disk_error);
        EXPECT_EQ(raw.get("k"), lock.token());
        raw({"CONFIG", "SET", "stop-writes-on-bgsave-error", "no"});
        EXPECT_EQ(lock.unlock(), std::error_code{});
        EXPECT_FALSE(raw.exists("k"));
        EXPECT_TRUE(extended.extend(1000s));
    }
}

/// Makes the server a replica of a master that is not there.
void become_a_replica(Raw& raw) { ASSERT_TRUE(raw({"REPLICAOF", "127.0.0.1", std::to_string(support::free_port())}).is_ok()); }
void become_a_master(Raw& raw) { ASSERT_TRUE(raw({"REPLICAOF", "NO", "ONE"}).is_ok()); }

TEST(ReadOnlyServer, HasAnErrorOfItsOwnForEachOperationAndWorksWhenAMasterIsBack) {
    const Server server;
    Raw raw{server};
    for (const Endpoint& endpoint : {endpoint_of(server), with_scripts(server)}) {
        Pool pool{endpoint};
        Lock lock{pool, "k", 60s};
        become_a_replica(raw);
        EXPECT_EQ(thrown_by([&] { const Lock other{pool, "l", 60s, std::try_to_lock}; }), Errc::read_only);
        std::error_code error;
        EXPECT_FALSE(lock.extend(1000s, error));
        EXPECT_EQ(error, Errc::read_only);
        EXPECT_TRUE(lock.owns_lock());
        EXPECT_EQ(lock.unlock(), Errc::read_only);
        EXPECT_TRUE(hiredlock::is_transient(make_error_code(Errc::read_only)));
        become_a_master(raw);
        EXPECT_EQ(raw.get("k"), lock.token());
        EXPECT_EQ(lock.unlock(), std::error_code{});
        EXPECT_FALSE(raw.exists("k"));
    }
}

TEST(ReadOnlyServer, IsConnectedToAnewForTheAddressMayLeadElsewhere) {
    const Server server;
    Raw raw{server};
    const Proxy proxy{server};
    Pool pool{endpoint_of(proxy)};
    Lock lock{pool, "k", 60s, std::defer_lock};
    ASSERT_FALSE(pool.ping());
    EXPECT_EQ(proxy.accepted(), 1U);
    become_a_replica(raw);
    std::error_code error;
    EXPECT_FALSE(lock.try_lock(error));
    EXPECT_EQ(error, Errc::read_only);
    become_a_master(raw);
    EXPECT_TRUE(lock.try_lock());
    EXPECT_EQ(proxy.accepted(), 2U);
}

TEST(ReadOnlyServer, IsWaitedForInsideTheLimit) {
    const Server server;
    Raw raw{server};
    become_a_replica(raw);
    Pool pool{endpoint_of(server)};
    Monitor monitor{server};
    auto waiting = std::async(std::launch::async, [&] { return Lock{pool, "k", 60s, 30s}.owns_lock(); });
    ASSERT_TRUE(monitor.wait_for([](const auto& command) { return command.name() == "COMMAND" || command.name() == "SET"; }));
    EXPECT_EQ(waiting.wait_for(50ms), std::future_status::timeout);
    become_a_master(raw);
    EXPECT_TRUE(waiting.get());
}

TEST(WrongPassword, IsAnErrorAtOnceWhateverTheLimit) {
    const Server server{{.password = "right", .acl_users = {"bob on >secret ~* &* +@all"}}};
    Endpoint endpoint = endpoint_of(server);
    Pool without{endpoint};
    fails_at_once(without, "k", Errc::denied);
    EXPECT_EQ(without.ping(), Errc::denied);
    endpoint.password = "wrong";
    Pool wrong{endpoint};
    fails_at_once(wrong, "k", Errc::denied);
    endpoint.username = "bob";
    Pool of_user{endpoint};
    fails_at_once(of_user, "k", Errc::denied);
    endpoint.username = "nobody";
    Connection of_nobody{endpoint};
    fails_at_once(of_nobody, "k", Errc::denied);
    EXPECT_FALSE(Raw{server}.exists("k"));
}

TEST(WrongPassword, IsNotTold) {
    const Server server{{.password = "right"}};
    Endpoint endpoint = endpoint_of(server);
    endpoint.password = "hunter2-hunter2";
    Pool pool{endpoint};
    const std::string words = words_thrown_by([&] { const Lock lock{pool, "k", 60s}; });
    EXPECT_NE(words.find("WRONGPASS"), std::string::npos) << words;
    EXPECT_EQ(words.find("hunter2"), std::string::npos) << words;
}

TEST(UnneededPassword, IsAnErrorThatSaysSo) {
    const Server server;
    Endpoint endpoint = endpoint_of(server);
    endpoint.username = "nobody";
    endpoint.password = "pw";
    Pool pool{endpoint};
    fails_at_once(pool, "k", Errc::denied);
}

/// A server with a user `bob` who has `rights`.
Server with_user(const std::string& rights) { return Server{{.acl_users = {"bob on >pw " + rights, "default on nopass ~* &* +@all"}}}; }

Endpoint as_bob(const Server& server, Cas cas = Cas::automatic) {
    Endpoint endpoint = endpoint_of(server);
    endpoint.username = "bob";
    endpoint.password = "pw";
    endpoint.cas = cas;
    return endpoint;
}

TEST(MissingRights, ToSetAreAnErrorAtOnceWhateverTheLimit) {
    const Server server = with_user("~* &* +@all -set");
    Pool pool{as_bob(server)};
    fails_at_once(pool, "k", Errc::denied);
    EXPECT_FALSE(Raw{server}.exists("k"));
}

TEST(MissingRights, ToTheKeyAreAnErrorAtOnceWhateverTheLimit) {
    const Server server = with_user("~own:* &* +@all");
    Pool pool{as_bob(server)};
    fails_at_once(pool, "k", Errc::denied);
    EXPECT_TRUE(Lock(pool, "own:k", 60s).owns_lock());
    EXPECT_FALSE(Raw{server}.exists("k"));
    EXPECT_FALSE(Raw{server}.exists("own:k"));
}

TEST(MissingRights, ToSayItsNameOrToAskForCommandsDoNoHarm) {
    const Server server = with_user("~* &* +@all -client -command");
    Pool pool{as_bob(server)};
    Lock lock{pool, "k", 60s};
    EXPECT_TRUE(lock.extend(90s));
    EXPECT_EQ(lock.unlock(), std::error_code{});
    EXPECT_FALSE(Raw{server}.exists("k"));
}

TEST(MissingRights, ToBeNotifiedDoNotKeepAWaiterFromItsLock) {
    const Server server = with_user("~* resetchannels +@all -client -subscribe");
    Raw raw{server};
    raw.set("k", "somebody");
    Pool pool{as_bob(server)};
    auto waiting = std::async(std::launch::async, [&] { return Lock{pool, "k", 60s, 30s}.owns_lock(); });
    EXPECT_EQ(waiting.wait_for(50ms), std::future_status::timeout);
    raw.del("k");
    EXPECT_TRUE(waiting.get());
}

TEST(MissingRights, ToEvalButNotToEvalshaAreToldWithoutALoopAndNothingIsLostOrReleased) {
    const Server server = with_user("~* &* +@all -eval");
    Raw raw{server};
    std::vector<std::error_code> heard;
    Pool pool{as_bob(server, Cas::script), {.on_error = [&heard](const hiredlock::Error& error) { heard.push_back(error.code()); }}};
    {
        Lock lock{pool, "k", 60s};
        Monitor monitor{server};
        std::error_code error;
        EXPECT_FALSE(lock.extend(1000s, error));
        EXPECT_EQ(error, Errc::denied);
        EXPECT_TRUE(lock.owns_lock());
        EXPECT_LE(monitor.count([](const auto& command) { return command.name() == "EVALSHA"; }), 2U);
        monitor.clear();
        EXPECT_EQ(lock.unlock(), Errc::denied);
        EXPECT_FALSE(lock.owns_lock());
        EXPECT_EQ(raw.get("k"), lock.token());
        EXPECT_LE(monitor.count([](const auto& command) { return command.name() == "EVALSHA"; }), 2U);
    }
    EXPECT_EQ(heard, std::vector<std::error_code>{Errc::denied});
    EXPECT_TRUE(raw.exists("k"));
    raw({"ACL", "SETUSER", "bob", "+eval"});  // its clean-up goes on until it may
    EXPECT_TRUE(eventually([&] { return !raw.exists("k"); }, 10s));
}

TEST(MissingRights, ToScriptsAreDoneWithoutWhereTheServerHasACommand) {
    const Server server = with_user("~* &* +@all -@scripting");
    Raw raw{server};
    Pool pool{as_bob(server)};
    const Cas cas = pool.cas();
    Lock lock{pool, "k", 60s};
    if (cas == Cas::script) {
        EXPECT_EQ(thrown_by([&] { lock.extend(1000s); }), Errc::denied);
        EXPECT_EQ(lock.unlock(), Errc::denied);
        EXPECT_TRUE(raw.exists("k"));
    } else {
        EXPECT_TRUE(lock.extend(1000s));
        EXPECT_EQ(lock.unlock(), std::error_code{});
        EXPECT_FALSE(raw.exists("k"));
    }
}

TEST(MissingRights, ToTheServersOwnCommandAreDoneWithoutByScript) {
    Server server;
    Raw raw{server};
    const Cas cas = Connection{endpoint_of(server)}.cas();
    if (cas == Cas::script) return;  // it has none
    raw({"ACL", "SETUSER", "bob", "on", ">pw", "~*", "&*", "+@all", cas == Cas::delex ? "-delex" : "-delifeq"});
    Pool pool{as_bob(server)};
    for (int i = 0; i < 3; ++i) {
        Lock lock{pool, "k", 60s};
        EXPECT_TRUE(lock.extend(1000s));
        EXPECT_EQ(lock.unlock(), std::error_code{});
        EXPECT_FALSE(raw.exists("k"));
        { const Lock deferred{pool, "k", 60s, hiredlock::unlocking::Deferred{}}; }
        EXPECT_FALSE(pool.ping());
        EXPECT_FALSE(raw.exists("k"));
    }
}

TEST(ForgottenScript, IsMendedUnseenInEightThreadsAtOnce) {
    const Server server;
    Pool pool{with_scripts(server)};
    constexpr int threads = 8;
    std::barrier sync{threads};
    std::atomic<int> wrong = 0;
    {
        std::vector<std::jthread> running;
        for (int t = 0; t < threads; ++t)
            running.emplace_back([&, t] {
                Raw raw{server};
                const auto forget = [&] {
                    sync.arrive_and_wait();
                    if (t == 0) raw({"SCRIPT", "FLUSH"});
                    sync.arrive_and_wait();
                };
                const std::string key = std::to_string(t);
                for (int i = 0; i < 15; ++i) {
                    Lock lock{pool, key, 60s, std::defer_lock};
                    if (!lock.try_lock()) ++wrong;
                    forget();
                    if (!lock.extend(1000s)) ++wrong;
                    if (raw.pttl(key) < 900'000) ++wrong;
                    forget();
                    if (lock.unlock()) ++wrong;
                    if (raw.exists(key)) ++wrong;
                }
            });
    }
    EXPECT_EQ(wrong, 0);
}

TEST(ForgottenScript, InARestartIsMendedUnseenInEightThreadsAtOnce) {
    Server server{{.append_only = true}};
    Pool pool{with_scripts(server)};
    std::vector<Lock<Pool>> locks;
    for (int i = 0; i < 8; ++i) locks.emplace_back(pool, std::to_string(i), 60s);
    const auto with_each = [&](auto use) {
        std::vector<std::jthread> running;
        for (auto& lock : locks) running.emplace_back([&lock, use] { use(lock); });
    };
    server.restart();
    with_each([](auto& lock) { EXPECT_TRUE(lock.extend(1000s)); });
    server.restart();
    with_each([](auto& lock) { EXPECT_EQ(lock.unlock(), std::error_code{}); });
    EXPECT_EQ(Raw{server}.number({"DBSIZE"}), 0);
}

TEST(ForgottenScript, BetweenTwoDeferredReleasesDoesNoHarm) {
    const Server server;
    Raw raw{server};
    Pool pool{with_scripts(server)};
    for (int i = 0; i < 10; ++i) {
        { const Lock lock{pool, "k", 60s, hiredlock::unlocking::Deferred{}}; }
        raw({"SCRIPT", "FLUSH"});
        EXPECT_TRUE(eventually([&] { return !raw.exists("k"); }));
    }
}

TEST(BusyServer, IsWaitedForInsideTheLimit) {
    const Server server;
    Raw raw{server};
    raw({"CONFIG", "SET", "busy-reply-threshold", "1"});
    Raw script{server};
    script.send({"EVAL", "while true do end", "0"});
    Pool pool{endpoint_of(server)};
    ASSERT_TRUE(eventually([&] { return raw({"PING"}).is_error(); }));
    std::error_code error;
    EXPECT_FALSE(Lock(pool, "k", 60s, std::defer_lock).try_lock(error));
    EXPECT_EQ(error, Errc::loading);
    auto waiting = std::async(std::launch::async, [&] { return Lock{pool, "k", 60s, 30s}.owns_lock(); });
    EXPECT_EQ(waiting.wait_for(50ms), std::future_status::timeout);
    raw({"SCRIPT", "KILL"});
    EXPECT_TRUE(waiting.get());
}

TEST(FullServer, ThatTakesNoMoreClientsIsUnreachable) {
    const Server server;
    Raw raw{server};
    raw({"CONFIG", "SET", "maxclients", "1"});
    Pool pool{endpoint_of(server)};
    EXPECT_EQ(pool.ping(), Errc::unreachable);
    EXPECT_EQ(thrown_by([&] { const Lock lock{pool, "k", 60s, std::try_to_lock}; }), Errc::unreachable);
    raw({"CONFIG", "SET", "maxclients", "100"});
    EXPECT_TRUE(Lock(pool, "k", 60s, 10s).owns_lock());
}

}  // namespace
