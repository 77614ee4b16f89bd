// Answers that come late, or never, or to somebody who no longer waits.
#include <live/guards.hpp>

#include <support/eventually.hpp>

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <new>
#include <stop_token>

namespace {

using namespace std::chrono_literals;
using namespace guards;
using hiredlock::Connection;
using hiredlock::Endpoint;
using hiredlock::Errc;
using hiredlock::Lock;
using hiredlock::Pool;
using support::Direction;
using support::eventually;
using support::Monitor;
using support::Proxy;
using support::Raw;
using support::Server;

TEST(Grant, WhoseRequestArrivedAfterTheTtlIsNoneAndIsReleased) {
    const Server server;
    Raw raw{server};
    Proxy proxy{server};
    Pool pool{hurried(proxy, 20s)};
    ASSERT_FALSE(pool.ping());
    Lock lock{pool, "k", 300ms, std::defer_lock};
    Monitor monitor{server};
    proxy.hold_when(Direction::to_server, "SET");
    std::error_code error;
    auto locking = std::async(std::launch::async, [&] { return lock.try_lock(error); });
    ASSERT_TRUE(eventually([&] { return proxy.held(Direction::to_server) > 0; }));
    EXPECT_EQ(locking.wait_for(400ms), std::future_status::timeout);
    proxy.release(Direction::to_server);
    EXPECT_FALSE(locking.get());
    EXPECT_FALSE(raw.exists("k"));  // long before the server would expire it
    EXPECT_EQ(error, Errc::timed_out);
    EXPECT_FALSE(lock.owns_lock());
    EXPECT_EQ(monitor.count(acquires("k")), 1U);
    EXPECT_GE(monitor.count(releases("k")), 1U);
}

TEST(Grant, WhoseAnswerArrivedAfterTheTtlIsNone) {
    const Server server;
    Raw raw{server};
    Proxy proxy{server};
    Connection connection{hurried(proxy, 20s)};
    ASSERT_FALSE(connection.ping());
    Lock lock{connection, "k", 200ms, std::defer_lock};
    proxy.hold(Direction::to_client);
    std::error_code error;
    auto locking = std::async(std::launch::async, [&] { return lock.try_lock(error); });
    ASSERT_TRUE(eventually([&] { return raw.exists("k"); }));
    ASSERT_TRUE(eventually([&] { return !raw.exists("k"); }));
    raw.set("k", "the next holder", 60s);
    proxy.release(Direction::to_client);
    EXPECT_FALSE(locking.get());
    EXPECT_EQ(error, Errc::timed_out);
    EXPECT_FALSE(lock.owns_lock());
    EXPECT_EQ(lock.unlock(), Errc::not_held);
    EXPECT_EQ(raw.get("k"), "the next holder");
}

TEST(Grant, ThatCameTooLateIsFollowedByAnotherAttemptInsideTheLimit) {
    const Server server;
    Proxy proxy{server};
    Pool pool{hurried(proxy, 20s)};
    ASSERT_FALSE(pool.ping());
    Lock lock{pool, "k", 200ms, std::defer_lock};
    proxy.hold_when(Direction::to_server, "SET");
    auto locking = std::async(std::launch::async, [&] { return lock.try_lock_for(30s); });
    ASSERT_TRUE(eventually([&] { return proxy.held(Direction::to_server) > 0; }));
    EXPECT_EQ(locking.wait_for(250ms), std::future_status::timeout);
    proxy.release(Direction::to_server);
    EXPECT_TRUE(locking.get());
}

/// A lock that is asked for while the server stalls, then one that somebody else holds.
template <class Store>
void stalls_and_asks_for_a_busy_one(Server& server, Store& store) {
    Raw raw{server};
    raw.set("busy", "somebody");
    ASSERT_FALSE(store.ping());
    server.pause();
    Lock stalled{store, "stalled", 60s, std::defer_lock};
    std::error_code error;
    EXPECT_FALSE(stalled.try_lock(error));
    EXPECT_EQ(error, Errc::timed_out);
    server.resume();
    Lock busy{store, "busy", 60s, std::defer_lock};
    EXPECT_FALSE(busy.try_lock(error));
    EXPECT_FALSE(error) << error.message();
    Lock free{store, "free", 60s, std::try_to_lock};
    EXPECT_TRUE(free.owns_lock());
    EXPECT_EQ(raw.get("free"), free.token());
    EXPECT_EQ(raw.get("busy"), "somebody");
    EXPECT_TRUE(eventually([&] { return !raw.exists("stalled"); }));  // given up: cleaned up
}

TEST(LateAnswer, IsNeverTakenForThatOfTheNextCommandOfAPool) {
    Server server;
    Pool pool{hurried(server, 250ms)};
    stalls_and_asks_for_a_busy_one(server, pool);
}

TEST(LateAnswer, IsNeverTakenForThatOfTheNextCommandOfAConnection) {
    Server server;
    Connection connection{hurried(server, 250ms)};
    stalls_and_asks_for_a_busy_one(server, connection);
}

TEST(LateAnswer, ToAReleaseIsNotTakenForThatOfTheNextAcquire) {
    Server server;
    Raw raw{server};
    raw.set("busy", "somebody");
    Connection connection{hurried(server, 250ms)};
    Lock lock{connection, "k", 60s};
    server.pause();
    EXPECT_EQ(lock.unlock(), Errc::timed_out);
    EXPECT_FALSE(lock.owns_lock());
    server.resume();
    std::error_code error;
    Lock busy{connection, "busy", 60s, std::defer_lock};
    EXPECT_FALSE(busy.try_lock(error));
    EXPECT_FALSE(error) << error.message();
}

TEST(UnansweredRelease, MayBeRepeatedAndFindingTheKeyGoneIsSuccess) {
    Server server;
    Raw raw{server};
    Pool pool{hurried(server, 250ms)};
    Lock lock{pool, "k", 60s};  // nobody has told this server the script yet
    server.pause();
    EXPECT_EQ(lock.unlock(), Errc::timed_out);
    EXPECT_FALSE(lock.token().empty());
    server.resume();
    ASSERT_TRUE(eventually([&] { return !raw.exists("k"); }));  // it was executed after all
    EXPECT_EQ(lock.unlock(), std::error_code{});
    EXPECT_EQ(lock.unlock(), Errc::not_held);
}

TEST(UnansweredRelease, OfALockThatAnotherHasByNowLeavesThatAlone) {
    Server server;
    Raw raw{server};
    Pool pool{hurried(server, 250ms)};
    Lock lock{pool, "k", 60s};  // nobody has told this server the script yet
    server.pause();
    EXPECT_EQ(lock.unlock(), Errc::timed_out);
    server.resume();
    ASSERT_TRUE(eventually([&] { return !raw.exists("k"); }));
    raw.set("k", "somebody", 60s);
    EXPECT_EQ(lock.unlock(), std::error_code{});
    EXPECT_EQ(raw.get("k"), "somebody");
}

TEST(UnansweredRelease, ThatBreaksIsRepeatedUnseen) {
    const Server server;
    Raw raw{server};
    Proxy proxy{server};
    Pool pool{hurried(proxy, 10s)};
    { const Lock first{pool, "first", 60s}; }
    Lock lock{pool, "k", 60s};
    const auto read = proxy.bytes(Direction::to_client);
    proxy.hold(Direction::to_client);
    auto unlocking = std::async(std::launch::async, [&] { return lock.unlock(); });
    ASSERT_TRUE(proxy.wait_for_bytes(Direction::to_client, read + 1));
    ASSERT_TRUE(eventually([&] { return !raw.exists("k"); }));
    proxy.release(Direction::to_client);
    proxy.cut();
    EXPECT_EQ(unlocking.get(), std::error_code{});  // executed the first time, found gone the second
}

TEST(UnansweredExtend, CountsAsTheShorterOfBothLeases) {
    Server server;
    Pool pool{hurried(server, 250ms)};
    Lock lock{pool, "k", 60s};
    server.pause();
    std::error_code error;
    EXPECT_FALSE(lock.extend(500ms, error));
    EXPECT_EQ(error, Errc::timed_out);
    EXPECT_LT(lock.remaining(), 500ms);
    server.resume();
    EXPECT_TRUE(eventually([&] { return !lock.owns_lock(); }));
}

TEST(UnansweredExtend, ToALongerTtlLeavesTheOldLease) {
    Server server;
    Pool pool{hurried(server, 250ms)};
    Lock lock{pool, "k", 60s};
    const auto end = lock.expires_at();
    server.pause();
    std::error_code error;
    EXPECT_FALSE(lock.extend(600s, error));
    EXPECT_EQ(error, Errc::timed_out);
    EXPECT_TRUE(lock.owns_lock());
    EXPECT_EQ(lock.expires_at(), end);
    server.resume();
    EXPECT_TRUE(lock.extend(600s));
    EXPECT_GT(lock.remaining(), 500s);
}

TEST(AmbiguousAcquire, WhoseAnswerWasDroppedDoesNotBlockItsOwnRetry) {
    const Server server;
    Raw raw{server};
    for (int round = 0; round < 3; ++round) {
        Proxy proxy{server};
        Pool pool{hurried(proxy, 250ms)};
        ASSERT_FALSE(pool.ping());
        proxy.swallow_when(Direction::to_client, "+OK");
        const auto start = std::chrono::steady_clock::now();
        Lock lock{pool, "k", 60s, 20s};
        EXPECT_TRUE(lock.owns_lock());
        EXPECT_LT(since(start), 10s);
        EXPECT_EQ(raw.get("k"), lock.token());
        EXPECT_EQ(lock.unlock(), std::error_code{});
        EXPECT_FALSE(raw.exists("k"));
    }
}

TEST(AmbiguousAcquire, WhoseConnectionBrokeDoesNotBlockItsOwnRetry) {
    const Server server;
    Raw raw{server};
    for (const auto ending : {support::Ending::reset, support::Ending::fin}) {
        Proxy proxy{server};
        Connection connection{hurried(proxy, 10s)};
        ASSERT_FALSE(connection.ping());
        proxy.cut_after(Direction::to_client, 0, ending);  // executed, and the answer lost
        Lock lock{connection, "k", 60s, std::defer_lock};
        EXPECT_TRUE(lock.try_lock());
        EXPECT_EQ(raw.get("k"), lock.token());
        EXPECT_EQ(lock.unlock(), std::error_code{});
    }
}

TEST(AmbiguousAcquire, ThatIsGivenUpLeavesNoKey) {
    const Server server;
    Raw raw{server};
    Proxy proxy{server};
    Pool pool{hurried(proxy, 250ms)};
    ASSERT_FALSE(pool.ping());
    Monitor monitor{server};
    proxy.swallow_when(Direction::to_client, "+OK");
    Lock lock{pool, "k", 60s, std::defer_lock};
    std::error_code error;
    EXPECT_FALSE(lock.try_lock(error));
    EXPECT_EQ(error, Errc::timed_out);
    EXPECT_EQ(monitor.count(acquires("k")), 1U);
    EXPECT_TRUE(eventually([&] { return !raw.exists("k"); }));
}

TEST(AmbiguousAcquire, ThatArrivesAfterItsCleanUpFoundNothingIsCleanedUpBehindItself) {
    const Server server;
    Raw raw{server};
    Proxy proxy{server};
    Pool pool{hurried(proxy, 250ms)};
    ASSERT_FALSE(pool.ping());
    Monitor monitor{server};
    proxy.hold_when(Direction::to_server, "SET");
    Lock lock{pool, "k", 60s, std::defer_lock};
    std::error_code error;
    EXPECT_FALSE(lock.try_lock(error));
    EXPECT_EQ(error, Errc::timed_out);
    ASSERT_TRUE(monitor.wait_for(releases("k")));  // from another connection; it found nothing
    EXPECT_EQ(monitor.count(acquires("k")), 0U);
    proxy.release(Direction::to_server);
    ASSERT_TRUE(monitor.wait_for(acquires("k")));
    EXPECT_TRUE(eventually([&] { return !raw.exists("k"); }));
}

TEST(AmbiguousAcquire, ThatArrivesAloneLongAfterItsCleanUpFoundNothingIsCleanedUpAgain) {
    const Server server;
    Raw raw{server};
    Proxy proxy{server};
    Pool pool{hurried(proxy, 250ms)};
    ASSERT_FALSE(pool.ping());
    Monitor monitor{server};
    proxy.swallow_when(Direction::to_server, "SET");
    Lock lock{pool, "k", 60s, std::defer_lock};
    std::error_code error;
    EXPECT_FALSE(lock.try_lock(error));
    ASSERT_TRUE(eventually([&] { return monitor.count(releases("k")) >= 2; }));
    std::string token;
    for (const auto& command : monitor.commands())
        if (is_release(command, "k")) token = command.argv.back();
    ASSERT_EQ(monitor.count(acquires("k")), 0U);
    ASSERT_TRUE(raw({"SET", "k", token, "NX", "EX", "60"}).is_ok());  // what the network had kept
    EXPECT_TRUE(eventually([&] { return !raw.exists("k"); }, 10s));
}

TEST(AmbiguousAcquire, ThatIsCleanedUpLeavesTheNextHolderAlone) {
    const Server server;
    Raw raw{server};
    Proxy proxy{server};
    Pool pool{hurried(proxy, 250ms)};
    ASSERT_FALSE(pool.ping());
    Monitor monitor{server};
    proxy.swallow_when(Direction::to_server, "SET");
    Lock lock{pool, "k", 60s, std::defer_lock};
    std::error_code error;
    EXPECT_FALSE(lock.try_lock(error));
    raw.set("k", "somebody", 60s);
    const auto before = monitor.count(releases("k"));
    EXPECT_TRUE(eventually([&] { return monitor.count(releases("k")) > before; }));
    EXPECT_EQ(raw.get("k"), "somebody");
}

TEST(AmbiguousAcquire, OfAConnectionIsCleanedUpBehindALaterCommand) {
    const Server server;
    Raw raw{server};
    Proxy proxy{server};
    Connection connection{hurried(proxy, 250ms)};
    ASSERT_FALSE(connection.ping());
    Monitor monitor{server};
    proxy.swallow_when(Direction::to_server, "SET");
    std::error_code error;
    {
        Lock lock{connection, "k", 60s, std::defer_lock};
        EXPECT_FALSE(lock.try_lock(error));
    }
    ASSERT_TRUE(eventually([&] {
        EXPECT_FALSE(connection.ping());
        return monitor.count(releases("k")) >= 1;
    }));
    std::string token;
    for (const auto& command : monitor.commands())
        if (is_release(command, "k")) token = command.argv.back();
    ASSERT_TRUE(raw({"SET", "k", token, "NX", "EX", "60"}).is_ok());
    EXPECT_TRUE(eventually([&] {
        EXPECT_FALSE(connection.ping());
        return !raw.exists("k");
    }, 10s));
}

TEST(AmbiguousAcquire, OfAConnectionThatEndsIsCleanedUpOnThatConnection) {
    Server server;
    Raw raw{server};
    {
        Connection connection{hurried(server, 250ms)};
        ASSERT_FALSE(connection.ping());
        server.pause();
        std::error_code error;
        EXPECT_FALSE(Lock(connection, "k", 60s, std::defer_lock).try_lock(error));
        EXPECT_EQ(error, Errc::timed_out);
    }
    server.resume();
    ASSERT_TRUE(eventually([&] { return raw.text({"INFO", "commandstats"}).find("cmdstat_set:") != std::string::npos; }));
    EXPECT_TRUE(eventually([&] { return !raw.exists("k"); }));
}

TEST(UnansweredRelease, OfADestroyedGuardIsRepeatedUntilItIsDone) {
    Server server;
    Raw raw{server};
    Pool pool{hurried(server, 250ms)};
    {
        const Lock lock{pool, "k", 60s};
        raw({"SCRIPT", "FLUSH"});  // so that what was sent first is not enough
        server.pause();
    }
    server.resume();
    EXPECT_TRUE(eventually([&] { return !raw.exists("k"); }));
}

TEST(SlowAnswer, ToTheLastAttemptInsideALimitIsBusyLikeThoseBeforeIt) {
    const Server server;
    Raw{server}.set("k", "somebody");
    Proxy proxy{server};
    Connection connection{endpoint_of(proxy)};
    ASSERT_FALSE(connection.ping());
    Monitor monitor{server};
    Lock lock{connection, "k", 60s, std::defer_lock, hiredlock::retry::Fixed{150ms}};
    std::error_code error;
    auto waiting = std::async(std::launch::async, [&] { return lock.try_lock_for(400ms, error); });
    ASSERT_TRUE(monitor.wait_for(acquires("k")));
    proxy.delay(Direction::to_client, 300ms);  // less than a command may take
    EXPECT_FALSE(waiting.get());
    EXPECT_FALSE(error) << error.message();
}

TEST(CancelledAcquire, OfAStalledServerEndsAtOnceAndIsCleanedUp) {
    Server server;
    Raw raw{server};
    Pool pool{hurried(server, 20s)};
    ASSERT_FALSE(pool.ping());
    server.pause();
    std::stop_source stop;
    Lock lock{pool, "k", 60s, std::defer_lock};
    auto locking = std::async(std::launch::async, [&] { return lock.lock(stop.get_token()); });
    EXPECT_EQ(locking.wait_for(50ms), std::future_status::timeout);
    const auto start = std::chrono::steady_clock::now();
    stop.request_stop();
    EXPECT_FALSE(locking.get());
    EXPECT_LT(since(start), 5s);
    server.resume();
    EXPECT_FALSE(lock.owns_lock());
    EXPECT_TRUE(eventually([&] { return !raw.exists("k"); }));
    EXPECT_TRUE(lock.try_lock_for(10s));
}

TEST(Login, GoesOnInTheConnectionThatAHalfOpenOneWasMovedTo) {
    const Server server;
    Proxy proxy{server};
    auto first = std::make_unique<Connection>(hurried(proxy, 20s));
    proxy.hold(Direction::to_client);
    EXPECT_EQ(thrown_by([&] { Lock{*first, "k", 60s, 50ms}; }), Errc::timed_out);
    Connection second{std::move(*first)};
    first.reset();
    proxy.release(Direction::to_client);
    EXPECT_FALSE(second.ping());
    EXPECT_EQ(proxy.accepted(), 1U);
}

/// What has no memory at some point.
class Exhausted final : public hiredlock::detail::Exchange {
public:
    explicit Exhausted(bool at_once) : at_once_(at_once) {}
    void start(hiredlock::detail::CommandSink& sink) override {
        sink.command({"PING"});
        if (at_once_) throw std::bad_alloc{};
    }
    bool take(const hiredlock::detail::Reply&, hiredlock::detail::CommandSink&) override { throw std::bad_alloc{}; }

private:
    bool at_once_;
};

TEST(ExceptionInAnExchange, LeavesNothingBehindThatWouldMeetTheNext) {
    const Server server;
    hiredlock::detail::Session session{endpoint_of(server)};
    for (const bool at_once : {true, false}) {
        ASSERT_EQ(session.ping({}).answer, hiredlock::Answer::yes);
        auto exchange = std::make_unique<Exhausted>(at_once);
        EXPECT_THROW(session.run(*exchange, {}), std::bad_alloc);
        exchange.reset();
        EXPECT_FALSE(session.is_busy());
        EXPECT_EQ(session.ping({}).answer, hiredlock::Answer::yes);
    }
}

}  // namespace
