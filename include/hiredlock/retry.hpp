// How long a waiting guard pauses before it asks again. Pure functions of how often it has asked and of random bits.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>

#include <hiredlock/policy.hpp>

namespace hiredlock::retry {

/// Asks after a random pause between 0 and a bound that grows from `min` by `factor` up to `max`: exponential backoff with full jitter, so
/// that equals do not meet again and again.
struct Backoff {
    std::chrono::microseconds min{std::chrono::milliseconds{4}};    ///< the first bound; above 0
    std::chrono::microseconds max{std::chrono::milliseconds{128}};  ///< the last bound; a release is noticed this late at worst
    double factor = 2;                                              ///< at least 1
    std::chrono::milliseconds outage{10'000};  ///< lock() without a limit gives up once the Store has failed this long without a break

    using kind = policy::Retry;

    const char* problem() const noexcept {
        if (min <= min.zero() || max < min || max > std::chrono::hours{24}) return "retry::Backoff needs 0 < min <= max <= 24 h";
        if (!(factor >= 1) || factor > 1000) return "retry::Backoff needs a factor from 1 to 1000";
        if (outage < outage.zero()) return "retry::Backoff needs an outage of 0 or more";
        return nullptr;
    }

    std::chrono::nanoseconds pause(unsigned asked, std::uint64_t random) const noexcept {
        const double grown = static_cast<double>(min.count()) * std::pow(factor, std::max(asked, 1U) - 1);
        const double bound = std::min(grown, static_cast<double>(max.count()));
        constexpr double scale = 1.0 / 18446744073709551616.0;  // 2^-64
        return std::chrono::nanoseconds{static_cast<std::int64_t>(bound * 1000.0 * (static_cast<double>(random) * scale))};
    }
};

/// Asks at a fixed interval; on a Redlock whose votes are split among several who ask, after a random time between that and its double.
struct Fixed {
    std::chrono::microseconds interval{std::chrono::milliseconds{100}};  ///< above 0
    std::chrono::milliseconds outage{10'000};                            ///< as in Backoff

    using kind = policy::Retry;

    const char* problem() const noexcept {
        if (interval <= interval.zero() || interval > std::chrono::hours{24}) return "retry::Fixed needs 0 < interval <= 24 h";
        if (outage < outage.zero()) return "retry::Fixed needs an outage of 0 or more";
        return nullptr;
    }

    std::chrono::nanoseconds pause(unsigned, std::uint64_t) const noexcept { return interval; }
};

/// Is told by the server when the lock goes, whoever deleted it, and asks then. The default where the Store can notify (a Pool, a Redlock); where the
/// server cannot (before Redis 6, or denied by ACL), it asks as `otherwise` says. On a Redlock it is told by the first server, and asks as `otherwise`
/// says besides: a lock may go from a majority without that one.
///
/// Threads of one Store that wait for one key form a line, first come first served; only its head talks to the server. It also asks when the other's
/// ttl ends, and each `poll` in case a message was lost.
struct OnRelease {
    std::chrono::milliseconds poll{1000};  ///< above 0
    Backoff otherwise{};                   ///< also while the server fails
    std::chrono::milliseconds outage{10'000};  ///< as in Backoff

    using kind = policy::Retry;

    const char* problem() const noexcept {
        if (poll <= poll.zero() || poll > std::chrono::hours{24}) return "retry::OnRelease needs 0 < poll <= 24 h";
        if (outage < outage.zero()) return "retry::OnRelease needs an outage of 0 or more";
        return otherwise.problem();
    }

    std::chrono::nanoseconds pause(unsigned asked, std::uint64_t random) const noexcept { return otherwise.pause(asked, random); }
};

}  // namespace hiredlock::retry
