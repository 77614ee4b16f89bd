// What is due for locks that are kept alive: renewals and losses. A pure schedule (now -> what is due, when next); a Store's thread acts on it.
#pragma once

#include <algorithm>
#include <chrono>
#include <concepts>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include <hiredlock/lease.hpp>
#include <hiredlock/store.hpp>

namespace hiredlock::detail {

/// One guard's lock under a watchdog, shared by the guard and the Store's thread, so that the guard may move. Except where it says otherwise a
/// member belongs to the guard until watch(), and is then guarded by the watching thread's mutex until unwatch() has returned.
struct Renewal {
    Lease lease;  ///< read from any thread

    std::string key;
    std::string token;
    std::chrono::milliseconds ttl{};
    Clock::duration interval{};
    Clock::duration spacing{};  ///< the interval, or less where the lease is worth less than the ttl
    Clock::time_point last_renewal = Clock::time_point::max();  ///< none is begun from here on (max_hold)
    Acknowledgement acknowledged;
    std::function<void(const Error&)> on_lost;

    bool watched = false;
    bool paused = false;     ///< the guard itself extends just now
    bool in_round = false;   ///< taken up by the thread and not settled yet
    bool in_flight = false;  ///< of that, sent
    bool calling = false;    ///< on_lost and stop callbacks are running
    std::uint64_t acquisition = 0;
    Clock::time_point due{};   ///< of the next renewal
    Clock::time_point wake{};  ///< where the Schedule has it
    std::string lost_because;

    std::stop_token stop_token() const {
        const std::scoped_lock lock{stop_mutex_};
        return stop_.get_token();
    }
    std::stop_source stop_source() const {
        const std::scoped_lock lock{stop_mutex_};
        return stop_;
    }
    /// For a new acquisition: a token that was stopped stays stopped.
    void renew_stop_source() {
        const std::scoped_lock lock{stop_mutex_};
        stop_ = std::stop_source{};
    }

private:
    mutable std::mutex stop_mutex_;
    std::stop_source stop_;
};

/// When to renew. `random` is 64 random bits: many locks that were granted together must not renew together.
namespace pace {

constexpr Clock::duration share(Clock::duration whole, std::uint64_t random) noexcept { return whole / 1024 * static_cast<long>(random % 1024); }

constexpr Clock::time_point first(Clock::time_point granted, Clock::duration interval, std::uint64_t random) noexcept {
    return after(granted, interval / 2 + share(interval / 2, random));
}
constexpr Clock::time_point after_success(Clock::time_point sent, Clock::duration interval, std::uint64_t random) noexcept {
    return after(sent, interval - share(interval / 8, random));
}
/// Sooner than in good times, and never without a pause.
constexpr Clock::time_point after_failure(Clock::time_point now, Clock::duration interval) noexcept {
    return after(now, std::clamp<Clock::duration>(interval / 8, std::chrono::milliseconds{1}, std::chrono::seconds{1}));
}

}  // namespace pace

/// Locks by the time at which something has to be done for them.
class Schedule {
public:
    using Entry = std::shared_ptr<Renewal>;

    void add(Entry entry) {
        remove(entry);  // it may be here still, put back while others were told of their losses
        entry->wake = wake_of(*entry);
        entries_.insert({entry->wake, std::move(entry)});
    }
    void remove(const Entry& entry) { entries_.erase({entry->wake, entry}); }
    void changed(const Entry& entry) {
        remove(entry);
        add(entry);
    }

    Clock::time_point next() const noexcept { return entries_.empty() ? Clock::time_point::max() : entries_.begin()->first; }

    /// How long all of them may be held up, `most` at most: until the first one is half-way from its time to the end of its lease.
    Clock::time_point may_wait(Clock::time_point now, Clock::time_point most) const noexcept {
        for (auto at = entries_.begin(); at != entries_.end() && at->first < most; ++at) most = std::min(most, half_way(std::max(at->first, now), *at->second));
        return most;
    }
    static Clock::time_point half_way(Clock::time_point from, const Renewal& renewal) noexcept {
        const auto end = renewal.lease.end();
        return end <= from ? from : from + (end - from) / 2;
    }

    /// Those whose lease has ended. They are taken out.
    std::vector<Entry> take_losses(Clock::time_point now) {
        std::vector<Entry> losses;
        for (auto at = entries_.begin(); at != entries_.end() && at->first <= now;) {
            const bool lost = !at->second->lease.holds(now);
            if (lost) losses.push_back(at->second);
            at = lost ? entries_.erase(at) : std::next(at);
        }
        return losses;
    }

    /// Those that are to be renewed now, `most` at most. They stay until changed().
    std::vector<Entry> due_renewals(Clock::time_point now, std::size_t most) const {
        std::vector<Entry> due;
        for (auto at = entries_.begin(); at != entries_.end() && at->first <= now && due.size() < most; ++at)
            if (at->second->lease.holds(now)) due.push_back(at->second);
        return due;
    }

private:
    /// The time at which something has to be done: a renewal, unless one is on its way or none may be begun; at the latest the loss.
    static Clock::time_point wake_of(const Renewal& renewal) noexcept {
        const bool renews = !renewal.paused && !renewal.in_round && renewal.due < renewal.last_renewal;
        return renews ? std::min(renewal.due, renewal.lease.end()) : renewal.lease.end();
    }

    std::set<std::pair<Clock::time_point, Entry>> entries_;
};

/// What a guard with renew::Watchdog needs of its Store.
template <class S>
concept WatchingStore = LockStore<S> && requires(S& store, const std::shared_ptr<Renewal>& renewal, Clock::time_point until, const Outcome& outcome) {
    store.watchdog().watch(renewal);
    store.watchdog().unwatch(renewal);
    { store.watchdog().pause(renewal, until) } -> std::same_as<bool>;
    { store.watchdog().resume(renewal, std::chrono::milliseconds{}, Clock::duration{}, outcome) } -> std::same_as<bool>;
    store.watchdog().lose(renewal, std::string{});
};

}  // namespace hiredlock::detail
