// Whether a lock is kept alive while its guard lives.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>

#include <hiredlock/error.hpp>
#include <hiredlock/lease.hpp>
#include <hiredlock/policy.hpp>

namespace hiredlock::renew {

/// The lock ends with its ttl unless extend() is called.
struct Manual {
    using kind = policy::Renew;
};

/// The Store's thread extends the lock until unlock(), so that the ttl bounds only how long a dead holder keeps it. A failed renewal is repeated,
/// faster, until the lease really ends. The moment the lock is lost, by the server's word or by the end of the lease, owns_lock() is
/// false, stop_token() is stopped and on_lost is called, once.
struct Watchdog {
    std::optional<std::chrono::milliseconds> interval{};  ///< from one renewal to the next; unset: a third of the ttl
    std::optional<std::chrono::milliseconds> max_hold{};  ///< no renewal this long after the grant, so that a leaked guard lets go at last
    /// Called with Errc::lost on the Store's thread, which renews the other locks too: be brief. It may unlock or destroy the guard, must not
    /// destroy the Store, and what it throws is dropped. unlock() and the guard's destructor on another thread wait until it has returned.
    std::function<void(const Error&)> on_lost{};

    using kind = policy::Renew;

    const char* problem(std::chrono::milliseconds ttl) const noexcept {
        if (interval && (*interval <= interval->zero() || detail::clamped(*interval) >= ttl - detail::drift(ttl)))
            return "renew::Watchdog needs an interval above 0 and shorter than the lease (the ttl less 1 % and 2 ms)";
        if (max_hold && *max_hold <= max_hold->zero()) return "renew::Watchdog needs a max_hold above 0";
        return nullptr;
    }

    Clock::duration interval_for(std::chrono::milliseconds ttl) const noexcept {
        return interval ? Clock::duration{*interval} : Clock::duration{ttl} / 3;
    }
};

}  // namespace hiredlock::renew
