// Time and the lease: the clock that counts a suspended machine's sleep, how long a grant may be believed, and what can be handed on.
#pragma once

#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <limits>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>

#include <hiredlock/error.hpp>

namespace hiredlock {

/// Monotonic, and going on while the machine is suspended (CLOCK_BOOTTIME on Linux): a laptop that slept must not believe that it still holds
/// a lock. Setting the wall clock does not move it.
struct Clock {
    using duration = std::chrono::nanoseconds;
    using rep = duration::rep;
    using period = duration::period;
    using time_point = std::chrono::time_point<Clock>;
    static constexpr bool is_steady = true;

    static time_point now() noexcept {
#if defined(__linux__)
        constexpr clockid_t id = CLOCK_BOOTTIME;
#else
        constexpr clockid_t id = CLOCK_MONOTONIC;  // on macOS this one counts sleep
#endif
        timespec t{};
        ::clock_gettime(id, &t);
        return time_point{std::chrono::seconds{t.tv_sec} + std::chrono::nanoseconds{t.tv_nsec}};
    }
};

/// A lock that its guard let go while the server still keeps it: whoever has this, in any process, can adopt it.
struct Ticket {
    std::string key;
    std::string token;
    std::uint64_t fencing = 0;  ///< the fencing number of the grant, 0 where none was asked for
};

namespace detail {

inline constexpr std::chrono::milliseconds shortest_ttl{5};                        // a shorter one is eaten by the drift allowance
inline constexpr std::chrono::milliseconds longest_ttl = std::chrono::hours{24 * 3650};  // ten years

/// Any duration in the clock's unit; what does not fit becomes the largest or the smallest, NaN the smallest.
template <class Rep, class Period>
constexpr Clock::duration clamped(std::chrono::duration<Rep, Period> d) noexcept {
    using Wide = std::chrono::duration<long double, std::nano>;
    constexpr long double edge = 9.2e18L;  // a little inside of what 64 bits hold
    const long double wide = std::chrono::duration_cast<Wide>(d).count();
    if (!(wide > -edge)) return Clock::duration::min();
    if (wide > edge) return Clock::duration::max();
    return std::chrono::duration_cast<Clock::duration>(d);
}

constexpr Clock::time_point after(Clock::time_point start, Clock::duration d) noexcept {
    if (d > Clock::duration::zero() && start > Clock::time_point::max() - d) return Clock::time_point::max();
    if (d < Clock::duration::zero() && start < Clock::time_point::min() - d) return Clock::time_point::min();
    return start + d;
}

/// A ttl as the server gets it, rounded up to whole milliseconds; nothing where it is below 5 ms or absurd (over ten years).
template <class Rep, class Period>
constexpr std::optional<std::chrono::milliseconds> whole_ttl(std::chrono::duration<Rep, Period> ttl) noexcept {
    const Clock::duration exact = clamped(ttl);
    if (exact < shortest_ttl || exact > longest_ttl) return std::nullopt;
    return std::chrono::ceil<std::chrono::milliseconds>(exact);
}

inline constexpr const char* ttl_rule = "the ttl must be at least 5 ms and at most ten years";

/// How long before its ttl a lease is given up, for clocks that do not run alike: 1 % and 2 ms, as the Redlock description proposes.
constexpr Clock::duration drift(std::chrono::milliseconds ttl) noexcept {
    return Clock::duration{ttl} / 100 + std::chrono::milliseconds{2};
}

/// Until when a grant may be believed: counted from before its command was sent, for the server starts counting no earlier.
constexpr Clock::time_point lease_end(Clock::time_point sent, std::chrono::milliseconds ttl) noexcept {
    return after(sent, Clock::duration{ttl} - drift(ttl));
}

/// Sleeps on the real clock until `until`, or until a stop is requested.
inline void sleep_until(Clock::time_point until, const std::stop_token& stop) {
    std::mutex mutex;
    std::condition_variable_any woken;
    std::unique_lock lock{mutex};
    // In slices, for a steady clock may stand still while the machine is suspended, and ours does not.
    for (auto now = Clock::now(); now < until && !stop.stop_requested(); now = Clock::now())
        woken.wait_for(lock, stop, std::min<Clock::duration>(until - now, std::chrono::seconds{1}), [] { return false; });
}

/// How long a lock that is held may be believed to be ours. One thread at a time changes it; any may read it.
class Lease {
public:
    Lease() = default;
    Lease(const Lease& other) noexcept : end_(other.end_.load()), doubtful_(other.doubtful_) {}
    Lease& operator=(const Lease& other) noexcept {
        end_ = other.end_.load();
        doubtful_ = other.doubtful_;
        return *this;
    }

    bool holds(Clock::time_point now) const noexcept { return now < end(); }
    Clock::time_point end() const noexcept { return Clock::time_point{Clock::duration{end_.load()}}; }

    void granted(Clock::time_point sent, std::chrono::milliseconds ttl) noexcept {
        doubtful_ = longest_ttl;
        set(lease_end(sent, ttl));
    }

    /// Before an extend is sent: the server may execute it and its answer be lost, so from here on the shorter of both counts.
    void extending(Clock::time_point now, std::chrono::milliseconds ttl) noexcept { set(std::min(end(), lease_end(now, ttl))); }

    /// A yes that comes after the deadline brings nothing back: somebody may have seen that it was over.
    bool extended(Clock::time_point now, Clock::time_point sent, std::chrono::milliseconds ttl) noexcept {
        if (!holds(now)) return false;
        set(lease_end(sent, std::min(ttl, doubtful_)));
        return true;
    }

    /// An extend was not answered. It may be executed later yet, after another one, and leave its own ttl: no later yes is worth more.
    void unanswered(std::chrono::milliseconds ttl) noexcept { doubtful_ = std::min(doubtful_, ttl); }

    void clear() noexcept { end_ = nothing; }

private:
    static constexpr Clock::rep nothing = std::numeric_limits<Clock::rep>::min();

    void set(Clock::time_point end) noexcept { end_ = end.time_since_epoch().count(); }

    std::atomic<Clock::rep> end_{nothing};
    std::chrono::milliseconds doubtful_ = longest_ttl;
};

}  // namespace detail

}  // namespace hiredlock
