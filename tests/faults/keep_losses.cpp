// Locks under a watchdog that go: by a stranger, by a flush, by a restart, by a server that does not answer. Each is lost once and on time, and
// nothing is done to the key afterwards.
#include <live/losses.hpp>

#include <gtest/gtest.h>

#include <thread>

namespace {

using namespace std::chrono_literals;
using namespace guards;
using hiredlock::Clock;
using hiredlock::Errc;
using hiredlock::Lock;
using hiredlock::Pool;
using hiredlock::renew::Watchdog;
using support::eventually;
using support::Monitor;
using support::Raw;
using support::Server;

constexpr auto interval = 200ms;

/// Takes a lock whose lease is long and whose renewals are frequent, lets `event` happen to its key, and expects exactly one loss within an interval
/// (with two seconds for a slow machine), long before the lease would end.
template <class Event>
void expect_one_loss_within_an_interval(Server& server, Event event) {
    Pool pool{endpoint_of(server)};
    Losses losses;
    const Lock lock{pool, "k", 30s, losses.watchdog(interval)};
    const auto stop = lock.stop_token();
    const auto before = Clock::now();
    event();
    ASSERT_TRUE(losses.wait_for(1));
    EXPECT_LT(losses.at() - before, interval + 2s);
    EXPECT_FALSE(lock.owns_lock());
    EXPECT_TRUE(stop.stop_requested());
    EXPECT_EQ(thrown_by([&] { lock.check(); }), Errc::lost);
    EXPECT_TRUE(stays([&] { return losses.count() == 1; }, 2 * interval));
}

TEST(KeptLock, WhoseKeyIsDeletedIsLostOnceAndTheKeyStaysAway) {
    Server server;
    Raw raw{server};
    expect_one_loss_within_an_interval(server, [&] { raw.del("k"); });
    EXPECT_FALSE(raw.exists("k"));
}

TEST(KeptLock, WhoseServerIsFlushedIsLostOnceAndTheKeyStaysAway) {
    Server server;
    Raw raw{server};
    expect_one_loss_within_an_interval(server, [&] { raw({"FLUSHALL"}); });
    EXPECT_FALSE(raw.exists("k"));
}

TEST(KeptLock, WhoseServerForgetsItInARestartIsLostOnceAndTheKeyStaysAway) {
    Server server;
    expect_one_loss_within_an_interval(server, [&] { server.restart(); });
    EXPECT_FALSE(Raw{server}.exists("k"));
}

TEST(KeptLock, WhoseServerRemembersItInARestartIsKept) {
    Server server{{.config = {"appendfsync always"}, .append_only = true}};
    Pool pool{endpoint_of(server)};
    Losses losses;
    Lock lock{pool, "k", 30s, losses.watchdog(20ms)};
    server.restart();
    Monitor monitor{server};
    EXPECT_TRUE(eventually([&] { return monitor.count(extends("k")) >= 5; }));
    EXPECT_TRUE(lock.owns_lock());
    EXPECT_FALSE(lock.unlock());
    EXPECT_EQ(losses.count(), 0);
}

TEST(KeptLock, ThatAStrangerTookIsLostOnceAndTheStrangersLeaseIsNotTouched) {
    Server server;
    Raw raw{server};
    Clock::time_point taken{};
    expect_one_loss_within_an_interval(server, [&] {
        taken = Clock::now();
        raw.set("k", "thief", 20s);
    });
    const auto most = 20s - (Clock::now() - taken) + 100ms;  // the server reads its clock now and then, and rounds
    EXPECT_LE(std::chrono::milliseconds{raw.pttl("k")}, most);
    EXPECT_GT(raw.pttl("k"), 5'000);
    EXPECT_EQ(raw.get("k"), "thief");
}

TEST(KeptLock, ThatAStrangerTookForEverStaysTheStrangers) {
    Server server;
    Raw raw{server};
    expect_one_loss_within_an_interval(server, [&] { raw.set("k", "thief"); });
    EXPECT_EQ(raw.pttl("k"), -1);
    EXPECT_EQ(raw.get("k"), "thief");
}

TEST(KeptLock, ThatAStrangerTookAndLeftBetweenTwoRenewalsIsLostAllTheSame) {
    Server server;
    Raw raw{server};
    expect_one_loss_within_an_interval(server, [&] {
        raw.set("k", "stranger", 60s);
        raw.del("k");
    });
    EXPECT_FALSE(raw.exists("k"));
}

TEST(KeptLock, WhoseKeyHoldsAnotherTypeByNowEndsAtItsDeadlineAndLeavesThatAlone) {
    const Server server;
    Raw raw{server};
    Pool pool{endpoint_of(server)};
    Losses losses;
    const Lock lock{pool, "k", 500ms, losses.watchdog()};
    raw.del("k");
    raw({"LPUSH", "k", "a"});
    EXPECT_TRUE(losses.wait_for(1));
    EXPECT_FALSE(lock.owns_lock());
    EXPECT_TRUE(stays([&] { return losses.count() == 1; }, 300ms));
    EXPECT_EQ(raw.number({"LLEN", "k"}), 1);
    EXPECT_EQ(raw.pttl("k"), -1);
}

TEST(StoppedServer, EndsTheLeaseOnTimeAndOnce) {
    Server server;
    Pool pool{endpoint_of(server)};
    Losses losses;
    // A renewal that is sent to a stopped server is waited for far beyond the deadline; the loss must not wait for that.
    const Lock lock{pool, "k", 600ms, losses.watchdog(480ms)};
    const auto stop = lock.stop_token();
    server.pause();
    ASSERT_TRUE(eventually([&] { return stop.stop_requested(); }));
    EXPECT_FALSE(lock.owns_lock());
    EXPECT_TRUE(losses.wait_for(1));
    EXPECT_GE(losses.at(), lock.expires_at());
    EXPECT_TRUE(stays([&] { return losses.count() == 1; }, 1300ms));  // three times the ttl and more
    server.resume();
    Raw raw{server};
    EXPECT_TRUE(eventually([&] { return !raw.exists("k"); }));
    EXPECT_TRUE(stays([&] { return losses.count() == 1 && !raw.exists("k"); }, 500ms));
    EXPECT_FALSE(lock.owns_lock());
}

TEST(StoppedServer, EndsOwnershipAtTheVeryDeadlineAndTellsItRightThen) {
    Server server;
    Pool pool{endpoint_of(server)};
    Losses losses;
    const Lock lock{pool, "k", 1s, losses.watchdog(800ms)};
    server.pause();
    auto held_until = Clock::time_point::min();
    auto deadline = lock.expires_at();
    for (auto now = Clock::now(); losses.count() == 0; now = Clock::now()) {
        if (now > deadline + 10s) break;
        if (lock.owns_lock()) held_until = now;
        if (lock.expires_at() > Clock::time_point::min()) deadline = std::max(deadline, lock.expires_at());
        std::this_thread::sleep_for(200us);
    }
    EXPECT_EQ(losses.count(), 1);
    EXPECT_LE(held_until, deadline);
    EXPECT_GE(losses.at(), deadline);
    EXPECT_LE(losses.at(), deadline + (is_sanitized ? 600ms : 300ms));
}

TEST(StoppedServer, DoesNotHoldUpTheRenewalsOfAnotherPool) {
    Server stalled;
    const Server healthy;
    Raw raw{healthy};
    Pool one{endpoint_of(stalled)};
    Pool other{endpoint_of(healthy)};
    Losses lost, kept;
    const Lock doomed{one, "k", 500ms, lost.watchdog()};
    Lock lock{other, "k", 600ms, kept.watchdog()};
    stalled.pause();
    EXPECT_TRUE(stays([&] { return lock.owns_lock() && raw.get("k") == lock.token(); }, 2s));
    EXPECT_EQ(lost.count(), 1);
    EXPECT_EQ(kept.count(), 0);
    EXPECT_FALSE(lock.unlock());
    stalled.resume();
}

}  // namespace
