// What a guard says to the server when it acquires and lets go, and what it refuses to say.
#include "guards.hpp"

#include <support/eventually.hpp>
#include <support/process.hpp>

#include <gtest/gtest.h>

#include <future>
#include <limits>
#include <set>
#include <thread>

namespace {

using namespace std::chrono_literals;
using namespace guards;
using hiredlock::Cas;
using hiredlock::Errc;
using hiredlock::Lock;
using hiredlock::Pool;
using support::eventually;
using support::Monitor;
using support::Raw;
using support::Server;

using Argv = std::vector<std::string>;

/// The one command that releases a lock once a connection knows the server.
Argv release_command(Cas cas, const std::string& key, const std::string& token, const std::string& sha1) {
    switch (cas) {
        case Cas::delex: return {"DELEX", key, "IFEQ", token};
        case Cas::delifeq: return {"DELIFEQ", key, token};
        case Cas::tair: return {"CAD", key, token};
        case Cas::script:
        case Cas::automatic: break;
    }
    return {"EVALSHA", sha1, "1", key, token};
}

TEST(Guard, OfTenSecondsIsExactlyOneSetAndOneRelease) {
    const Server server;
    Pool pool{endpoint_of(server)};
    const Cas cas = pool.cas();
    { const Lock first{pool, "first", 10s}; }
    Monitor monitor{server};
    std::string token;
    {
        const Lock lock{pool, "report", 10s};
        token = lock.token();
    }
    const auto said = said_by_clients(monitor);
    ASSERT_EQ(said.size(), 2U);
    EXPECT_EQ(said[0], (Argv{"SET", "report", token, "NX", "EX", "10"}));
    EXPECT_EQ(said[1], release_command(cas, "report", token, said[1].at(1)));
}

TEST(Guard, ByScriptIsExactlyOneSetAndOneEvalsha) {
    const Server server;
    Pool pool{with_scripts(server)};
    EXPECT_EQ(pool.cas(), Cas::script);
    { const Lock first{pool, "first", 10s}; }
    Monitor monitor{server};
    std::string token;
    {
        const Lock lock{pool, "report", 10s};
        token = lock.token();
    }
    const auto said = said_by_clients(monitor);
    ASSERT_EQ(said.size(), 2U);
    EXPECT_EQ(said[0], (Argv{"SET", "report", token, "NX", "EX", "10"}));
    ASSERT_EQ(said[1].size(), 5U);
    EXPECT_EQ(said[1], (Argv{"EVALSHA", said[1][1], "1", "report", token}));
    EXPECT_EQ(said[1][1].size(), 40U);
}

TEST(Guard, SendsTheTextOfTheScriptToANewServerOnce) {
    const Server server;
    Pool pool{with_scripts(server)};
    Monitor monitor{server};
    for (const char* key : {"a", "b", "c"}) const Lock lock{pool, key, 10s};
    const auto said_so = [&](const char* name, const char* key) {
        return monitor.count([&](const auto& command) { return command.name() == name && is_release(command, key); });
    };
    EXPECT_EQ(said_so("EVALSHA", "a"), 1U);
    EXPECT_EQ(said_so("EVAL", "a"), 1U);
    EXPECT_EQ(said_so("EVALSHA", "b") + said_so("EVALSHA", "c"), 2U);
    EXPECT_EQ(said_so("EVAL", "b") + said_so("EVAL", "c"), 0U);
    EXPECT_EQ(monitor.count([](const auto& command) { return command.name() == "DEL" && !command.from_script(); }), 0U);
}

TEST(Guard, SaysItsTtlInSecondsOrInMillisecondsRoundedUp) {
    const Server server;
    Pool pool{endpoint_of(server)};
    Monitor monitor{server};
    const auto hold = [&pool](const char* key, auto ttl) {
        std::error_code too_slow;  // as an answer may well be where the ttl is that short
        Lock(pool, key, ttl, std::defer_lock).try_lock(too_slow);
    };
    hold("5ms", 5ms);
    hold("5001us", 5001us);
    hold("500ms", 500ms);
    hold("999001us", 999001us);
    hold("1500ms", 1500ms);
    hold("2000ms", 2000ms);
    hold("10s", 10s);
    hold("1h", 1h);
    hold("1.5s", std::chrono::duration<double>{1.5});
    hold("5.0001ms", std::chrono::duration<double, std::milli>{5.0001});
    std::vector<Argv> expiries;
    for (const auto& command : monitor.commands())
        if (is_acquire(command, command.argv.at(1))) expiries.push_back({command.argv[1], command.argv.at(4), command.argv.at(5)});
    EXPECT_EQ(expiries, (std::vector<Argv>{{"5ms", "PX", "5"},
                                           {"5001us", "PX", "6"},
                                           {"500ms", "PX", "500"},
                                           {"999001us", "EX", "1"},
                                           {"1500ms", "PX", "1500"},
                                           {"2000ms", "EX", "2"},
                                           {"10s", "EX", "10"},
                                           {"1h", "EX", "3600"},
                                           {"1.5s", "PX", "1500"},
                                           {"5.0001ms", "PX", "6"}}));
}

/// Calls `use` with every ttl that cannot be.
template <class Use>
void with_every_bad_ttl(Use use) {
    use("0", 0s);
    use("-1", -1s);
    use("1 us", 1us);
    use("999 us", 999us);
    use("4999 us", 4999us);
    use("seconds::min", std::chrono::seconds::min());
    use("milliseconds::min", std::chrono::milliseconds::min());
    use("nanoseconds::min", std::chrono::nanoseconds::min());
    use("milliseconds::max", std::chrono::milliseconds::max());
    use("hours::max", std::chrono::hours::max());
    use("nanoseconds::max", std::chrono::nanoseconds::max());
    use("infinite", std::chrono::duration<double>{std::numeric_limits<double>::infinity()});
    use("not a number", std::chrono::duration<double>{std::numeric_limits<double>::quiet_NaN()});
}

TEST(Guard, RefusesATtlThatCannotBeAndSendsNothing) {
    const Server server;
    Pool pool{endpoint_of(server)};
    Monitor monitor{server};
    with_every_bad_ttl([&](const char* name, auto ttl) {
        EXPECT_EQ(thrown_by([&] { const Lock lock{pool, "k", ttl}; }), Errc::invalid_argument) << name;
        EXPECT_EQ(thrown_by([&] { const Lock lock{pool, "k", ttl, std::try_to_lock}; }), Errc::invalid_argument) << name;
        EXPECT_EQ(thrown_by([&] { const Lock lock{pool, "k", ttl, std::defer_lock}; }), Errc::invalid_argument) << name;
        EXPECT_EQ(thrown_by([&] { const Lock lock{pool, "k", ttl, 1s}; }), Errc::invalid_argument) << name;
        const hiredlock::Ticket ticket{.key = "k", .token = "t"};
        EXPECT_EQ(thrown_by([&] { const Lock lock{pool, ticket, ttl, std::adopt_lock}; }), Errc::invalid_argument) << name;
    });
    EXPECT_TRUE(monitor.commands().empty());
}

TEST(Guard, RefusesAnEmptyKeyAndSendsNothing) {
    const Server server;
    Pool pool{endpoint_of(server)};
    Monitor monitor{server};
    EXPECT_EQ(thrown_by([&] { const Lock lock{pool, "", 10s}; }), Errc::invalid_argument);
    EXPECT_EQ(thrown_by([&] { const Lock lock{pool, hiredlock::Ticket{.key = "", .token = "t"}, 10s, std::adopt_lock}; }), Errc::invalid_argument);
    EXPECT_TRUE(monitor.commands().empty());
}

TEST(Extend, RefusesATtlThatCannotBeAndTheKeyStaysAsItWas) {
    const Server server;
    Raw raw{server};
    Pool pool{endpoint_of(server)};
    Lock lock{pool, "k", 100s};
    const auto end = lock.expires_at();
    Monitor monitor{server};
    with_every_bad_ttl([&](const char* name, auto ttl) {
        EXPECT_EQ(thrown_by([&] { lock.extend(ttl); }), Errc::invalid_argument) << name;
        std::error_code error;
        EXPECT_FALSE(lock.extend(ttl, error)) << name;
        EXPECT_EQ(error, Errc::invalid_argument) << name;
    });
    EXPECT_TRUE(monitor.commands().empty());
    EXPECT_TRUE(lock.owns_lock());
    EXPECT_EQ(lock.expires_at(), end);
    EXPECT_EQ(raw.get("k"), lock.token());
    EXPECT_GT(raw.pttl("k"), 50'000);
}

TEST(Limit, OfNothingOrLessAsksOnce) {
    const Server server;
    Raw{server}.set("k", "somebody");
    Pool pool{endpoint_of(server)};
    Lock lock{pool, "k", 10s, std::defer_lock};
    Monitor monitor{server};
    std::size_t asked = 0;
    const auto asks_once = [&](const char* name, auto attempt) {
        const auto start = std::chrono::steady_clock::now();
        EXPECT_FALSE(attempt()) << name;
        EXPECT_LT(since(start), 2s) << name;
        EXPECT_EQ(monitor.count(acquires("k")), ++asked) << name;
    };
    asks_once("0", [&] { return lock.try_lock_for(0s); });
    asks_once("-1", [&] { return lock.try_lock_for(-1s); });
    asks_once("nanoseconds::min", [&] { return lock.try_lock_for(std::chrono::nanoseconds::min()); });
    asks_once("hours::min", [&] { return lock.try_lock_for(std::chrono::hours::min()); });
    asks_once("not a number", [&] { return lock.try_lock_for(std::chrono::duration<double>{std::numeric_limits<double>::quiet_NaN()}); });
    asks_once("now", [&] { return lock.try_lock_until(std::chrono::steady_clock::now()); });
    asks_once("long ago", [&] { return lock.try_lock_until(std::chrono::steady_clock::time_point::min()); });
    asks_once("long ago by the wall clock", [&] { return lock.try_lock_until(std::chrono::system_clock::time_point::min()); });
    asks_once("long ago by our clock", [&] { return lock.try_lock_until(hiredlock::Clock::time_point::min()); });
    asks_once("in a constructor", [&] { return Lock{pool, "k", 10s, -1h}.owns_lock(); });
}

TEST(Limit, AsLongAsADurationCanSayWaitsUntilTheLockIsFree) {
    const Server server;
    Raw raw{server};
    Pool pool{endpoint_of(server)};
    const auto waits = [&](const char* name, auto attempt) {
        raw.set("k", "somebody");
        auto waiting = std::async(std::launch::async, [&] {
            Lock lock{pool, "k", 10s, std::defer_lock};
            return attempt(lock) && lock.remaining() > 5s && lock.remaining() <= 10s;
        });
        EXPECT_EQ(waiting.wait_for(20ms), std::future_status::timeout) << name;
        raw.del("k");
        EXPECT_TRUE(waiting.get()) << name;
    };
    waits("hours::max", [](auto& lock) { return lock.try_lock_for(std::chrono::hours::max()); });
    waits("milliseconds::max", [](auto& lock) { return lock.try_lock_for(std::chrono::milliseconds::max()); });
    waits("nanoseconds::max", [](auto& lock) { return lock.try_lock_for(std::chrono::nanoseconds::max()); });
    waits("infinite", [](auto& lock) { return lock.try_lock_for(std::chrono::duration<double>{std::numeric_limits<double>::infinity()}); });
    waits("steady_clock's end", [](auto& lock) { return lock.try_lock_until(std::chrono::steady_clock::time_point::max()); });
    waits("system_clock's end", [](auto& lock) { return lock.try_lock_until(std::chrono::system_clock::time_point::max()); });
    waits("our clock's end", [](auto& lock) { return lock.try_lock_until(hiredlock::Clock::time_point::max()); });
}

TEST(Limit, IsUsedUpAndThenTheAnswerIsBusy) {
    const Server server;
    Raw raw{server};
    raw.set("k", "somebody");
    Pool pool{endpoint_of(server)};
    const auto start = std::chrono::steady_clock::now();
    const Lock waiting{pool, "k", 10s, 300ms};
    EXPECT_FALSE(waiting.owns_lock());
    EXPECT_GE(since(start), 280ms);
    EXPECT_LT(since(start), 3s);
    const auto again = std::chrono::steady_clock::now();
    const Lock until{pool, "k", 10s, again + 200ms};
    EXPECT_FALSE(until.owns_lock());
    EXPECT_GE(since(again), 180ms);
    EXPECT_LT(since(again), 3s);
    EXPECT_EQ(raw.get("k"), "somebody");
}

TEST(Guard, FindsTheLockOfAnyOtherClientOfThePatternBusy) {
    const Server server;
    Raw raw{server};
    Pool pool{endpoint_of(server)};
    ASSERT_TRUE(raw({"SET", "k", "a shell script", "NX", "PX", "60000"}).is_ok());
    Lock lock{pool, "k", 10s, std::try_to_lock};
    EXPECT_FALSE(lock.owns_lock());
    std::error_code error = make_error_code(Errc::protocol);
    EXPECT_FALSE(lock.try_lock(error));
    EXPECT_FALSE(error);
    EXPECT_EQ(raw.get("k"), "a shell script");
    raw.del("k");
    EXPECT_TRUE(lock.try_lock());
    EXPECT_TRUE(raw({"SET", "k", "a shell script", "NX", "PX", "60000"}).is_nil());
}

TEST(Acquire, KilledAtAnyMomentNeverLeavesAKeyWithoutAnExpiry) {
    const Server server;
    Raw raw{server};
    for (int round = 0; round < 15; ++round) {
        raw.del("k");
        support::Child client = support::Child::fork([&server](support::Lines& parent) {
            Pool pool{endpoint_of(server)};
            parent.write_line("begins");
            for (;;) const Lock lock{pool, "k", 10s};
            return 0;
        });
        ASSERT_TRUE(client.read_line());
        int held = 0;
        for (int looks = 0; looks < 1500 && held < 500; ++looks) {
            const auto left = raw.pttl("k");
            ASSERT_NE(left, -1);
            held += left > 0 ? 1 : 0;
        }
        EXPECT_GT(held, 0);
        client.kill();
        ASSERT_NE(raw.pttl("k"), -1);
    }
}

TEST(Token, IsThirtyTwoHexDigitsAndNewForEachAcquisition) {
    const Server server;
    Pool pool{endpoint_of(server)};
    Lock lock{pool, "k", 10s, std::defer_lock};
    EXPECT_TRUE(lock.token().empty());
    std::set<std::string> tokens;
    for (int i = 0; i < 10; ++i) {
        lock.lock();
        EXPECT_EQ(lock.token().size(), 32U);
        EXPECT_EQ(lock.token().find_first_not_of("0123456789abcdef"), std::string_view::npos);
        tokens.emplace(lock.token());
        EXPECT_FALSE(lock.unlock());
    }
    EXPECT_EQ(tokens.size(), 10U);
    EXPECT_TRUE(lock.token().empty());
}

TEST(Token, DiffersInFiftyChildrenForkedAfterAFirstLock) {
    const Server server;
    Pool pool{endpoint_of(server)};
    const Lock first{pool, "first", 60s};
    std::set<std::string> tokens{std::string{first.token()}};
    std::vector<support::Child> children;
    for (int i = 0; i < 50; ++i)
        children.push_back(support::Child::fork([&pool, i](support::Lines& parent) {
            const Lock lock{pool, "child " + std::to_string(i), 60s};
            parent.write_line(lock.token());
            return 0;
        }));
    for (auto& child : children) {
        const auto token = child.read_line(30s);
        ASSERT_TRUE(token);
        tokens.insert(*token);
        EXPECT_EQ(child.wait(30s), 0);
    }
    EXPECT_EQ(tokens.size(), 51U);
}

TEST(Token, OfSixteenThreadsDifferAHundredThousandTimes) {
    constexpr std::size_t threads = 16, each = 6250;
    std::vector<std::vector<std::string>> made(threads);
    {
        std::vector<std::jthread> running;
        for (auto& tokens : made)
            running.emplace_back([&tokens] {
                while (tokens.size() < each) tokens.push_back(hiredlock::new_token());
            });
    }
    std::set<std::string> tokens;
    for (const auto& some : made) tokens.insert(some.begin(), some.end());
    EXPECT_EQ(tokens.size(), threads * each);
}

}  // namespace
