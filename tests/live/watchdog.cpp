// Locks that a Store's thread keeps alive: when it renews, what guards may do meanwhile, and how a loss is told.
#include "losses.hpp"

#include <support/process.hpp>

#include <gtest/gtest.h>
#include <live/guards.hpp>

#include <dirent.h>

#include <future>
#include <iterator>
#include <memory>
#include <set>
#include <stdexcept>
#include <thread>

namespace {

using namespace std::chrono_literals;
using namespace guards;
using hiredlock::Errc;
using hiredlock::Error;
using hiredlock::Lock;
using hiredlock::Pool;
using hiredlock::Ticket;
using hiredlock::renew::Watchdog;
using support::Child;
using support::eventually;
using support::Lines;
using support::Monitor;
using support::Raw;
using support::Server;

using Watched = Lock<Pool, Watchdog>;

std::size_t threads() {
    std::size_t count = 0;
    DIR* const tasks = ::opendir("/proc/self/task");
    while (const dirent* task = ::readdir(tasks))
        if (task->d_name[0] != '.') ++count;
    ::closedir(tasks);
    return count;
}

bool is_ready(const std::future<void>& work, std::chrono::milliseconds limit) { return work.wait_for(limit) == std::future_status::ready; }

// --- Renewing.

TEST(Watchdog, KeepsALockBeyondItsTtlAndNotBeyondItsGuard) {
    const Server server;
    Raw raw{server};
    Pool pool{endpoint_of(server)};
    Losses losses;
    {
        const Lock lock{pool, "k", 400ms, losses.watchdog()};
        EXPECT_TRUE(stays([&] { return lock.owns_lock() && raw.get("k") == lock.token(); }, 1500ms));
        EXPECT_GT(lock.remaining(), 0s);
        EXPECT_FALSE(lock.stop_token().stop_requested());
        EXPECT_NO_THROW(lock.check());
    }
    EXPECT_FALSE(raw.exists("k"));
    EXPECT_TRUE(stays([&] { return !raw.exists("k"); }, 200ms));
    EXPECT_EQ(losses.count(), 0);
}

TEST(Watchdog, RenewsAboutThreeTimesInATtlByOneCommandEach) {
    const Server server;
    Pool pool{endpoint_of(server)};
    const Lock lock{pool, "k", 600ms, Watchdog{}};
    Monitor monitor{server};
    std::this_thread::sleep_for(1800ms);
    const auto commands = monitor.commands();
    std::size_t renewals = 0;
    for (const auto& command : commands) {
        if (command.from_script() || command.name() == "EVAL") continue;  // the text of the script follows a NOSCRIPT, once
        if (is_extend(command, "k")) {
            ++renewals;
            EXPECT_EQ(ttl_of(command), 600);
            EXPECT_EQ(token_of(command), lock.token());
        } else {
            const auto& argv = command.argv;  // the thread's connection begins with these
            EXPECT_TRUE(argv[0] == "CLIENT" || argv[0] == "COMMAND") << argv[0];
        }
    }
    EXPECT_GE(renewals, 5U);
    EXPECT_LE(renewals, 15U);
    EXPECT_TRUE(lock.owns_lock());
}

TEST(Watchdog, RenewsAtItsOwnIntervalWhereOneIsSet) {
    const Server server;
    Pool pool{endpoint_of(server)};
    const Lock lock{pool, "k", 60s, Watchdog{.interval = 20ms}};
    Monitor monitor{server};
    EXPECT_TRUE(eventually([&] { return monitor.count(extends("k")) >= 10; }));
    EXPECT_GT(lock.remaining(), 50s);
}

TEST(Watchdog, RefusesAnIntervalOrAMaxHoldThatCannotWorkAndSendsNothing) {
    const Server server;
    Pool pool{endpoint_of(server)};
    Monitor monitor{server};
    const auto refuses = [&pool](const Watchdog& watchdog) {
        return thrown_by([&] { const Lock lock{pool, "k", 1s, watchdog}; }) == Errc::invalid_argument;
    };
    EXPECT_TRUE(refuses({.interval = 0ms}));
    EXPECT_TRUE(refuses({.interval = -1ms}));
    EXPECT_TRUE(refuses({.interval = 990ms}));
    EXPECT_TRUE(refuses({.interval = 1s}));
    EXPECT_TRUE(refuses({.max_hold = 0ms}));
    EXPECT_TRUE(refuses({.max_hold = -1ms}));
    EXPECT_TRUE(monitor.commands().empty());
}

TEST(Watchdog, RenewsManyLocksOverOneConnectionAndNotAllAtOnce) {
    const Server server;
    Pool pool{endpoint_of(server)};
    constexpr int locks = 200;
    std::vector<Watched> guards;
    for (int i = 0; i < locks; ++i) guards.emplace_back(pool, "k" + std::to_string(i), 3s, Watchdog{});
    Monitor monitor{server};
    std::set<std::string> keys, sources;
    std::set<std::chrono::milliseconds> moments;
    EXPECT_TRUE(eventually([&] {
        for (const auto& command : monitor.collected()) {
            const std::string& key = command.argv.at(is_script(command) ? 3 : std::min<std::size_t>(1, command.argv.size() - 1));
            if (!is_extend(command, key)) continue;
            keys.insert(key);
            sources.insert(command.source);
            moments.insert(std::chrono::duration_cast<std::chrono::milliseconds>(command.time) / 10 * 10);
        }
        return keys.size() == locks;
    }));
    EXPECT_EQ(sources.size(), 1U);
    EXPECT_GE(moments.size(), 10U);  // of the fifty that half an interval has
    for (const auto& lock : guards) EXPECT_TRUE(lock.owns_lock());
}

TEST(Watchdog, ThreadIsStartedByTheFirstGuardAndEndsWithItsPool) {
    const Server server;
    std::optional<Pool> pool{endpoint_of(server)};
    const std::size_t before = threads();
    { const Lock lock{*pool, "plain", 10s}; }
    EXPECT_EQ(threads(), before);
    {
        const Lock first{*pool, "a", 10s, Watchdog{}};
        EXPECT_EQ(threads(), before + 1);
        const Lock second{*pool, "b", 10s, Watchdog{}};
        EXPECT_EQ(threads(), before + 1);
    }
    pool.reset();
    EXPECT_TRUE(eventually([&] { return threads() == before; }));  // the kernel lists a joined thread for a moment yet
}

TEST(MaxHold, LetsALeakedGuardGo) {
    const Server server;
    Raw raw{server};
    Pool pool{endpoint_of(server)};
    Losses losses;
    const auto start = hiredlock::Clock::now();
    auto* const leaked = new Watched{pool, "k", 600ms, Watchdog{.max_hold = 800ms, .on_lost = losses.callback()}};
    EXPECT_TRUE(losses.wait_for(1));
    EXPECT_GE(losses.at() - start, 800ms);
    EXPECT_LE(losses.at() - start, 800ms + 600ms + 500ms);
    EXPECT_FALSE(leaked->owns_lock());
    EXPECT_TRUE(leaked->stop_token().stop_requested());
    EXPECT_TRUE(eventually([&] { return !raw.exists("k"); }));
    EXPECT_EQ(losses.count(), 1);
    delete leaked;  // only after it has proved harmless
    EXPECT_EQ(losses.count(), 1);
}

// --- What the guard does meanwhile.

TEST(Extend, ToALongerTtlUnderAWatchdogIsWhatLaterRenewalsUse) {
    const Server server;
    Raw raw{server};
    Pool pool{endpoint_of(server)};
    Lock lock{pool, "k", 500ms, Watchdog{}};
    EXPECT_TRUE(lock.extend(1800ms));
    EXPECT_GT(lock.remaining(), 1s);
    EXPECT_GT(raw.pttl("k"), 1000);
    Monitor monitor{server};
    EXPECT_TRUE(eventually([&] { return monitor.count(extends("k")) >= 2; }));
    for (const auto& command : monitor.commands())
        if (is_extend(command, "k")) EXPECT_EQ(ttl_of(command), 1800);
    EXPECT_TRUE(lock.owns_lock());
}

TEST(Extend, ToAShorterTtlUnderAWatchdogIsWhatLaterRenewalsUse) {
    const Server server;
    Raw raw{server};
    Pool pool{endpoint_of(server)};
    Losses losses;
    Lock lock{pool, "k", 60s, losses.watchdog()};
    EXPECT_TRUE(lock.extend(500ms));
    EXPECT_LT(lock.remaining(), 500ms);
    EXPECT_LE(raw.pttl("k"), 500);
    Monitor monitor{server};
    EXPECT_TRUE(stays([&] { return lock.owns_lock() && raw.get("k") == lock.token(); }, 1200ms));
    EXPECT_GE(monitor.count(extends("k")), 4U);
    for (const auto& command : monitor.commands())
        if (is_extend(command, "k")) EXPECT_EQ(ttl_of(command), 500);
    EXPECT_EQ(losses.count(), 0);
}

TEST(Extend, ToATtlBelowTheIntervalOfTheWatchdogIsRefused) {
    const Server server;
    Pool pool{endpoint_of(server)};
    Lock lock{pool, "k", 60s, Watchdog{.interval = 1s}};
    Monitor monitor{server};
    std::error_code error;
    EXPECT_FALSE(lock.extend(1s, error));
    EXPECT_EQ(error, Errc::invalid_argument);
    EXPECT_EQ(monitor.count(extends("k")), 0U);
    EXPECT_TRUE(lock.owns_lock());
}

TEST(Extend, ThatFindsAStrangerTellsTheLoss) {
    const Server server;
    Raw raw{server};
    Pool pool{endpoint_of(server)};
    Losses losses;
    Lock lock{pool, "k", 60s, losses.watchdog()};
    const auto stop = lock.stop_token();
    raw.set("k", "thief", 60s);
    EXPECT_FALSE(lock.extend(60s));
    EXPECT_FALSE(lock.owns_lock());
    EXPECT_TRUE(losses.wait_for(1));
    EXPECT_TRUE(stop.stop_requested());
    EXPECT_EQ(losses.count(), 1);
    EXPECT_EQ(lock.unlock(), Errc::not_held);
    EXPECT_EQ(raw.get("k"), "thief");
}

TEST(Extend, AndRenewalsInParallelKeepTheLock) {
    const Server server;
    Raw raw{server};
    Pool pool{endpoint_of(server)};
    Losses losses;
    Lock lock{pool, "k", 10s, losses.watchdog(1ms)};
    for (int i = 0; i < scaled(600); ++i) {
        const auto ttl = std::chrono::seconds{10 + i % 3 * 10};
        EXPECT_TRUE(lock.extend(ttl));
        EXPECT_GT(lock.remaining(), ttl - 5s);
    }
    EXPECT_EQ(raw.get("k"), lock.token());
    EXPECT_FALSE(lock.unlock());
    EXPECT_EQ(losses.count(), 0);
    EXPECT_FALSE(raw.exists("k"));
}

TEST(MovedGuard, StaysKept) {
    const Server server;
    Raw raw{server};
    Pool pool{endpoint_of(server)};
    Losses losses;
    std::optional<Watched> first{std::in_place, pool, "k", 500ms, losses.watchdog(5ms)};
    const std::string token{first->token()};
    const auto stop = first->stop_token();
    Watched second{std::move(*first)};
    first.reset();
    Watched third{pool, "other", 500ms, std::defer_lock, losses.watchdog(5ms)};
    third = std::move(second);
    EXPECT_TRUE(stays([&] { return third.owns_lock() && raw.get("k") == token; }, 1200ms));
    EXPECT_FALSE(stop.stop_requested());
    raw.del("k");
    EXPECT_TRUE(losses.wait_for(1));
    EXPECT_TRUE(stop.stop_requested());
    EXPECT_FALSE(third.owns_lock());
}

TEST(MovedGuard, OntoAHeldOneUnlocksThat) {
    const Server server;
    Raw raw{server};
    Pool pool{endpoint_of(server)};
    Losses losses;
    Watched a{pool, "a", 500ms, losses.watchdog()};
    a = Watched{pool, "b", 500ms, losses.watchdog()};
    EXPECT_FALSE(raw.exists("a"));
    EXPECT_TRUE(stays([&] { return a.owns_lock() && raw.exists("b"); }, 1000ms));
    EXPECT_EQ(losses.count(), 0);
}

TEST(MovedGuard, InAVectorThatGrowsUnderALiveWatchdog) {
    const Server server;
    Raw raw{server};
    Pool pool{endpoint_of(server)};
    Losses losses;
    std::vector<Watched> guards;
    for (int i = 0; i < 64; ++i) {
        guards.emplace_back(pool, "k" + std::to_string(i), 10s, losses.watchdog(1ms));
        for (std::size_t n = 1; n < guards.size(); ++n) std::swap(guards[n - 1], guards[n]);
    }
    for (const auto& guard : guards) {
        EXPECT_TRUE(guard.owns_lock());
        EXPECT_EQ(raw.get(guard.key()), guard.token());
    }
    guards.clear();
    EXPECT_EQ(raw.number({"DBSIZE"}), 0);
    EXPECT_EQ(losses.count(), 0);
}

TEST(StopToken, IsAFreshOneForEachAcquisition) {
    const Server server;
    Raw raw{server};
    Pool pool{endpoint_of(server)};
    Losses losses;
    Lock lock{pool, "k", 60s, losses.watchdog(50ms)};
    const auto first = lock.stop_token();
    EXPECT_FALSE(lock.unlock());
    EXPECT_FALSE(first.stop_requested());  // it was not lost
    lock.lock();
    const auto second = lock.stop_token();
    raw.del("k");
    EXPECT_TRUE(losses.wait_for(1));
    EXPECT_TRUE(second.stop_requested());
    EXPECT_FALSE(first.stop_requested());
    lock.lock();
    EXPECT_FALSE(lock.stop_token().stop_requested());
    EXPECT_TRUE(second.stop_requested());
    EXPECT_TRUE(lock.owns_lock());
}

TEST(Unlock, UnderAWatchdogTakesMillisecondsWhateverTheInterval) {
    const Server server;
    Pool pool{endpoint_of(server)};
    for (int i = 0; i < 20; ++i) {
        Lock lock{pool, "k", 60s, Watchdog{}};
        const auto start = std::chrono::steady_clock::now();
        EXPECT_FALSE(lock.unlock());
        EXPECT_LT(since(start), 1s);
    }
}

// --- A loss.

TEST(Loss, IsToldOnAnotherThreadWithTheKeyAndTheReason) {
    const Server server;
    Raw raw{server};
    Pool pool{endpoint_of(server)};
    std::promise<std::pair<std::thread::id, Error>> told;
    const Lock lock{pool, "nightly", 60s, Watchdog{.interval = 20ms, .on_lost = [&](const Error& error) { told.set_value({std::this_thread::get_id(), error}); }}};
    raw.set("nightly", "thief");
    auto news = told.get_future();
    ASSERT_EQ(news.wait_for(10s), std::future_status::ready);
    const auto [thread, error] = news.get();
    EXPECT_NE(thread, std::this_thread::get_id());
    EXPECT_EQ(error.code(), Errc::lost);
    const std::string words = error.what();
    EXPECT_NE(words.find("nightly"), std::string::npos) << words;
    EXPECT_NE(words.find("another's"), std::string::npos) << words;
    EXPECT_EQ(words.find(std::string{lock.token()}), std::string::npos) << words;
    EXPECT_EQ(thrown_by([&] { lock.check(); }), Errc::lost);
    EXPECT_EQ(lock.remaining(), 0s);
}

TEST(Loss, RequestsTheStopBeforeItCallsOnLostAndBothSeeThatTheLockIsGone) {
    const Server server;
    Raw raw{server};
    Pool pool{endpoint_of(server)};
    std::string order;
    std::promise<void> told;
    std::optional<Watched> lock;
    lock.emplace(pool, "k", 60s, std::defer_lock, Watchdog{.interval = 20ms, .on_lost = [&](const Error&) {
                     order += lock->owns_lock() ? "held " : "on_lost";
                     told.set_value();
                 }});
    lock->lock();
    {
        const std::stop_callback first{lock->stop_token(), [&] { order += lock->owns_lock() ? "held " : "stop "; }};
        raw.del("k");
        ASSERT_EQ(told.get_future().wait_for(10s), std::future_status::ready);
    }
    EXPECT_FALSE(lock->owns_lock());
    EXPECT_EQ(order, "stop on_lost");
}

TEST(Loss, OfAnUnlockedGuardIsNone) {
    const Server server;
    Raw raw{server};
    Pool pool{endpoint_of(server)};
    Losses losses;
    {
        Lock lock{pool, "k", 200ms, losses.watchdog()};
        const auto stop = lock.stop_token();
        raw.set("k", "thief", 60s);
        EXPECT_EQ(lock.unlock(), Errc::not_held);
        EXPECT_TRUE(stays([&] { return losses.count() == 0 && !stop.stop_requested(); }, 400ms));
    }
    EXPECT_EQ(losses.count(), 0);
    EXPECT_EQ(raw.get("k"), "thief");
}

/// A guard whose on_lost has begun and does not end before go().
struct Hanging {
    explicit Hanging(Pool& pool) {
        lock.emplace(pool, "k", 60s, std::defer_lock, Watchdog{.interval = 20ms, .on_lost = [this](const Error&) {
                         entered.set_value();
                         may_go.get_future().wait();
                         has_left = true;
                     }});
        lock->lock();
    }
    void lose(Raw& raw) {
        raw.del("k");
        EXPECT_EQ(entered.get_future().wait_for(10s), std::future_status::ready);
    }

    std::promise<void> entered{}, may_go{};
    std::atomic<bool> has_left{false};
    std::optional<Watched> lock{};
};

TEST(RunningCallback, IsWaitedForByWhateverEndsTheGuardsHold) {
    const Server server;
    Raw raw{server};
    Pool pool{endpoint_of(server)};
    const auto waits = [&](const char* name, auto end) {
        Hanging hanging{pool};
        hanging.lose(raw);
        EXPECT_FALSE(hanging.lock->owns_lock()) << name;
        bool left = false;
        std::future<void> ended = std::async(std::launch::async, [&] {
            end(hanging);
            left = hanging.has_left;
        });
        EXPECT_FALSE(is_ready(ended, 100ms)) << name;
        hanging.may_go.set_value();
        EXPECT_TRUE(is_ready(ended, 10s)) << name;
        EXPECT_TRUE(left) << name;
        if (hanging.lock) hanging.lock->unlock();
    };
    waits("unlock", [](Hanging& it) { EXPECT_EQ(it.lock->unlock(), Errc::not_held); });
    waits("destructor", [](Hanging& it) { it.lock.reset(); });
    waits("release", [](Hanging& it) { it.lock->release(); });
    waits("lock", [](Hanging& it) { it.lock->lock(); });
    waits("assignment", [&](Hanging& it) { *it.lock = Watched{pool, "other", 60s, std::defer_lock, Watchdog{}}; });
}

TEST(RunningCallback, MayUnlockItsOwnGuard) {
    const Server server;
    Raw raw{server};
    Pool pool{endpoint_of(server)};
    std::optional<Watched> lock;
    std::promise<std::error_code> unlocked;
    lock.emplace(pool, "k", 60s, std::defer_lock, Watchdog{.interval = 20ms, .on_lost = [&](const Error&) { unlocked.set_value(lock->unlock()); }});
    lock->lock();
    raw.set("k", "thief");
    auto outcome = unlocked.get_future();
    ASSERT_EQ(outcome.wait_for(10s), std::future_status::ready);
    EXPECT_EQ(outcome.get(), Errc::not_held);
    EXPECT_EQ(lock->unlock(), Errc::not_held);
    EXPECT_EQ(raw.get("k"), "thief");
}

TEST(RunningCallback, MayDestroyItsOwnGuard) {
    const Server server;
    Raw raw{server};
    Pool pool{endpoint_of(server)};
    std::optional<Watched> lock;
    std::promise<void> destroyed;
    lock.emplace(pool, "k", 60s, std::defer_lock, Watchdog{.interval = 20ms, .on_lost = [&](const Error&) {
                     lock.reset();
                     destroyed.set_value();
                 }});
    lock->lock();
    raw.set("k", "thief");
    ASSERT_EQ(destroyed.get_future().wait_for(10s), std::future_status::ready);
    EXPECT_FALSE(lock);
    EXPECT_EQ(raw.get("k"), "thief");
}

TEST(RunningCallback, MayDestroyAnotherGuardOfTheSamePool) {
    const Server server;
    Raw raw{server};
    Pool pool{endpoint_of(server)};
    Losses losses;
    std::optional<Watched> other{std::in_place, pool, "other", 60s, losses.watchdog(1ms)};
    std::promise<void> destroyed;
    Lock lock{pool, "k", 60s, Watchdog{.interval = 20ms, .on_lost = [&](const Error&) {
                  other.reset();
                  destroyed.set_value();
              }}};
    raw.del("k");
    ASSERT_EQ(destroyed.get_future().wait_for(10s), std::future_status::ready);
    EXPECT_FALSE(raw.exists("other"));
    EXPECT_EQ(losses.count(), 0);
}

TEST(RunningCallback, OfAStopMayDestroyTheGuard) {
    const Server server;
    Raw raw{server};
    Pool pool{endpoint_of(server)};
    Losses losses;
    std::optional<Watched> lock{std::in_place, pool, "k", 60s, losses.watchdog(20ms)};
    const std::stop_callback destroys{lock->stop_token(), [&] { lock.reset(); }};
    raw.del("k");
    EXPECT_TRUE(losses.wait_for(1));
    EXPECT_FALSE(lock);
}

TEST(RunningCallback, MayAcquireAgain) {
    const Server server;
    Raw raw{server};
    Pool pool{endpoint_of(server)};
    std::optional<Watched> lock;
    std::promise<bool> again;
    lock.emplace(pool, "k", 500ms, std::defer_lock, Watchdog{.interval = 20ms, .on_lost = [&](const Error&) { again.set_value(lock->try_lock()); }});
    lock->lock();
    raw.del("k");
    auto outcome = again.get_future();
    ASSERT_EQ(outcome.wait_for(10s), std::future_status::ready);
    EXPECT_TRUE(outcome.get());
    EXPECT_TRUE(stays([&] { return lock->owns_lock() && raw.get("k") == lock->token(); }, 1200ms));
}

TEST(RunningCallback, ThatThrowsHarmsNeitherTheProcessNorItsNeighbours) {
    const Server server;
    Raw raw{server};
    Pool pool{endpoint_of(server)};
    Losses losses, kept;
    const Lock stays_kept{pool, "kept", 500ms, kept.watchdog()};
    const auto throws = [&](auto what) {
        return Watchdog{.interval = 50ms, .on_lost = [&losses, what](const Error& error) {
                            losses.note(error);
                            throw what;
                        }};
    };
    const Lock first{pool, "first", 60s, throws(std::runtime_error{"from on_lost"})};
    const Lock second{pool, "second", 60s, throws(42)};
    const Lock third{pool, "third", 60s, losses.watchdog(50ms)};
    std::atomic<int> stopped{0};
    {
        const auto count = [&] { ++stopped; };
        const std::stop_callback a{first.stop_token(), count}, b{second.stop_token(), count}, c{third.stop_token(), count};
        raw({"DEL", "first", "second", "third"});
        EXPECT_TRUE(losses.wait_for(3));
    }
    EXPECT_EQ(stopped, 3);
    EXPECT_TRUE(stays([&] { return stays_kept.owns_lock() && raw.get("kept") == stays_kept.token(); }, 1200ms));
    EXPECT_EQ(losses.count(), 3);
    EXPECT_EQ(kept.count(), 0);
}

// --- Other processes.

TEST(Watchdog, OfAProcessThatIsKilledDoesNotOutliveIt) {
    const Server server;
    Raw raw{server};
    auto holder = Child::fork([&](Lines& parent) {
        Pool pool{endpoint_of(server)};
        const Lock lock{pool, "k", 700ms, Watchdog{}};
        parent.write_line(std::string{lock.token()});
        return parent.read_line(60s) ? 0 : 1;
    });
    const auto token = holder.read_line();
    ASSERT_TRUE(token);
    EXPECT_TRUE(stays([&] { return raw.get("k") == token; }, 1500ms));  // it is alive, and renews
    holder.kill();
    Pool pool{endpoint_of(server)};
    const auto start = std::chrono::steady_clock::now();
    const Lock next{pool, "k", 60s, 10s};
    EXPECT_TRUE(next.owns_lock());
    EXPECT_LT(since(start), 700ms + 1s);
}

TEST(Watchdog, KeepsALockThatAnotherProcessHandedOver) {
    const Server server;
    Raw raw{server};
    auto first = Child::fork([&](Lines& parent) {
        Pool pool{endpoint_of(server)};
        Lock lock{pool, "k", 3s, Watchdog{}};
        const Ticket ticket = lock.release();
        parent.write_line(ticket.token);
        return 0;
    });
    const auto token = first.read_line();
    ASSERT_TRUE(token);
    ASSERT_EQ(first.wait(), 0);
    Pool pool{endpoint_of(server)};
    Losses losses;
    {
        const Lock adopted{pool, Ticket{.key = "k", .token = *token}, 500ms, std::adopt_lock, losses.watchdog()};
        ASSERT_TRUE(adopted.owns_lock());
        EXPECT_TRUE(stays([&] { return adopted.owns_lock() && raw.get("k") == token; }, 1500ms));
    }
    EXPECT_FALSE(raw.exists("k"));
    EXPECT_EQ(losses.count(), 0);
}

TEST(Watchdog, NoLongerRenewsWhatWasReleasedAsATicket) {
    const Server server;
    Raw raw{server};
    Pool pool{endpoint_of(server)};
    Losses losses;
    Lock lock{pool, "k", 400ms, losses.watchdog(10ms)};
    const Ticket ticket = lock.release();
    EXPECT_EQ(raw.get("k"), ticket.token);
    EXPECT_TRUE(eventually([&] { return !raw.exists("k"); }, 400ms + 2s));
    EXPECT_EQ(losses.count(), 0);
}

TEST(Fork, LeavesTheLockAndItsRenewalWithTheParent) {
    if (!guards::follows_threads_after_fork) GTEST_SKIP() << "ThreadSanitizer cannot follow it";
    const Server server;
    Raw raw{server};
    Pool pool{endpoint_of(server)};
    Losses losses;
    Lock lock{pool, "k", 700ms, losses.watchdog()};
    const int status = support::run_in_child([&] {
        if (lock.owns_lock()) return 1;
        if (lock.unlock() != Errc::not_held) return 2;
        Losses own;
        Lock in_child{pool, "child", 300ms, own.watchdog()};
        if (!stays([&] { return in_child.owns_lock(); }, 900ms)) return 3;
        if (in_child.unlock()) return 4;
        if (own.count() != 0) return 5;
        Watched moved{std::move(lock)};
        return moved.owns_lock() ? 6 : 0;
    });
    EXPECT_EQ(status, 0);
    EXPECT_TRUE(lock.owns_lock());
    EXPECT_EQ(raw.get("k"), lock.token());
    EXPECT_FALSE(raw.exists("child"));
    EXPECT_FALSE(lock.unlock());
    EXPECT_EQ(losses.count(), 0);
}

std::unique_ptr<Pool> static_pool;

TEST(Fork, OfAProgramWithAStaticPoolAndALiveWatchdogExits) {
    if (!guards::follows_threads_after_fork) GTEST_SKIP() << "ThreadSanitizer cannot follow it";
    const Server server;
    Raw raw{server};
    static_pool = std::make_unique<Pool>(endpoint_of(server));
    {
        const Lock lock{*static_pool, "k", 60s, Watchdog{.interval = 1ms}};
        EXPECT_EQ(support::run_in_child([] { return 0; }, 30s, support::Leave::by_exit), 0);
        EXPECT_EQ(support::run_in_child(
                      [] {
                          static std::optional<Watched> held;
                          held.emplace(*static_pool, "child", 60s, Watchdog{.interval = 1ms});
                          return held->owns_lock() ? 0 : 1;
                      },
                      30s, support::Leave::by_exit),
                  0);
        EXPECT_TRUE(lock.owns_lock());
        EXPECT_EQ(raw.get("k"), lock.token());
        EXPECT_FALSE(raw.exists("child"));
    }
    static_pool.reset();
}

}  // namespace
