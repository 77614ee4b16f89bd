// The harness itself, tried on a real server.
#include "directory.hpp"
#include "eventually.hpp"
#include "monitor.hpp"
#include "port.hpp"
#include "process.hpp"
#include "proxy.hpp"
#include "raw.hpp"
#include "server.hpp"

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

namespace {

using namespace std::chrono_literals;
using support::Child;
using support::Direction;
using support::Ending;
using support::eventually;
using support::Monitor;
using support::MonitoredCommand;
using support::Proxy;
using support::Raw;
using support::Server;
using support::ServerOptions;

bool exists(pid_t pid) { return ::kill(pid, 0) == 0 || errno != ESRCH; }

std::string written_script(const support::Directory& directory, const std::string& text) {
    const std::string path = directory.file("script");
    std::ofstream{path} << "#!/bin/sh\n" << text << '\n';
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    return path;
}

std::string program_under_test() {
    const char* given = std::getenv("HIREDLOCK_TEST_SERVER");
    return given != nullptr && *given != '\0' ? given : "redis-server";
}

bool bindable_as_a_server_does(int port) {
    const support::Descriptor socket{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    const int on = 1;
    ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

/// Whether the connection of `raw` has ended.
bool ended(Raw& raw) {
    try {
        raw({"PING"});
        return false;
    } catch (const std::runtime_error&) {
        return true;
    }
}

// Server

TEST(SupportServer, IsReachedByPortAndByUnixSocket) {
    const Server server;
    Raw by_socket{server};
    Raw by_port{server.port()};
    by_socket.set("key", "value");
    EXPECT_EQ(by_port.get("key"), "value");
    EXPECT_EQ(server.uri(), "redis://127.0.0.1:" + std::to_string(server.port()));
    EXPECT_EQ(server.unix_uri(), "unix://" + server.socket_path());
    EXPECT_LT(server.socket_path().size(), 108U);
}

TEST(SupportServer, LeavesNeitherAProcessNorAFileBehind) {
    pid_t pid = -1;
    std::string path;
    {
        const Server server;
        pid = server.pid();
        path = server.socket_path();
        EXPECT_TRUE(exists(pid));
        EXPECT_TRUE(std::filesystem::exists(path));
    }
    EXPECT_FALSE(exists(pid));
    EXPECT_FALSE(std::filesystem::exists(std::filesystem::path{path}.parent_path()));
}

TEST(SupportServer, DiesWithATestThatIsKilled) {
    Child test = Child::fork([](support::Lines& parent) {
        const Server server;
        parent.write_line(std::to_string(server.pid()));
        parent.write_line(server.socket_path());
        parent.read_line(1min);
        return 0;
    });
    const auto line = test.read_line();
    const auto path = test.read_line();
    ASSERT_TRUE(line && path);
    const pid_t server = std::stoi(*line);
    ASSERT_TRUE(exists(server));
    test.kill();
    // It becomes a child of init, or of whoever reaps in its place.
    EXPECT_TRUE(eventually([&] {
        std::ifstream stat{"/proc/" + std::to_string(server) + "/stat"};
        std::string id, name, state;
        return !(stat >> id >> name >> state) || state == "Z";
    }));
    std::filesystem::remove_all(std::filesystem::path{*path}.parent_path());  // nobody was left to do it
}

TEST(SupportServer, ThatIsPausedAnswersAgainAfterResume) {
    Server server;
    Raw raw{server};
    server.pause();
    std::atomic<bool> answered = false;
    std::thread asking{[&] {
        raw({"PING"});
        answered = true;
    }};
    EXPECT_FALSE(eventually([&] { return answered.load(); }, 50ms));
    server.pause();
    server.resume();
    asking.join();
    EXPECT_TRUE(answered);
    server.pause();
    EXPECT_TRUE(server.is_running());
    server.stop();
    EXPECT_FALSE(server.is_running());
}

TEST(SupportServer, ThatWasKilledStartsAgainOnItsPortWithoutItsData) {
    Server server;
    Raw{server}.set("key", "value");
    const int port = server.port();
    server.kill();
    EXPECT_FALSE(server.is_running());
    EXPECT_THROW(Raw{port}, std::runtime_error);
    server.start();
    EXPECT_EQ(server.port(), port);
    EXPECT_FALSE(Raw{port}.exists("key"));
}

TEST(SupportServer, ThatEndsByItselfIsNotRunning) {
    Server server;
    Raw{server}.send({"SHUTDOWN", "NOSAVE"});
    EXPECT_TRUE(eventually([&] { return !server.is_running(); }));
    server.kill();
    server.start();
    EXPECT_EQ(Raw{server}.text({"PING"}), "PONG");
}

TEST(SupportServer, WithAnAppendOnlyFileKeepsItsDataOverARestart) {
    Server server{{.append_only = true}};
    Raw{server}.set("key", "value");
    server.restart();
    EXPECT_EQ(Raw{server}.get("key"), "value");
}

TEST(SupportServer, TakesAPasswordUsersAndConfiguration) {
    const std::string password = "p\"a\\ss";
    const Server server{{.password = password, .config = {"maxmemory 123mb"}, .acl_users = {"bob on >pw ~* +get"}}};
    EXPECT_EQ(Raw{server.port()}({"GET", "key"}).text.substr(0, 6), "NOAUTH");
    EXPECT_EQ(Raw(server.port(), password)({"CONFIG", "GET", "maxmemory"}).elements.at(1).text, std::to_string(123 * 1024 * 1024));
    Raw bob{server.port()};
    EXPECT_TRUE(bob({"AUTH", "bob", "pw"}).is_ok());
    EXPECT_TRUE(bob({"GET", "key"}).is_nil());
    EXPECT_EQ(bob({"DEL", "key"}).text.substr(0, 6), "NOPERM");
}

TEST(SupportServer, IsAReplicaOfAnother) {
    const Server master{{.password = "pw"}};
    const Server replica{{.password = "pw", .replica_of_port = master.port()}};
    ASSERT_TRUE(replica.wait_until_linked());
    Raw raw{master};
    raw.set("key", "value");
    EXPECT_EQ(raw.number({"WAIT", "1", "5000"}), 1);
    EXPECT_EQ(Raw{replica}.get("key"), "value");
}

TEST(SupportServer, IsASentinel) {
    const Server master;
    const Server sentinel{{.config = {"sentinel monitor here 127.0.0.1 " + std::to_string(master.port()) + " 1"}, .sentinel = true}};
    EXPECT_EQ(Raw{sentinel}({"SENTINEL", "GET-MASTER-ADDR-BY-NAME", "here"}).elements.at(1).text, std::to_string(master.port()));
}

TEST(SupportServer, IsAClusterNode) {
    const Server node{{.config = {"cluster-enabled yes"}}};
    EXPECT_TRUE(Raw{node}({"CLUSTER", "ADDSLOTSRANGE", "0", "16383"}).is_ok());
    Raw raw{node.port()};
    EXPECT_TRUE(eventually([&] { return raw({"SET", "key", "value"}).is_ok(); }));
}

TEST(SupportServer, CanDoWithoutTcp) {
    const Server server{{.tcp = false}};
    EXPECT_EQ(server.port(), 0);
    EXPECT_EQ(Raw{server}.text({"PING"}), "PONG");
}

TEST(SupportServer, TellsItsVersion) {
    const auto version = Server{}.server_version();
    EXPECT_TRUE(version.at_least(version.kind, 7));
    EXPECT_TRUE(version.at_least(version.kind, version.major, version.minor));
    EXPECT_FALSE(version.at_least(version.kind, version.major, version.minor + 1));
    EXPECT_FALSE(version.at_least(version.kind, version.major + 1));
}

TEST(SupportServer, VersionTellsValkeyFromRedis) {
    const auto valkey =
        support::ServerVersion::parse("# Server\r\nredis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.1.3\r\n");
    EXPECT_TRUE(valkey.at_least(support::Kind::valkey, 8, 1));
    EXPECT_FALSE(valkey.at_least(support::Kind::redis, 7));
    EXPECT_EQ(valkey.text(), "valkey 8.1.3");
    EXPECT_EQ(support::ServerVersion::parse("# Server\r\nredis_version:8.6.0\r\n").text(), "redis 8.6.0");
    EXPECT_THROW(support::ServerVersion::parse("-NOAUTH"), std::runtime_error);
}

TEST(SupportServer, ThatCannotStartSaysWhy) {
    try {
        const Server server{{.config = {"no-such-setting 1"}}};
        FAIL() << "started";
    } catch (const std::runtime_error& error) {
        EXPECT_NE(std::string{error.what()}.find("no-such-setting"), std::string::npos) << error.what();
    }
    EXPECT_THROW(Server{{.program = "/no/such/program"}}, std::system_error);
}

TEST(SupportServer, MayBeAScriptThatExecsIt) {
    const support::Directory directory;
    const Server server{{.program = written_script(directory, "exec " + program_under_test() + " \"$@\"")}};
    EXPECT_NE(Raw{server}.text({"INFO", "server"}).find("process_id:" + std::to_string(server.pid())), std::string::npos);
}

TEST(SupportServer, RefusesAScriptThatDoesNotExecIt) {
    const support::Directory directory;
    // The script ends its server itself, which would outlive it.
    const std::string script = written_script(directory, program_under_test() + " \"$@\" & echo $! > " + directory.file("pid") + "; wait");
    EXPECT_THROW(Server{{.program = script}}, std::runtime_error);
    std::ifstream file{directory.file("pid")};
    pid_t pid = -1;
    ASSERT_TRUE(file >> pid);
    ::kill(pid, SIGKILL);
}

TEST(SupportServer, InheritsNoDescriptorOfOurs) {
    const support::Descriptor leaky{::open("/dev/null", O_RDONLY)};  // not close-on-exec
    const int high = ::fcntl(leaky.get(), F_DUPFD, 300);
    const Server server;
    EXPECT_FALSE(std::filesystem::is_symlink("/proc/" + std::to_string(server.pid()) + "/fd/" + std::to_string(high)));
    ::close(high);
}

TEST(SupportServer, SeveralLiveInAVector) {
    std::vector<Server> servers;
    for (int i = 0; i < 3; ++i) servers.emplace_back();
    for (const Server& server : servers) EXPECT_EQ(Raw{server}.text({"PING"}), "PONG");
}

TEST(SupportServer, OfTheParentSurvivesTheExitOfAFork) {
    static std::optional<Server> server;
    server.emplace();
    EXPECT_EQ(support::run_in_child(
                  [] {
                      server.reset();
                      return 0;
                  },
                  10s, support::Leave::by_exit),
              0);
    EXPECT_TRUE(server->is_running());
    EXPECT_EQ(Raw{*server}.text({"PING"}), "PONG");
    server.reset();
}

// Raw

TEST(SupportRaw, CarriesAnyByte) {
    const Server server;
    Raw raw{server};
    const std::string key{"a \0%d\r\nPING\r\n\xff", 15};
    raw.set(key, key);
    EXPECT_EQ(raw.get(key), key);
    EXPECT_TRUE(raw.exists(key));
    EXPECT_EQ(raw.pttl(key), -1);
    EXPECT_TRUE(raw.del(key));
    EXPECT_FALSE(raw.del(key));
    EXPECT_EQ(raw.get(key), std::nullopt);
    EXPECT_EQ(raw.pttl(key), -2);
}

TEST(SupportRaw, TellsEveryKindOfReply) {
    const Server server;
    Raw raw{server};
    raw.set("key", "7", 60s);
    EXPECT_GT(raw.pttl("key"), 50'000);
    EXPECT_EQ(raw.number({"INCR", "key"}), 8);
    EXPECT_TRUE(raw({"LPUSH", "key", "x"}).is_error());
    EXPECT_TRUE(raw({"GET", "none"}).is_nil());
    EXPECT_THROW(raw.number({"GET", "key"}), std::runtime_error);
    EXPECT_THROW(raw.text({"INCR", "key"}), std::runtime_error);
    const auto array = raw({"MGET", "key", "none"});
    ASSERT_EQ(array.elements.size(), 2U);
    EXPECT_EQ(array.elements[0].text, "9");
    EXPECT_TRUE(array.elements[1].is_nil());
}

TEST(SupportRaw, ThrowsOnceTheServerIsGoneAndRaisesNoSignal) {
    Server server;
    Raw raw{server};
    server.kill();
    EXPECT_TRUE(ended(raw));
    EXPECT_TRUE(ended(raw));
}

// Monitor

TEST(SupportMonitor, SeesCommandsAndWhatScriptsCall) {
    const Server server{{.password = "pw"}};
    Raw raw{server.port(), "pw"};
    Monitor monitor{server};
    const std::string odd{"\n\r\t\a\b\0\x1b\xff z", 10};
    raw.set(odd, "value");
    raw({"eval", "return redis.call('get', KEYS[1])", "1", odd});
    const auto seen = monitor.commands();
    ASSERT_EQ(seen.size(), 3U);
    EXPECT_EQ(seen[0].argv, (std::vector<std::string>{"SET", odd, "value"}));
    EXPECT_EQ(seen[0].source.rfind("127.0.0.1:", 0), 0U);
    EXPECT_GT(seen[0].time, 0us);
    EXPECT_EQ(seen[1].name(), "EVAL");
    EXPECT_EQ(seen[2].argv, (std::vector<std::string>{"get", odd}));
    EXPECT_TRUE(seen[2].from_script());
    EXPECT_EQ(monitor.count([](const MonitoredCommand& command) { return command.from_script(); }), 1U);
}

TEST(SupportMonitor, ReadsQuotesWhetherTheyAreEscapedOrNot) {
    const auto words = [](const std::string& text) { return MonitoredCommand::parse("1339518083.107412 [3 lua] " + text).argv; };
    const std::vector<std::string> wanted{"SET", "", "a\" \\ b\"", "\x01"};
    EXPECT_EQ(words(R"("SET" "" "a\" \\ b\"" "\x01")"), wanted);
    EXPECT_EQ(words(R"("SET" "" "a" \\ b"" "\x01")"), wanted);
    EXPECT_EQ(MonitoredCommand::parse(R"(1339518083.107412 [3 lua] "x")").database, 3);
    EXPECT_EQ(MonitoredCommand::parse(R"(1339518083.107412 [3 lua] "x")").time, 1339518083107412us);
    EXPECT_THROW(MonitoredCommand::parse("OK"), std::runtime_error);
}

TEST(SupportMonitor, ForgetsWhatWasBeforeClear) {
    const Server server;
    Raw raw{server};
    Monitor monitor{server};
    for (int i = 0; i < 1000; ++i) raw({"INCR", "key"});
    EXPECT_EQ(monitor.commands().size(), 1000U);
    for (int i = 0; i < 10; ++i) raw({"INCR", "key"});
    monitor.clear();
    EXPECT_TRUE(monitor.commands().empty());
}

TEST(SupportMonitor, WaitsForACommandThatComesLater) {
    const Server server;
    const Monitor monitor{server};
    const auto is_get = [](const MonitoredCommand& command) { return command.name() == "GET"; };
    EXPECT_FALSE(monitor.wait_for(is_get, 20ms));
    std::thread asking{[&] { Raw{server}.get("key"); }};
    EXPECT_TRUE(monitor.wait_for(is_get));
    asking.join();
}

TEST(SupportMonitor, OutlivesAPauseOfTheServer) {
    Server server;
    Monitor monitor{server};
    server.pause();
    EXPECT_FALSE(monitor.sync(30ms));
    EXPECT_FALSE(monitor.sync(30ms));
    server.resume();
    Raw{server}.get("key");
    EXPECT_EQ(monitor.commands().size(), 1U);
    server.kill();
    EXPECT_FALSE(monitor.sync());
    EXPECT_EQ(monitor.collected().size(), 1U);
}

// Proxy

class SupportProxy : public testing::Test {
protected:
    /// Has the proxy read `command` of `raw`, which gets no answer yet?
    bool sent(Raw& raw, const std::vector<std::string>& command) {
        const auto before = proxy_.bytes(Direction::to_server);
        raw.send(command);
        return proxy_.wait_for_bytes(Direction::to_server, before + 1);
    }

    Server server_{};
    Raw outside_{server_};
    Proxy proxy_{server_};
};

TEST_F(SupportProxy, RelaysAndCounts) {
    Raw raw{proxy_.port()};
    const std::string large(5'000'000, 'x');
    raw.set("key", large);
    EXPECT_EQ(raw.get("key"), large);
    EXPECT_EQ(proxy_.accepted(), 1U);
    EXPECT_EQ(proxy_.connections(), 1U);
    EXPECT_GT(proxy_.bytes(Direction::to_server), large.size());
    EXPECT_GT(proxy_.bytes(Direction::to_client), large.size());
    EXPECT_EQ(proxy_.held(Direction::to_client), 0U);
    raw = Raw{proxy_.port()};
    EXPECT_TRUE(eventually([&] { return proxy_.accepted() == 2 && proxy_.connections() == 1; }));
}

TEST_F(SupportProxy, HoldsRequestsUntilTheyAreReleased) {
    Raw raw{proxy_.port()};
    proxy_.hold(Direction::to_server);
    ASSERT_TRUE(sent(raw, {"SET", "key", "value"}));
    EXPECT_GT(proxy_.held(Direction::to_server), 0U);
    EXPECT_FALSE(outside_.exists("key"));
    proxy_.release(Direction::to_server);
    EXPECT_TRUE(raw.read().is_ok());
    EXPECT_TRUE(outside_.exists("key"));
}

TEST_F(SupportProxy, HoldsRepliesUntilTheyAreReleased) {
    Raw raw{proxy_.port()};
    proxy_.hold(Direction::to_client);
    raw.send({"SET", "key", "value"});
    ASSERT_TRUE(proxy_.wait_for_bytes(Direction::to_client, 1));
    EXPECT_TRUE(outside_.exists("key"));
    EXPECT_EQ(proxy_.held(Direction::to_client), 5U);
    proxy_.release(Direction::to_client);
    EXPECT_TRUE(raw.read().is_ok());
}

TEST_F(SupportProxy, DeliversWhatIsHeldOfAClientThatHasClosed) {
    Monitor monitor{server_};
    proxy_.hold(Direction::to_server);
    {
        Raw raw{proxy_.port()};
        raw.send({"INCR", "key"});
        raw.send({"INCR", "key"});
    }
    ASSERT_TRUE(eventually([&] { return proxy_.accepted() == 1 && proxy_.connections() == 0; }));
    EXPECT_FALSE(outside_.exists("key"));
    const auto clients = [&] { return outside_.text({"INFO", "clients"}); };
    EXPECT_NE(clients().find("connected_clients:4"), std::string::npos);  // ours, two of the monitor, the one held
    proxy_.release(Direction::to_server);
    EXPECT_TRUE(eventually([&] { return outside_.get("key") == "2"; }));
    EXPECT_TRUE(eventually([&] { return clients().find("connected_clients:3") != std::string::npos; }));
}

TEST_F(SupportProxy, HoldsFromTheChunkOfASubstringOnItsConnectionOnly) {
    Raw one{proxy_.port()};
    Raw two{proxy_.port()};
    proxy_.hold_when(Direction::to_server, "SET");
    EXPECT_EQ(one.text({"PING"}), "PONG");
    ASSERT_TRUE(sent(one, {"SET", "key", "value"}));
    EXPECT_EQ(two.number({"EXISTS", "key"}), 0);
    two.set("other", "value");
    ASSERT_TRUE(sent(one, {"PING"}));
    proxy_.release(Direction::to_server);
    EXPECT_TRUE(one.read().is_ok());
    EXPECT_EQ(one.read().text, "PONG");
}

TEST_F(SupportProxy, FindsASubstringThatComesInTwoChunks) {
    Raw raw{proxy_.port()};
    proxy_.hold_when(Direction::to_server, "needle");
    const std::string_view command = "*2\r\n$4\r\nECHO\r\n$6\r\nneedle\r\n";
    const auto write = [&](std::string_view part) {
        const auto before = proxy_.bytes(Direction::to_server);
        EXPECT_EQ(::send(raw.descriptor(), part.data(), part.size(), MSG_NOSIGNAL), static_cast<ssize_t>(part.size()));
        EXPECT_TRUE(proxy_.wait_for_bytes(Direction::to_server, before + part.size()));
    };
    write(command.substr(0, 20));
    EXPECT_TRUE(eventually([&] { return proxy_.held(Direction::to_server) == 0; }));
    write(command.substr(20));
    EXPECT_EQ(proxy_.held(Direction::to_server), command.size() - 20);
    proxy_.release(Direction::to_server);
    EXPECT_EQ(raw.read().text, "needle");
}

TEST_F(SupportProxy, HoldsExactlyTheReplyThatHasASubstring) {
    Raw raw{proxy_.port()};
    proxy_.hold_when(Direction::to_client, "+OK");
    EXPECT_EQ(raw.text({"PING"}), "PONG");
    raw.send({"SET", "key", "value"});
    EXPECT_TRUE(eventually([&] { return proxy_.held(Direction::to_client) == 5; }));
    proxy_.release(Direction::to_client);
    EXPECT_TRUE(raw.read().is_ok());
}

TEST_F(SupportProxy, SwallowsWithoutAWord) {
    Raw raw{proxy_.port()};
    proxy_.swallow(Direction::to_server);
    ASSERT_TRUE(sent(raw, {"SET", "key", "value"}));
    EXPECT_GT(proxy_.swallowed(Direction::to_server), 0U);
    proxy_.pass(Direction::to_server);
    EXPECT_EQ(raw.text({"PING"}), "PONG");
    EXPECT_FALSE(outside_.exists("key"));
}

TEST_F(SupportProxy, SwallowsTheReplyToACommandThatWasExecuted) {
    Raw raw{proxy_.port()};
    proxy_.swallow_when(Direction::to_client, "+OK");
    raw.send({"SET", "key", "value"});
    EXPECT_TRUE(eventually([&] { return proxy_.swallowed(Direction::to_client) == 5; }));
    EXPECT_TRUE(outside_.exists("key"));
    Raw other{proxy_.port()};
    EXPECT_EQ(other.text({"PING"}), "PONG");
    raw.set_timeout(20ms);
    EXPECT_THROW(raw.read(), std::runtime_error);
}

TEST_F(SupportProxy, SwallowsTheEndOfAConnectionUntilItPassesAgain) {
    const auto clients = [&] { return outside_.text({"INFO", "clients"}); };
    {
        Raw raw{proxy_.port()};
        EXPECT_EQ(raw.text({"PING"}), "PONG");
        proxy_.swallow(Direction::to_server);
    }
    EXPECT_TRUE(eventually([&] { return proxy_.connections() == 0; }));
    EXPECT_NE(clients().find("connected_clients:2"), std::string::npos);
    proxy_.pass(Direction::to_server);
    EXPECT_TRUE(eventually([&] { return clients().find("connected_clients:1") != std::string::npos; }));
}

TEST_F(SupportProxy, DelaysEachWayAndKeepsTheOrder) {
    Raw raw{proxy_.port()};
    raw({"PING"});
    proxy_.delay(Direction::to_server, 30ms);
    proxy_.delay(Direction::to_client, 20ms);
    const auto begin = std::chrono::steady_clock::now();
    raw.send({"ECHO", "one"});
    raw.send({"ECHO", "two"});
    EXPECT_EQ(raw.read().text, "one");
    EXPECT_EQ(raw.read().text, "two");
    EXPECT_GE(std::chrono::steady_clock::now() - begin, 50ms);
    proxy_.delay(Direction::to_server, 0ms);
    proxy_.delay(Direction::to_client, 0ms);
    EXPECT_EQ(raw.text({"PING"}), "PONG");
}

TEST_F(SupportProxy, CutsAfterSoManyBytes) {
    for (const Ending ending : {Ending::reset, Ending::fin}) {
        Raw raw{proxy_.port()};
        EXPECT_EQ(raw.text({"PING"}), "PONG");
        proxy_.cut_after(Direction::to_client, 3, ending);
        EXPECT_TRUE(ended(raw));
        EXPECT_TRUE(eventually([&] { return proxy_.connections() == 0; }));
        Raw next{proxy_.port()};
        proxy_.cut_after(Direction::to_server, 0, ending);
        EXPECT_TRUE(ended(next));
    }
}

TEST_F(SupportProxy, CutEndsEveryConnection) {
    for (const Ending ending : {Ending::reset, Ending::fin}) {
        Raw one{proxy_.port()};
        Raw two{proxy_.port()};
        one({"PING"});
        two({"PING"});
        proxy_.cut(ending);
        EXPECT_EQ(proxy_.connections(), 0U);
        EXPECT_TRUE(ended(one));
        EXPECT_TRUE(ended(two));
    }
    EXPECT_EQ(Raw{proxy_.port()}.text({"PING"}), "PONG");
}

TEST_F(SupportProxy, RefusesConnectionsAndKeepsThoseThereAre) {
    Raw raw{proxy_.port()};
    raw({"PING"});
    proxy_.refuse(true);
    EXPECT_THROW(Raw{proxy_.port()}, std::runtime_error);
    EXPECT_FALSE(bindable_as_a_server_does(proxy_.port()));
    EXPECT_EQ(raw.text({"PING"}), "PONG");
    proxy_.refuse(false);
    EXPECT_EQ(Raw{proxy_.port()}.text({"PING"}), "PONG");
}

TEST_F(SupportProxy, AcceptsNewConnectionsThatNeverAnswer) {
    proxy_.swallow_new(true);
    {
        Raw raw{proxy_.port()};
        ASSERT_TRUE(sent(raw, {"PING"}));
        EXPECT_EQ(proxy_.connections(), 1U);
        proxy_.swallow_new(false);
        EXPECT_EQ(Raw{proxy_.port()}.text({"PING"}), "PONG");
        raw.set_timeout(20ms);
        EXPECT_THROW(raw.read(), std::runtime_error);
    }
    EXPECT_TRUE(eventually([&] { return proxy_.connections() == 0; }));
}

TEST_F(SupportProxy, PassesOnThatTheServerIsGone) {
    Raw raw{proxy_.port()};
    raw({"PING"});
    server_.kill();
    EXPECT_TRUE(ended(raw));
    EXPECT_TRUE(eventually([&] {
        try {
            Raw late{proxy_.port()};
            return ended(late);
        } catch (const std::runtime_error&) {
            return true;
        }
    }));
    server_.start();
    EXPECT_EQ(Raw{proxy_.port()}.text({"PING"}), "PONG");
}

TEST_F(SupportProxy, RestsWhenNothingPasses) {
    const auto cpu = [] { return std::clock() * 1000 / CLOCKS_PER_SEC; };
    Raw raw{proxy_.port()};
    proxy_.hold(Direction::to_server);
    { const Raw gone{proxy_.port()}; }
    proxy_.hold(Direction::to_client);
    ASSERT_TRUE(sent(raw, {"PING"}));
    server_.kill();
    const auto before = cpu();
    std::this_thread::sleep_for(200ms);
    EXPECT_LT(cpu() - before, 100);
}

TEST_F(SupportProxy, ServesManyThreads) {
    std::vector<std::thread> threads;
    std::atomic<int> right = 0;
    for (int i = 0; i < 8; ++i) {
        threads.emplace_back([&, i] {
            Raw raw{proxy_.port()};
            for (int n = 0; n < 200; ++n) {
                const std::string word = std::to_string(i) + ':' + std::to_string(n);
                if (raw.text({"ECHO", word}) == word) ++right;
                proxy_.delay(Direction::to_client, std::chrono::microseconds{n % 3});
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(right, 1600);
}

TEST_F(SupportProxy, AndAMonitorOfTheParentDoNotHangAForkThatExits) {
    static std::optional<Proxy> proxy;
    static std::optional<Monitor> monitor;
    proxy.emplace(server_);
    monitor.emplace(server_);
    const auto leave = [] {
        proxy.reset();
        monitor.reset();
        return 3;
    };
    EXPECT_EQ(support::run_in_child(leave, 10s, support::Leave::by_exit), 3);
    EXPECT_EQ(Raw{proxy->port()}.text({"PING"}), "PONG");
    EXPECT_EQ(monitor->commands().size(), 1U);
    proxy.reset();
    monitor.reset();
}

// Processes

TEST(SupportProcess, AChildGivesItsStatus) {
    EXPECT_EQ(support::run_in_child([] { return 7; }), 7);
    EXPECT_EQ(support::run_in_child([]() -> int { throw std::runtime_error{"on purpose"}; }), 70);
    EXPECT_EQ(support::run_in_child([] { return ::raise(SIGKILL); }), 128 + SIGKILL);
    EXPECT_EQ(support::run_in_child([] { return 9; }, 10s, support::Leave::by_exit), 9);
}

TEST(SupportProcess, AChildThatHangsIsKilledAtItsLimit) {
    EXPECT_EQ(support::run_in_child(
                  [] {
                      for (;;) ::pause();
                      return 0;
                  },
                  50ms),
              -1);
}

TEST(SupportProcess, AForkedChildTalksWithUs) {
    Child child = Child::fork([](support::Lines& parent) {
        while (const auto line = parent.read_line()) parent.write_line("got " + *line);
        return 5;
    });
    child.write_line("a");
    child.write_line("b");
    EXPECT_EQ(child.read_line(), "got a");
    EXPECT_EQ(child.read_line(), "got b");
    EXPECT_EQ(child.read_line(10ms), std::nullopt);
    EXPECT_EQ(child.wait(10ms), std::nullopt);
    child.end_input();
    EXPECT_EQ(child.wait(), 5);
    EXPECT_FALSE(child.is_running());
}

TEST(SupportProcess, AnExecutedProgramTalksWithUs) {
    Child child = Child::exec({"cat"});
    child.write_line("hello");
    EXPECT_EQ(child.read_line(), "hello");
    child.pause();
    child.write_line("later");
    EXPECT_EQ(child.read_line(20ms), std::nullopt);
    child.resume();
    EXPECT_EQ(child.read_line(), "later");
    child.kill();
    EXPECT_EQ(child.wait(), 128 + SIGKILL);
    EXPECT_EQ(child.read_line(), std::nullopt);
    EXPECT_THROW(child.write_line("too late"), std::system_error);
}

TEST(SupportProcess, AProgramThatDoesNotExistIsAnError) { EXPECT_THROW(Child::exec({"/no/such/program"}), std::system_error); }

TEST(SupportProcess, AChildEndsWithItsOwner) {
    pid_t pid = -1;
    {
        const Child child = Child::exec({"cat"});
        pid = child.pid();
        EXPECT_TRUE(exists(pid));
    }
    EXPECT_FALSE(exists(pid));
}

TEST(SupportProcess, CountsDescriptorsAndMemory) {
    const auto before = support::open_descriptors();
    {
        const support::Descriptor one{::open("/dev/null", O_RDONLY | O_CLOEXEC)};
        EXPECT_EQ(support::open_descriptors(), before + 1);
        const Server server;
        const Proxy proxy{server};
        const Monitor monitor{server};
    }
    EXPECT_EQ(support::open_descriptors(), before);
    const auto resident = support::resident_bytes();
    constexpr std::size_t size = 64'000'000;
    void* const pages = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    ASSERT_NE(pages, MAP_FAILED);
    EXPECT_GT(support::resident_bytes(), resident + size - 10'000'000);
    ::munmap(pages, size);
}

TEST(SupportEventually, EndsAtItsLimit) {
    EXPECT_TRUE(eventually([n = 0]() mutable { return ++n == 5; }));
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_FALSE(eventually([] { return false; }, 20ms));
    EXPECT_GE(std::chrono::steady_clock::now() - begin, 20ms);
}

}  // namespace
