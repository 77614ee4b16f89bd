// The guard. It has the shape and the meanings of std::unique_lock, and reaches servers, time and sleep through its Store only.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <stop_token>
#include <string>
#include <string_view>
#include <system_error>
#include <tuple>
#include <type_traits>
#include <utility>

#include <hiredlock/error.hpp>
#include <hiredlock/holding.hpp>
#include <hiredlock/lease.hpp>
#include <hiredlock/policy.hpp>
#include <hiredlock/store.hpp>

namespace hiredlock {

/// A lock with a key in a Store, held by the guard that acquired it until unlock(), destruction, or the end of its lease.
///
///     Lock lock{pool, "lock:nightly-report", 30s};                                 // policies are deduced from the arguments
///     Lock<Pool, fence::Counter> member{pool, "lock:orders", 10s, std::defer_lock};  // as a member they are named; default ones need not be passed
///
/// - A guard is not a mutex that threads share: each thread has a guard of its own, on the same key. One thread at a time uses a guard;
///   owns_lock(), remaining(), expires_at(), check() and stop_token() may be called from any thread while it is neither moved nor destroyed.
/// - Not reentrant: a second guard of the same key in the same thread waits like any other.
/// - Under std::scoped_lock or std::unique_lock nobody sees what unlock() returns: call check() before a side effect.
/// - After fork() the child's guards are inert: they hold nothing and release nothing. Guards acquired in the child work.
/// - Every `bool` operation throws Error on a failure; the overload with a trailing std::error_code reports it there instead, and last_error() has the
///   words. That another holds the lock is no failure: it is `false`.
/// - Operations that wait repeat what failed transiently (is_transient) inside their limit; other errors end them at once.
template <LockStore Store, class... Policies>
class Lock {
    static_assert((Policy<Policies> && ...),
                  "hiredlock: what follows the ttl of a Lock must be std::try_to_lock, std::defer_lock, std::adopt_lock (with a Ticket), a duration or a "
                  "time point to wait, or policies such as retry::Fixed{}");
    static_assert(detail::kinds_differ<Policies...>, "hiredlock: a Lock takes one policy of each kind, and two of these are of one kind");

    using Holding = detail::Holding<Store, Policies...>;
    static constexpr bool is_watched = !std::is_same_v<typename Holding::Renew, renew::Manual>;
    static constexpr bool is_fenced = !std::is_same_v<typename Holding::Fence, fence::None>;

    static_assert(!is_watched || detail::WatchingStore<Store>,
                  "hiredlock: renew::Watchdog needs a Store with a thread of its own, such as a Pool; a Connection has none");
    static_assert(!is_fenced || FencingStore<Store>,
                  "hiredlock: fence::Counter needs a Store of one server, such as a Pool; numbers of independent servers do not grow together");
    static_assert(std::is_same_v<typename Holding::Replication, replication::None> || ReplicatedStore<Store>,
                  "hiredlock: replication::Wait and WaitAof need a Store whose servers have replicas, such as a Pool");

public:
    // --- Construction. All throw Errc::invalid_argument for an empty key, a ttl below 5 ms or absurd, or a policy value that cannot work, before
    // anything is sent. The Store must outlive the guard.

    /// Waits until the lock is ours: lock(), which throws after ten seconds without a server (Pool::ping() fails faster).
    template <class Rep, class Period, class... Given>
    Lock(std::type_identity_t<Store>& store, std::string key, std::chrono::duration<Rep, Period> ttl, Given... policies)
        : holding_(store, std::move(key), detail::whole_ttl(ttl), chosen(std::move(policies)...)) {
        lock();
    }

    /// One attempt: try_lock(). Ask owns_lock().
    template <class Rep, class Period, class... Given>
    Lock(std::type_identity_t<Store>& store, std::string key, std::chrono::duration<Rep, Period> ttl, std::try_to_lock_t, Given... policies)
        : holding_(store, std::move(key), detail::whole_ttl(ttl), chosen(std::move(policies)...)) {
        try_lock();
    }

    /// Sends nothing yet.
    template <class Rep, class Period, class... Given>
    Lock(std::type_identity_t<Store>& store, std::string key, std::chrono::duration<Rep, Period> ttl, std::defer_lock_t, Given... policies)
        : holding_(store, std::move(key), detail::whole_ttl(ttl), chosen(std::move(policies)...)) {}

    /// Waits for `limit` at most: try_lock_for(). Ask owns_lock().
    template <class Rep, class Period, class LimitRep, class LimitPeriod, class... Given>
    Lock(std::type_identity_t<Store>& store, std::string key, std::chrono::duration<Rep, Period> ttl,
         std::chrono::duration<LimitRep, LimitPeriod> limit, Given... policies)
        : holding_(store, std::move(key), detail::whole_ttl(ttl), chosen(std::move(policies)...)) {
        try_lock_for(limit);
    }

    /// Waits until `limit` at most: try_lock_until(). Ask owns_lock().
    template <class Rep, class Period, class LimitClock, class LimitDuration, class... Given>
    Lock(std::type_identity_t<Store>& store, std::string key, std::chrono::duration<Rep, Period> ttl,
         std::chrono::time_point<LimitClock, LimitDuration> limit, Given... policies)
        : holding_(store, std::move(key), detail::whole_ttl(ttl), chosen(std::move(policies)...)) {
        try_lock_until(limit);
    }

    /// Takes over a lock that another guard, here or in another process, let go with release(), and extends it to ttl. Ask owns_lock(): false
    /// means that it had expired or is somebody else's by now. Where it throws, the ticket may be tried again.
    template <class Rep, class Period, class... Given>
    Lock(std::type_identity_t<Store>& store, Ticket ticket, std::chrono::duration<Rep, Period> ttl, std::adopt_lock_t, Given... policies)
        : holding_(store, ticket.key, detail::whole_ttl(ttl), chosen(std::move(policies)...)) {
        settle(holding_.adopt(std::move(ticket)), nullptr);
    }

    Lock(Lock&&) noexcept = default;
    /// Unlocks what this guard holds first, as the destructor does.
    Lock& operator=(Lock&&) noexcept = default;
    /// unlock(), bounded by the Store's time limits; a failure goes to the Store's on_error hook.
    ~Lock() = default;

    // --- Acquiring.

    /// Waits until the lock is ours. Throws once the Store has failed without a break for the retry policy's `outage` (10 s), or at once where
    /// waiting cannot help.
    void lock() {
        settle(holding_.acquire(Limit{}), nullptr);
    }

    /// The same; false when a stop was requested before the lock was ours, and then nothing of ours stays behind.
    bool lock(std::stop_token stop) { return settle(holding_.acquire(Limit{.stop = std::move(stop)}), nullptr); }
    bool lock(std::stop_token stop, std::error_code& error) { return settle(holding_.acquire(Limit{.stop = std::move(stop)}), &error); }

    /// One attempt (made once more, at once, if the connection broke under it), bounded by the Store's time limits.
    bool try_lock() { return settle(holding_.acquire(Limit{.once = true}), nullptr); }
    bool try_lock(std::error_code& error) { return settle(holding_.acquire(Limit{.once = true}), &error); }

    /// Waits for `limit` at most, and makes its last attempt at the end of it. Zero or less is one attempt.
    template <class Rep, class Period>
    bool try_lock_for(std::chrono::duration<Rep, Period> limit) {
        return settle(holding_.acquire(limit_in(limit)), nullptr);
    }
    template <class Rep, class Period>
    bool try_lock_for(std::chrono::duration<Rep, Period> limit, std::error_code& error) {
        return settle(holding_.acquire(limit_in(limit)), &error);
    }

    /// Waits until `limit` at most, of any clock (read once, at the start).
    template <class LimitClock, class LimitDuration>
    bool try_lock_until(std::chrono::time_point<LimitClock, LimitDuration> limit) {
        return settle(holding_.acquire(limit_at(limit)), nullptr);
    }
    template <class LimitClock, class LimitDuration>
    bool try_lock_until(std::chrono::time_point<LimitClock, LimitDuration> limit, std::error_code& error) {
        return settle(holding_.acquire(limit_at(limit)), &error);
    }

    // --- Holding.

    /// True where the guard acquired the lock, has not unlocked or lost it, and its lease has not run out.
    bool owns_lock() const noexcept { return holding_.owns(); }
    explicit operator bool() const noexcept { return owns_lock(); }

    /// How long the lease still is, 0 where the lock is not held. Work that must not overlap another holder's has to end before.
    Clock::duration remaining() const noexcept {
        const auto end = holding_.end();  // read once: another thread may end the lease
        const auto now = holding_.now();
        return owns_lock() && now < end ? end - now : Clock::duration::zero();
    }
    /// When the lease ends; time_point::min() where there is none.
    Clock::time_point expires_at() const noexcept { return holding_.end(); }

    /// Throws Error{Errc::lost} unless owns_lock(). Call it before a side effect.
    void check() const {
        if (!owns_lock()) throw Error{Errc::lost, holding_.about("not held any more")};
    }

    /// Makes the lock expire ttl from now. False: it is not ours any more and never will be; so also where it never was.
    /// On a failure the lock may or may not have been extended: its lease is judged by the shorter of both.
    template <class Rep, class Period>
    bool extend(std::chrono::duration<Rep, Period> ttl) {
        return settle(holding_.extend(detail::whole_ttl(ttl)), nullptr);
    }
    template <class Rep, class Period>
    bool extend(std::chrono::duration<Rep, Period> ttl, std::error_code& error) {
        return settle(holding_.extend(detail::whole_ttl(ttl)), &error);
    }

    /// Stopped the moment the lock is lost; a new one for each acquisition. With renew::Watchdog only.
    std::stop_token stop_token() const
        requires is_watched
    {
        return holding_.keeping().stop_token();
    }

    /// The number of the last grant, larger than that of every grant before it; 0 before the first. With fence::Counter only.
    std::uint64_t fencing_token() const noexcept
        requires is_fenced
    {
        return holding_.fencing();
    }

    /// What went wrong in the last operation that failed, for people: the server and its words. Empty where none has.
    const std::string& last_error() const noexcept { return last_error_; }

    const std::string& key() const noexcept { return holding_.key(); }
    /// The value in the key while the lock is held; empty where nothing is held.
    std::string_view token() const noexcept { return holding_.token(); }

    // --- Letting go.

    /// Deletes the key if it still holds our token. owns_lock() is false from the start of it.
    /// {}: done (with unlocking::Deferred: sent). Errc::not_held: it had expired, or is somebody else's; nothing was deleted.
    /// Anything else: the outcome is unknown; unlock() may be called again, and then finding the key gone is success.
    std::error_code unlock() noexcept { return note(holding_.release()).error; }

    /// Lets go without telling the server, which keeps the lock until its ttl ends: whoever has the ticket may adopt it; if nobody does, "once in
    /// an hour" is a ttl of an hour. The ticket's token is empty where nothing was held.
    Ticket release() noexcept { return holding_.hand_over(); }

private:
    using Limit = detail::Limit;

    /// The policies, with those that were given.
    template <class... Given>
    static std::tuple<Policies...> chosen(Given... given) {
        std::tuple<Policies...> policies{};
        (take(policies, std::move(given)), ...);
        return policies;
    }
    template <class Given>
    static void take(std::tuple<Policies...>& policies, Given given) {
        constexpr bool named = (std::is_same_v<Given, Policies> || ...);
        static_assert(named || !Policy<Given>, "hiredlock: a policy that is passed to a Lock must be named in its type");
        static_assert(Policy<Given>, "hiredlock: what follows the ttl of a Lock must be a mode, a limit to wait, or policies");
        if constexpr (named) std::get<Given>(policies) = std::move(given);
    }

    const Outcome& note(const Outcome& outcome) noexcept {
        try {
            if (outcome.error) last_error_ = outcome.detail;
        } catch (...) {  // no memory for words
        }
        return outcome;
    }

    /// Turns an outcome into what the caller sees.
    bool settle(const Outcome& outcome, std::error_code* error) {
        note(outcome);
        if (error == nullptr && outcome.error) throw Error{outcome.error, "hiredlock: " + holding_.about(outcome.detail)};
        if (error != nullptr) *error = outcome.error;
        return outcome.answer == Answer::yes;
    }

    template <class Rep, class Period>
    Limit limit_in(std::chrono::duration<Rep, Period> limit) const {
        const auto wait = detail::clamped(limit);
        if (wait <= Clock::duration::zero()) return {.once = true};
        return {.until = detail::after(holding_.now(), wait)};
    }

    template <class LimitClock, class LimitDuration>
    Limit limit_at(std::chrono::time_point<LimitClock, LimitDuration> limit) const {
        using Wide = std::chrono::duration<long double, std::nano>;  // holds the difference of any two time points
        if constexpr (std::is_same_v<LimitClock, Clock>)
            return limit_in(Wide{limit.time_since_epoch()} - Wide{holding_.now().time_since_epoch()});
        else
            return limit_in(Wide{limit.time_since_epoch()} - Wide{LimitClock::now().time_since_epoch()});
    }

    Holding holding_;
    std::string last_error_;
};

template <class Store, class Key, class Rep, class Period, class... Policies>
Lock(Store&, Key&&, std::chrono::duration<Rep, Period>, Policies...) -> Lock<Store, Policies...>;
template <class Store, class Key, class Rep, class Period, class... Policies>
Lock(Store&, Key&&, std::chrono::duration<Rep, Period>, std::try_to_lock_t, Policies...) -> Lock<Store, Policies...>;
template <class Store, class Key, class Rep, class Period, class... Policies>
Lock(Store&, Key&&, std::chrono::duration<Rep, Period>, std::defer_lock_t, Policies...) -> Lock<Store, Policies...>;
template <class Store, class Key, class Rep, class Period, class... Policies>
Lock(Store&, Key&&, std::chrono::duration<Rep, Period>, std::adopt_lock_t, Policies...) -> Lock<Store, Policies...>;
template <class Store, class Key, class Rep, class Period, class LimitRep, class LimitPeriod, class... Policies>
Lock(Store&, Key&&, std::chrono::duration<Rep, Period>, std::chrono::duration<LimitRep, LimitPeriod>, Policies...) -> Lock<Store, Policies...>;
template <class Store, class Key, class Rep, class Period, class LimitClock, class LimitDuration, class... Policies>
Lock(Store&, Key&&, std::chrono::duration<Rep, Period>, std::chrono::time_point<LimitClock, LimitDuration>, Policies...)
    -> Lock<Store, Policies...>;

}  // namespace hiredlock
