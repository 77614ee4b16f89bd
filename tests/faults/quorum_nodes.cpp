// Each subset of a quorum's servers failing in each way: a minority costs nothing, a majority ends in time and says why, and nothing stays behind.
#include <live/servers.hpp>

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>

namespace {

using namespace std::chrono_literals;
using namespace guards;
using hiredlock::Endpoint;
using hiredlock::Errc;
using hiredlock::Lock;
using hiredlock::Redlock;
using support::Direction;
using support::eventually;
using support::Proxy;
using support::Raw;
using support::Server;

/// A server behind a relay.
struct Node {
    Server server{};
    Proxy proxy{server};
    std::optional<Raw> busy{};  ///< with a script that does not end
};

/// How a server fails, and how it gets well.
struct Fault {
    const char* name;
    Errc majority;  ///< what is said where no majority is left
    std::function<void(Node&)> begin;
    std::function<void(Node&)> end;
};

const Fault faults[] = {
    {"Stopped", Errc::no_quorum, [](Node& node) { node.server.pause(); }, [](Node& node) { node.server.resume(); }},
    {"KilledAndStartedAgain", Errc::no_quorum, [](Node& node) { node.server.kill(); }, [](Node& node) { node.server.start(); }},
    {"Refusing", Errc::no_quorum,
     [](Node& node) {
         node.proxy.refuse(true);
         node.proxy.cut();
     },
     [](Node& node) { node.proxy.refuse(false); }},
    {"BlackHoled", Errc::no_quorum,
     [](Node& node) {
         node.proxy.swallow(Direction::to_server);
         node.proxy.swallow(Direction::to_client);
     },
     [](Node& node) {
         node.proxy.pass(Direction::to_server);
         node.proxy.pass(Direction::to_client);
         node.proxy.cut();
     }},
    {"SlowerThanTheCallersLimit", Errc::no_quorum, [](Node& node) { node.proxy.delay(Direction::to_client, 600ms); },
     [](Node& node) {
         node.proxy.delay(Direction::to_client, 0ms);
         node.proxy.cut();  // the answers that are delayed already
     }},
    {"WithAnotherPassword", Errc::denied,
     [](Node& node) {
         Raw{node.server}({"CONFIG", "SET", "requirepass", "secret"});
         Raw{node.server.port(), "secret"}({"CLIENT", "KILL", "TYPE", "normal"});
     },
     [](Node& node) { Raw{node.server.port(), "secret"}({"CONFIG", "SET", "requirepass", ""}); }},
    {"ReadOnly", Errc::no_quorum, [](Node& node) { Raw{node.server}({"REPLICAOF", "127.0.0.1", "1"}); },
     [](Node& node) { Raw{node.server}({"REPLICAOF", "NO", "ONE"}); }},
    {"OutOfMemory", Errc::out_of_memory, [](Node& node) { Raw{node.server}({"CONFIG", "SET", "maxmemory", "1"}); },
     [](Node& node) { Raw{node.server}({"CONFIG", "SET", "maxmemory", "0"}); }},
    {"BusyWithAScript", Errc::no_quorum,
     [](Node& node) {
         Raw{node.server}({"CONFIG", "SET", "lua-time-limit", "1"});
         node.busy.emplace(node.server);
         node.busy->send({"EVAL", "while true do end", "0"});
         ASSERT_TRUE(eventually([&] { return Raw{node.server}({"PING"}).is_error(); }));
     },
     [](Node& node) {
         Raw{node.server}({"SCRIPT", "KILL"});
         node.busy->read();
         node.busy.reset();
     }},
};

void PrintTo(const Fault& fault, std::ostream* out) { *out << fault.name; }

class Nodes {
public:
    explicit Nodes(std::size_t count) {
        for (std::size_t i = 0; i < count; ++i) nodes_.push_back(std::make_unique<Node>());
    }
    Node& operator[](std::size_t i) { return *nodes_[i]; }
    std::vector<Endpoint> endpoints() const {
        std::vector<Endpoint> all;
        for (const auto& node : nodes_) all.push_back(endpoint_of(node->proxy));
        return all;
    }
    void each(unsigned subset, const std::function<void(Node&)>& what) {
        for (std::size_t i = 0; i < nodes_.size(); ++i)
            if ((subset >> i & 1U) != 0) what(*nodes_[i]);
    }
    std::size_t count(const std::string& key) {
        std::size_t there = 0;
        for (const auto& node : nodes_) there += Raw{node->server}.exists(key) ? 1 : 0;
        return there;
    }

private:
    std::vector<std::unique_ptr<Node>> nodes_;
};

class Quorum : public testing::TestWithParam<Fault> {};

/// Before it began, while it lasts, and after it has ended.
void fail_each_subset(const Fault& fault, std::size_t count) {
    Nodes nodes{count};
    Redlock quorum{nodes.endpoints()};
    for (unsigned subset = 1; subset < 1U << count; ++subset) {
        SCOPED_TRACE(testing::Message() << "subset " << subset << " of " << count << " servers");
        const auto failing = static_cast<std::size_t>(__builtin_popcount(subset));
        const bool is_minority = failing <= (count - 1) / 2;
        {
            Lock held{quorum, "held", 60s};
            ASSERT_TRUE(eventually([&] { return nodes.count("held") == count; }));
            Lock lock{quorum, "k", 60s, std::defer_lock};
            nodes.each(subset, fault.begin);
            std::error_code error;
            auto start = std::chrono::steady_clock::now();
            if (is_minority) {
                EXPECT_TRUE(lock.try_lock(error)) << lock.last_error();
                EXPECT_TRUE(held.extend(60s, error)) << held.last_error();
                EXPECT_EQ(lock.unlock(), std::error_code{}) << lock.last_error();
                EXPECT_EQ(held.unlock(), std::error_code{}) << held.last_error();
                EXPECT_LT(since(start), 500ms);  // less than any failing server takes
            } else {
                EXPECT_FALSE(lock.try_lock_for(60ms, error));
                EXPECT_EQ(error, fault.majority) << lock.last_error();
                EXPECT_LT(since(start), 500ms);
                EXPECT_FALSE(lock.owns_lock());
            }
            nodes.each(subset, fault.end);
        }
        EXPECT_TRUE(eventually([&] { return nodes.count("k") + nodes.count("held") == 0; }, 10s));
        // All of them again, and the one that failed beside the others soon.
        EXPECT_TRUE(eventually([&] {
            Lock lock{quorum, "again", 60s};
            return nodes.count("again") == count;
        })) << nodes.count("again");
        ASSERT_TRUE(eventually([&] { return nodes.count("again") == 0; }));
    }
}

TEST_P(Quorum, OfThreeBearsAMinority) { fail_each_subset(GetParam(), 3); }
TEST_P(Quorum, OfTwoBearsNone) { fail_each_subset(GetParam(), 2); }

INSTANTIATE_TEST_SUITE_P(WithServers, Quorum, testing::ValuesIn(faults), [](const auto& one) { return std::string{one.param.name}; });

TEST(QuorumOfFour, BearsAnyOneThatIsStoppedAndSaysOfTwoThatTheyAreTooMany) { fail_each_subset(faults[0], 4); }
TEST(QuorumOfFour, BearsAnyOneThatIsKilledAndSaysOfTwoThatTheyAreTooMany) { fail_each_subset(faults[1], 4); }

TEST(QuorumOfFive, BearsAnyTwoThatAreStoppedAndSaysOfThreeThatTheyAreTooMany) { fail_each_subset(faults[0], 5); }
TEST(QuorumOfFive, BearsAnyTwoThatAreKilledAndSaysOfThreeThatTheyAreTooMany) { fail_each_subset(faults[1], 5); }

TEST(QuorumOfFive, BearsTwoThatFailInDifferentWays) {
    Nodes nodes{5};
    Redlock quorum{nodes.endpoints()};
    for (const Fault& one : faults)
        for (const Fault& other : faults) {
            SCOPED_TRACE(testing::Message() << one.name << " and " << other.name);
            one.begin(nodes[1]);
            other.begin(nodes[3]);
            {
                Lock lock{quorum, "k", 60s, std::defer_lock};
                std::error_code error;
                EXPECT_TRUE(lock.try_lock(error)) << lock.last_error();
                EXPECT_TRUE(lock.extend(60s, error)) << lock.last_error();
                EXPECT_EQ(lock.unlock(), std::error_code{}) << lock.last_error();
            }
            one.end(nodes[1]);
            other.end(nodes[3]);
            ASSERT_TRUE(eventually([&] { return nodes.count("k") == 0; }, 10s));
        }
}

// --- While a call is under way.

TEST(QuorumOfThree, BearsAServerThatIsKilledWithinACall) {
    Nodes nodes{3};
    Redlock quorum{nodes.endpoints()};
    for (int round = 0; round < 10; ++round) {
        SCOPED_TRACE(round);
        Node& victim = nodes[static_cast<std::size_t>(round) % 3];
        const Direction held = round % 2 == 0 ? Direction::to_client : Direction::to_server;
        {
            Lock lock{quorum, "k", 60s, std::defer_lock};
            std::error_code error;
            victim.proxy.hold(held);
            EXPECT_TRUE(lock.try_lock(error)) << lock.last_error();
            victim.server.kill();
            EXPECT_TRUE(lock.extend(60s, error)) << lock.last_error();
            victim.proxy.release(held);
            EXPECT_EQ(lock.unlock(), std::error_code{}) << lock.last_error();
        }
        victim.server.start();
        ASSERT_TRUE(eventually([&] { return nodes.count("k") == 0; }));
    }
}

TEST(QuorumOfThree, EndsWhenTheLastServersThatCountAreKilledWithinACall) {
    Nodes nodes{3};
    Redlock quorum{nodes.endpoints()};
    EXPECT_FALSE(quorum.ping());
    Lock lock{quorum, "k", 60s, std::defer_lock};
    for (std::size_t i = 0; i < 2; ++i) nodes[i].proxy.hold_when(Direction::to_client, "OK");
    std::thread killer{[&] {
        for (std::size_t i = 0; i < 2; ++i) {
            EXPECT_TRUE(eventually([&] { return nodes[i].proxy.held(Direction::to_client) > 0; }));
            nodes[i].proxy.refuse(true);  // it is asked once more, at once
            nodes[i].proxy.cut();
        }
    }};
    const auto start = std::chrono::steady_clock::now();
    std::error_code error;
    EXPECT_FALSE(lock.try_lock(error));
    killer.join();
    EXPECT_EQ(error, Errc::no_quorum) << lock.last_error();
    EXPECT_LT(since(start), 900ms);  // less than an answer may take
    for (std::size_t i = 0; i < 2; ++i) nodes[i].proxy.refuse(false);
    EXPECT_TRUE(eventually([&] { return nodes.count("k") == 0; }, 10s));
    EXPECT_TRUE(lock.try_lock());
}

TEST(QuorumOfThree, TakesNoMajorityThatCameTooLate) {
    Nodes nodes{3};
    Redlock quorum{nodes.endpoints()};
    EXPECT_FALSE(quorum.ping());
    for (std::size_t i = 0; i < 2; ++i) nodes[i].proxy.delay(Direction::to_client, 150ms);
    Lock lock{quorum, "k", 100ms, std::defer_lock};
    std::error_code error;
    EXPECT_FALSE(lock.try_lock(error));
    EXPECT_EQ(error, Errc::timed_out);
    EXPECT_FALSE(lock.owns_lock());
}

TEST(QuorumOfThree, JudgesItsLeaseByTheTimeBeforeTheFirstWasAsked) {
    Nodes nodes{3};
    Redlock quorum{nodes.endpoints()};
    EXPECT_FALSE(quorum.ping());
    for (std::size_t i = 0; i < 2; ++i) nodes[i].proxy.delay(Direction::to_client, 100ms);
    const auto before = hiredlock::Clock::now();
    Lock lock{quorum, "k", 10s};
    EXPECT_GE(hiredlock::Clock::now() - before, 100ms);
    EXPECT_LE(lock.expires_at(), before + 10s - 102ms + 50ms);
}

TEST(QuorumOfThree, HoldsOnWhileAMinorityRestartsWithoutItsDataAndNoLonger) {
    Nodes nodes{3};
    Redlock quorum{nodes.endpoints()};
    Lock lock{quorum, "k", 60s};
    ASSERT_TRUE(eventually([&] { return nodes.count("k") == 3; }));
    nodes[0].server.kill();
    nodes[0].server.start();
    EXPECT_TRUE(lock.extend(60s));
    nodes[1].server.kill();
    nodes[1].server.start();
    EXPECT_FALSE(lock.extend(60s));
    EXPECT_EQ(lock.unlock(), Errc::not_held);
    EXPECT_TRUE(eventually([&] { return nodes.count("k") == 0; }));
}

TEST(QuorumOfThree, DoesNotCallItLostWhileSilentServersMayHaveIt) {
    Nodes nodes{3};
    Redlock quorum{nodes.endpoints()};
    Lock lock{quorum, "k", 60s};
    ASSERT_TRUE(eventually([&] { return nodes.count("k") == 3; }));
    Raw{nodes[0].server}.del("k");
    nodes[1].proxy.refuse(true);
    nodes[1].proxy.cut();
    EXPECT_EQ(thrown_by([&] { lock.extend(60s); }), Errc::no_quorum);
    EXPECT_TRUE(lock.owns_lock());
    EXPECT_EQ(lock.unlock(), Errc::no_quorum);
    nodes[1].proxy.refuse(false);
    EXPECT_EQ(lock.unlock(), std::error_code{});  // gone by now, and it was ours
    EXPECT_TRUE(eventually([&] { return nodes.count("k") == 0; }));
}

}  // namespace
