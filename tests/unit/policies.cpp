// Policies: in any order, by value, default-constructed where they are named and not passed; and what each asks of the Store.
#include "faulty_store.hpp"

#include <hiredlock/lock.hpp>

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <vector>

using namespace std::chrono_literals;
using hiredlock::Errc;
using hiredlock::Lock;
namespace fence = hiredlock::fence;
namespace renew = hiredlock::renew;
namespace replication = hiredlock::replication;
namespace retry = hiredlock::retry;
namespace unlocking = hiredlock::unlocking;

namespace {

/// A Store with a watchdog that only notes what it is told.
class WatchedStore : public FaultyStore {
public:
    using Entry = std::shared_ptr<hiredlock::detail::Renewal>;
    struct Watchdog {
        std::vector<Entry> watched;
        int unwatched = 0;
        bool has_threads = true;

        void watch(const Entry& entry) {
            if (!has_threads) throw std::system_error{std::make_error_code(std::errc::resource_unavailable_try_again)};
            watched.push_back(entry);
        }
        void unwatch(const Entry& entry) noexcept {
            ++unwatched;
            entry->lease.clear();
        }
        bool pause(const Entry&, MapStore::Time) { return true; }
        bool resume(const Entry& entry, std::chrono::milliseconds ttl, hiredlock::Clock::duration, const hiredlock::Outcome& outcome) {
            if (outcome.answer == hiredlock::Answer::yes) entry->lease.granted(outcome.sent, ttl);
            return true;
        }
        void lose(const Entry& entry, const std::string&) { entry->lease.clear(); }
    };

    Watchdog& watchdog() { return watchdog_; }

private:
    Watchdog watchdog_;
};
static_assert(hiredlock::detail::WatchingStore<WatchedStore>);
static_assert(!hiredlock::detail::WatchingStore<FaultyStore>);

template <class L>
concept HasFencing = requires(const L& lock) { lock.fencing_token(); };
template <class L>
concept HasStop = requires(const L& lock) { lock.stop_token(); };

static_assert(!HasFencing<Lock<FaultyStore>> && HasFencing<Lock<FaultyStore, fence::Counter>>);
static_assert(!HasFencing<Lock<FaultyStore, fence::None>>);
static_assert(!HasStop<Lock<WatchedStore>> && HasStop<Lock<WatchedStore, renew::Watchdog>>);

Errc refusal(auto act) {
    try {
        act();
    } catch (const hiredlock::Error& e) {
        return static_cast<Errc>(e.code().value());
    }
    return Errc{};
}

TEST(Policies, AreDeducedInAnyOrderWithEveryMode) {
    FaultyStore store;
    const Lock a{store, "a", 10s, fence::Counter{}, retry::Fixed{}, unlocking::Deferred{}};
    const Lock b{store, "b", 10s, std::try_to_lock, unlocking::Deferred{}, retry::Fixed{}, fence::Counter{}, replication::Wait{}};
    const Lock c{store, "c", 10s, std::defer_lock, replication::WaitAof{}, fence::None{}, renew::Manual{}};
    const Lock d{store, "d", 10s, 2s, retry::Backoff{}, fence::Counter{}};
    const Lock e{store, "e", 10s, store.now() + 2s, fence::Counter{}, retry::Backoff{}};
    const Lock f{store, hiredlock::Ticket{.key = "f", .token = "t"}, 10s, std::adopt_lock, fence::Counter{}};
    static_assert(std::is_same_v<decltype(a), const Lock<FaultyStore, fence::Counter, retry::Fixed, unlocking::Deferred>>);
    EXPECT_TRUE(a && b && d && e);
    EXPECT_FALSE(c || f);
}

TEST(Policies, OneThatIsNamedAndNotPassedIsDefaultConstructed) {
    FaultyStore store;
    Lock<FaultyStore, fence::Counter, retry::Fixed> lock{store, "k", 10s, std::defer_lock};
    lock.lock();
    EXPECT_EQ(lock.fencing_token(), 1U);
    Lock<FaultyStore, retry::Fixed, fence::Counter> half{store, "k", 10s, std::defer_lock, retry::Fixed{.interval = 1s}};
    EXPECT_FALSE(half.try_lock_for(5s));
    EXPECT_EQ(store.slept_until.size(), 5U);
}

TEST(Policies, ValuesThatCannotWorkAreRefusedBeforeAnythingIsSent) {
    WatchedStore store;
    const auto refused = [&](auto policy) { return refusal([&] { Lock{store, "k", 10s, policy}; }) == Errc::invalid_argument; };
    EXPECT_TRUE(refused(retry::Backoff{.min = 0us}));
    EXPECT_TRUE(refused(retry::Backoff{.factor = 0.5}));
    EXPECT_TRUE(refused(retry::Fixed{.interval = 0us}));
    EXPECT_TRUE(refused(replication::Wait{.replicas = 0}));
    EXPECT_TRUE(refused(replication::Wait{.timeout = 0ms}));
    EXPECT_TRUE(refused(replication::WaitAof{.local = 0}));
    EXPECT_TRUE(refused(renew::Watchdog{.interval = 0ms}));
    EXPECT_TRUE(refused(renew::Watchdog{.interval = 10s}));
    EXPECT_TRUE(refused(renew::Watchdog{.interval = std::chrono::milliseconds::max()}));
    EXPECT_TRUE(refused(renew::Watchdog{.max_hold = 0ms}));
    EXPECT_TRUE(refused(fence::Counter{.key = "k"})) << "the lock's own key";
    EXPECT_TRUE(store.acquired.empty());
}

TEST(Policies, FencingNumbersGrowWithEveryGrantAndStayAfterUnlock) {
    FaultyStore store;
    std::uint64_t last = 0;
    Lock lock{store, "k", 10s, std::defer_lock, fence::Counter{}};
    EXPECT_EQ(lock.fencing_token(), 0U);
    for (int i = 0; i < 10; ++i) {
        lock.lock();
        EXPECT_GT(lock.fencing_token(), last);
        last = lock.fencing_token();
        EXPECT_FALSE(lock.unlock());
        EXPECT_EQ(lock.fencing_token(), last);
    }
    EXPECT_EQ(store.acquired.back().fence_key, "{k}:fence");
    const Lock named{store, "k", 10s, fence::Counter{.key = "numbers"}};
    EXPECT_EQ(store.acquired.back().fence_key, "numbers");
}

TEST(Policies, AFencingNumberTravelsWithTheTicket) {
    FaultyStore store;
    { const Lock before{store, "k", 10s, fence::Counter{}}; }
    Lock lock{store, "k", 10s, fence::Counter{}};
    const hiredlock::Ticket ticket = lock.release();
    EXPECT_EQ(ticket.fencing, 2U);
    const Lock adopted{store, ticket, 10s, std::adopt_lock, fence::Counter{}};
    EXPECT_EQ(adopted.fencing_token(), 2U);
}

TEST(Policies, WithoutFencingNoNumberIsTaken) {
    FaultyStore store;
    const Lock lock{store, "k", 10s};
    EXPECT_EQ(store.acquired.back().fence_key, "");
}

TEST(Policies, TooFewReplicasMeanThatTheLockIsNotTaken) {
    FaultyStore store;
    store.acquires = {Fate::refused(Errc::not_replicated)};
    Lock lock{store, "k", 10s, std::defer_lock, replication::Wait{.replicas = 2, .timeout = 100ms}};
    std::error_code error;
    EXPECT_FALSE(lock.try_lock_for(1h, error));
    EXPECT_EQ(error, Errc::not_replicated);
    EXPECT_EQ(store.acquired.size(), 1U);
}

TEST(Policies, AWatchedLockIsWatchedFromItsGrantToItsUnlock) {
    WatchedStore store;
    Lock lock{store, "k", 9s, renew::Watchdog{}};
    ASSERT_EQ(store.watchdog().watched.size(), 1U);
    const auto& entry = *store.watchdog().watched.front();
    EXPECT_EQ(entry.key, "k");
    EXPECT_EQ(entry.token, lock.token());
    EXPECT_EQ(entry.ttl, 9s);
    EXPECT_EQ(entry.interval, 3s);
    EXPECT_EQ(entry.last_renewal, MapStore::Time::max());
    const int before = store.watchdog().unwatched;
    store.under_way = [&] { EXPECT_GT(store.watchdog().unwatched, before) << "not renewed any more when the release is sent"; };
    EXPECT_FALSE(lock.unlock());
}

TEST(Policies, AnyMaximumOfHoldingMayBeAsked) {
    WatchedStore store;
    const auto sent = store.now();
    const Lock some{store, "some", 9s, renew::Watchdog{.max_hold = 60s}};
    EXPECT_EQ(store.watchdog().watched.back()->last_renewal, sent + 60s);
    const Lock most{store, "most", 9s, renew::Watchdog{.max_hold = std::chrono::milliseconds::max()}};
    EXPECT_GT(store.watchdog().watched.back()->last_renewal, sent + 1000h) << "not a time long past";
}

TEST(Policies, ALockThatCannotBeWatchedIsGivenBack) {
    WatchedStore store;
    store.watchdog().has_threads = false;
    Lock lock{store, "k", 9s, std::defer_lock, renew::Watchdog{}};
    std::error_code error;
    EXPECT_FALSE(lock.try_lock(error));
    EXPECT_EQ(error, std::errc::resource_unavailable_try_again);
    EXPECT_EQ(store.map.value("k"), "");
    EXPECT_FALSE(lock.owns_lock());
}

TEST(Policies, EachAcquisitionHasAFreshStopToken) {
    WatchedStore store;
    Lock lock{store, "k", 9s, renew::Watchdog{}};
    const auto first = lock.stop_token();
    store.watchdog().watched.back()->stop_source().request_stop();
    EXPECT_TRUE(first.stop_requested());
    EXPECT_FALSE(lock.unlock());
    lock.lock();
    EXPECT_FALSE(lock.stop_token().stop_requested());
    EXPECT_TRUE(lock.stop_token().stop_possible());
    EXPECT_TRUE(first.stop_requested());
}

TEST(Policies, AWatchedLockMovesWithItsLease) {
    WatchedStore store;
    Lock lock{store, "k", 9s, renew::Watchdog{}};
    auto moved = std::move(lock);
    EXPECT_TRUE(moved);
    EXPECT_FALSE(lock);
    EXPECT_FALSE(lock.stop_token().stop_possible());
    store.watchdog().watched.back()->lease.clear();
    EXPECT_FALSE(moved);
}

TEST(Policies, AnExtendOfAWatchedLockMustLeaveRoomForItsInterval) {
    WatchedStore store;
    Lock lock{store, "k", 9s, renew::Watchdog{.interval = 3s}};
    std::error_code error;
    EXPECT_FALSE(lock.extend(3s, error));
    EXPECT_EQ(error, Errc::invalid_argument);
    EXPECT_TRUE(lock);
    EXPECT_TRUE(lock.extend(60s, error));
    EXPECT_FALSE(error);
}

}  // namespace
