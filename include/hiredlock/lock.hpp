// The guard. It has the shape and the meanings of std::unique_lock, and reaches servers, time and sleep through its Store only.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <stop_token>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include <hiredlock/error.hpp>
#include <hiredlock/lease.hpp>
#include <hiredlock/policy.hpp>
#include <hiredlock/process.hpp>
#include <hiredlock/retry.hpp>
#include <hiredlock/store.hpp>
#include <hiredlock/token.hpp>
#include <hiredlock/unlocking.hpp>

namespace hiredlock {

/// A lock with a key in a Store, held by the guard that acquired it until unlock(), destruction, or the end of its lease.
///
/// - One thread at a time uses a guard; owns_lock(), remaining(), expires_at() and check() may be called from any thread.
/// - Not reentrant: a second guard of the same key in the same thread waits like any other.
/// - After fork() the child's guards are inert: they hold nothing and release nothing. Guards acquired in the child work.
/// - Every `bool` operation throws Error on a failure; the overload with a trailing std::error_code reports it there instead. That another holds
///   the lock is no failure: it is `false`.
/// - Operations that wait repeat what failed transiently (is_transient) inside their limit; other errors end them at once.
template <LockStore Store, class... Policies>
class Lock {
    static_assert((Policy<Policies> && ...),
                  "hiredlock: what follows the ttl of a Lock must be std::try_to_lock, std::defer_lock, std::adopt_lock (with a Ticket), a duration or a "
                  "time point to wait, or policies such as retry::Fixed{}");
    static_assert(detail::kinds_differ<Policies...>, "hiredlock: a Lock takes one policy of each kind, and two of these are of one kind");

    using Retry = typename detail::Choose<policy::Retry, retry::Backoff, Policies...>::type;
    using Unlocking = typename detail::Choose<policy::Unlocking, unlocking::Confirmed, Policies...>::type;

public:
    // --- Construction. All throw Errc::invalid_argument for an empty key, a ttl below 5 ms or absurd, or a policy value that cannot work, before
    // anything is sent. The Store must outlive the guard.

    /// Waits until the lock is ours: lock().
    template <class Rep, class Period, class... Given>
    Lock(std::type_identity_t<Store>& store, std::string key, std::chrono::duration<Rep, Period> ttl, Given... policies)
        : Lock(Checked{}, store, std::move(key), ttl, std::move(policies)...) {
        lock();
    }

    /// One attempt: try_lock(). Ask owns_lock().
    template <class Rep, class Period, class... Given>
    Lock(std::type_identity_t<Store>& store, std::string key, std::chrono::duration<Rep, Period> ttl, std::try_to_lock_t, Given... policies)
        : Lock(Checked{}, store, std::move(key), ttl, std::move(policies)...) {
        try_lock();
    }

    /// Sends nothing yet.
    template <class Rep, class Period, class... Given>
    Lock(std::type_identity_t<Store>& store, std::string key, std::chrono::duration<Rep, Period> ttl, std::defer_lock_t, Given... policies)
        : Lock(Checked{}, store, std::move(key), ttl, std::move(policies)...) {}

    /// Waits for `limit` at most: try_lock_for(). Ask owns_lock().
    template <class Rep, class Period, class LimitRep, class LimitPeriod, class... Given>
    Lock(std::type_identity_t<Store>& store, std::string key, std::chrono::duration<Rep, Period> ttl,
         std::chrono::duration<LimitRep, LimitPeriod> limit, Given... policies)
        : Lock(Checked{}, store, std::move(key), ttl, std::move(policies)...) {
        try_lock_for(limit);
    }

    /// Waits until `limit` at most: try_lock_until(). Ask owns_lock().
    template <class Rep, class Period, class LimitClock, class LimitDuration, class... Given>
    Lock(std::type_identity_t<Store>& store, std::string key, std::chrono::duration<Rep, Period> ttl,
         std::chrono::time_point<LimitClock, LimitDuration> limit, Given... policies)
        : Lock(Checked{}, store, std::move(key), ttl, std::move(policies)...) {
        try_lock_until(limit);
    }

    /// Takes over a lock that another guard, here or in another process, let go with release(), and extends it to ttl. Ask owns_lock(): false
    /// means that it had expired or is somebody else's by now. Where it throws, the ticket may be tried again.
    template <class Rep, class Period, class... Given>
    Lock(std::type_identity_t<Store>& store, Ticket ticket, std::chrono::duration<Rep, Period> ttl, std::adopt_lock_t, Given... policies)
        : Lock(Checked{}, store, std::move(ticket.key), ttl, std::move(policies)...) {
        adopt(std::move(ticket.token));
    }

    Lock(Lock&& other) noexcept
        : store_(std::exchange(other.store_, nullptr)),
          key_(std::move(other.key_)),
          ttl_(other.ttl_),
          policies_(std::move(other.policies_)),
          token_(std::exchange(other.token_, {})),
          lease_(other.lease_),
          process_(other.process_),
          release_unanswered_(other.release_unanswered_) {
        other.lease_.clear();
    }

    /// Unlocks what this guard holds first, as the destructor does.
    Lock& operator=(Lock&& other) noexcept {
        if (this != &other) {
            finish();
            store_ = std::exchange(other.store_, nullptr);
            key_ = std::move(other.key_);
            ttl_ = other.ttl_;
            policies_ = std::move(other.policies_);
            token_ = std::exchange(other.token_, {});
            lease_ = other.lease_;
            process_ = other.process_;
            release_unanswered_ = other.release_unanswered_;
            other.lease_.clear();
        }
        return *this;
    }

    /// unlock(), bounded by the Store's time limits; a failure goes to the Store's on_error hook.
    ~Lock() { finish(); }

    // --- Acquiring.

    /// Waits until the lock is ours. Throws once the Store has failed without a break for the retry policy's `outage` (10 s), or at once where
    /// waiting cannot help.
    void lock() {
        settle(acquire(Limit{}), nullptr);
    }

    /// The same; false when a stop was requested before the lock was ours, and then nothing of ours stays behind.
    bool lock(std::stop_token stop) { return settle(acquire(Limit{.stop = std::move(stop)}), nullptr); }
    bool lock(std::stop_token stop, std::error_code& error) { return settle(acquire(Limit{.stop = std::move(stop)}), &error); }

    /// One attempt (made once more, at once, if the connection broke under it), bounded by the Store's time limits.
    bool try_lock() { return settle(acquire(Limit{.once = true}), nullptr); }
    bool try_lock(std::error_code& error) { return settle(acquire(Limit{.once = true}), &error); }

    /// Waits for `limit` at most, and makes its last attempt at the end of it. Zero or less is one attempt.
    template <class Rep, class Period>
    bool try_lock_for(std::chrono::duration<Rep, Period> limit) {
        return settle(acquire(limit_in(limit)), nullptr);
    }
    template <class Rep, class Period>
    bool try_lock_for(std::chrono::duration<Rep, Period> limit, std::error_code& error) {
        return settle(acquire(limit_in(limit)), &error);
    }

    /// Waits until `limit` at most, of any clock (read once, at the start).
    template <class LimitClock, class LimitDuration>
    bool try_lock_until(std::chrono::time_point<LimitClock, LimitDuration> limit) {
        return settle(acquire(limit_at(limit)), nullptr);
    }
    template <class LimitClock, class LimitDuration>
    bool try_lock_until(std::chrono::time_point<LimitClock, LimitDuration> limit, std::error_code& error) {
        return settle(acquire(limit_at(limit)), &error);
    }

    // --- Holding.

    /// True where the guard acquired the lock, has not unlocked or lost it, and its lease has not run out.
    bool owns_lock() const noexcept { return store_ != nullptr && lease_.holds(store_->now()) && process_ == detail::process_id(); }
    explicit operator bool() const noexcept { return owns_lock(); }

    /// How long the lease still is, 0 where the lock is not held. Work that must not overlap another holder's has to end before.
    Clock::duration remaining() const noexcept {
        if (!owns_lock()) return Clock::duration::zero();
        return std::max(lease_.end() - store_->now(), Clock::duration::zero());
    }
    /// When the lease ends; time_point::min() where there is none.
    Clock::time_point expires_at() const noexcept { return lease_.end(); }

    /// Throws Error{Errc::lost} unless owns_lock(). Call it before a side effect.
    void check() const {
        if (!owns_lock()) throw Error{Errc::lost, about("not held any more")};
    }

    /// Makes the lock expire ttl from now. False: it is not ours any more and never will be; so also where it never was.
    /// On a failure the lock may or may not have been extended: its lease is judged by the shorter of both.
    template <class Rep, class Period>
    bool extend(std::chrono::duration<Rep, Period> ttl) {
        return settle(extend_to(detail::whole_ttl(ttl)), nullptr);
    }
    template <class Rep, class Period>
    bool extend(std::chrono::duration<Rep, Period> ttl, std::error_code& error) {
        return settle(extend_to(detail::whole_ttl(ttl)), &error);
    }

    const std::string& key() const noexcept { return key_; }
    /// The value in the key while the lock is held; empty where nothing is held.
    std::string_view token() const noexcept { return token_; }

    // --- Letting go.

    /// Deletes the key if it still holds our token. owns_lock() is false from the start of it.
    /// {}: done (with unlocking::Deferred: sent). Errc::not_held: it had expired, or is somebody else's; nothing was deleted.
    /// Anything else: the outcome is unknown; unlock() may be called again, and then finding the key gone is success.
    std::error_code unlock() noexcept { return unlock_outcome().error; }

    /// Lets go without telling the server, which keeps the lock until its ttl ends. Whoever has the ticket may adopt it. Its token is empty where
    /// nothing was held.
    Ticket release() noexcept {
        lease_.clear();
        if (process_ != detail::process_id()) token_.clear();
        return {key_, std::exchange(token_, {}), 0};
    }

private:
    struct Checked {};

    /// How far an acquisition goes.
    struct Limit {
        Clock::time_point until = Clock::time_point::max();
        std::stop_token stop{};
        bool once = false;
    };

    static constexpr std::chrono::milliseconds grace{4};  // by which the answer of the last attempt may be late

    template <class Rep, class Period, class... Given>
    Lock(Checked, Store& store, std::string key, std::chrono::duration<Rep, Period> ttl, Given... given) : store_(&store), key_(std::move(key)) {
        (take(std::move(given)), ...);
        constexpr std::size_t longest_key = 512U * 1024U * 1024U;
        if (key_.empty()) detail::refuse("a lock's key must not be empty");
        if (key_.size() > longest_key) detail::refuse("a lock's key must not be longer than 512 MiB");
        const auto whole = detail::whole_ttl(ttl);
        if (!whole) detail::refuse(about(detail::ttl_rule));
        ttl_ = *whole;
        if (const char* problem = retry_policy().problem()) detail::refuse(about(problem));
    }

    template <class Given>
    void take(Given given) {
        constexpr bool named = (std::is_same_v<Given, Policies> || ...);
        static_assert(named || !Policy<Given>, "hiredlock: a policy that is passed to a Lock must be named in its type");
        static_assert(Policy<Given>, "hiredlock: what follows the ttl of a Lock must be a mode, a limit to wait, or policies");
        if constexpr (named) std::get<Given>(policies_) = std::move(given);
    }

    Retry retry_policy() const {
        if constexpr ((std::is_same_v<Retry, Policies> || ...))
            return std::get<Retry>(policies_);
        else
            return Retry{};
    }

    std::string about(const std::string& what) const { return "lock " + detail::quoted(key_) + ": " + what; }

    /// Turns an outcome into what the caller sees.
    bool settle(const Outcome& outcome, std::error_code* error) const {
        if (error == nullptr && outcome.error) throw Error{outcome.error, "hiredlock: " + about(outcome.detail)};
        if (error != nullptr) *error = outcome.error;
        return outcome.answer == Answer::yes;
    }

    template <class Rep, class Period>
    Limit limit_in(std::chrono::duration<Rep, Period> limit) const {
        const auto wait = detail::clamped(limit);
        if (wait <= Clock::duration::zero() || store_ == nullptr) return {.once = true};
        return {.until = detail::after(store_->now(), wait)};
    }

    template <class LimitClock, class LimitDuration>
    Limit limit_at(std::chrono::time_point<LimitClock, LimitDuration> limit) const {
        using Wide = std::chrono::duration<long double, std::nano>;  // holds the difference of any two time points
        if constexpr (std::is_same_v<LimitClock, Clock>) {
            if (store_ != nullptr) return limit_in(Wide{limit.time_since_epoch()} - Wide{store_->now().time_since_epoch()});
        }
        return limit_in(Wide{limit.time_since_epoch()} - Wide{LimitClock::now().time_since_epoch()});
    }

    Outcome acquire(const Limit& limit) {
        if (store_ == nullptr) return {Answer::failed, std::make_error_code(std::errc::operation_not_permitted), "this guard has been moved from", {}};
        if (owns_lock()) return {Answer::failed, std::make_error_code(std::errc::resource_deadlock_would_occur), "this guard holds it already", {}};
        const bool ours = process_ == detail::process_id();
        // The token of a lock that was lost, or whose release was not answered, may still be in the key.
        std::string stale = ours ? std::exchange(token_, {}) : std::string{};
        token_.clear();
        lease_.clear();
        release_unanswered_ = false;
        process_ = detail::process_id();

        const Retry retry = retry_policy();
        const Patience patience{limit.until == Clock::time_point::max() ? limit.until : detail::after(limit.until, grace), limit.stop};
        std::string token = new_token();
        Clock::time_point failing_since = Clock::time_point::max();
        for (unsigned asked = 1;; ++asked) {
            const auto start = store_->now();
            Outcome outcome = attempt(token, stale, patience);
            const auto end = store_->now();
            if (outcome.answer == Answer::yes) return outcome;
            if (limit.stop.stop_requested()) return {Answer::no, {}, "a stop was requested", {}};
            if (outcome.answer == Answer::no) {
                failing_since = Clock::time_point::max();
            } else {
                if (!is_transient(outcome.error)) return outcome;
                failing_since = std::min(failing_since, start);
                if (limit.until == Clock::time_point::max() && end - failing_since >= retry.outage) return outcome;
            }
            // The last attempt is made so that its answer arrives at the limit.
            const auto last_start = outcome.answer == Answer::no ? limit.until - (end - start) : limit.until;
            if (limit.once || start >= last_start || end >= limit.until) return outcome;
            store_->sleep({std::min(detail::after(end, retry.pause(asked, detail::jitter(token, asked))), last_start), limit.stop});
            if (limit.stop.stop_requested()) return {Answer::no, {}, "a stop was requested", {}};
        }
    }

    /// Asks once; once more, at once, where the connection broke without an answer. A token goes into one SET only: after an answer that did not
    /// come it is the stale one, deleted ahead of the next SET, and a fresh one takes its place.
    Outcome attempt(std::string& token, std::string& stale, const Patience& patience) {
        Outcome outcome;
        for (int tries = 0; tries < 2; ++tries) {
            outcome = store_->acquire(Claim{key_, token, ttl_, stale}, patience);
            if (outcome.answer == Answer::yes) return granted(std::move(outcome), token);
            if (outcome.answer == Answer::no) stale.clear();
            if (outcome.answer == Answer::unknown) stale = std::exchange(token, new_token());
            if (outcome.error != Errc::unknown_outcome) break;
        }
        return outcome;
    }

    /// A grant whose lease has run out before we heard of it is none.
    Outcome granted(Outcome outcome, std::string& token) {
        const auto end = detail::lease_end(outcome.sent, ttl_);
        if (store_->now() < end) {
            token_ = std::move(token);
            lease_.set(end);
            return outcome;
        }
        const std::string late = std::exchange(token, new_token());
        const Claim claim{key_, late, ttl_, {}};
        const Outcome released = store_->release(claim, Patience{});
        if (released.answer == Answer::failed || released.answer == Answer::unknown) store_->abandon(claim);
        return {Answer::failed, Errc::timed_out, "it was granted too late: its lease had already run out", {}};
    }

    void adopt(std::string token) {
        if (token.empty()) return;
        const Outcome outcome = store_->extend(Claim{key_, token, ttl_, {}}, Patience{});
        if (!settle(outcome, nullptr)) return;
        lease_.set(detail::lease_end(outcome.sent, ttl_));
        token_ = std::move(token);
    }

    Outcome extend_to(std::optional<std::chrono::milliseconds> ttl) {
        if (!ttl) return {Answer::failed, Errc::invalid_argument, detail::ttl_rule, {}};
        if (!owns_lock()) {
            lease_.clear();
            return {Answer::no, {}, {}, {}};
        }
        // The server may execute the extend and its answer be lost, so from here on the shorter lease counts.
        const auto before = lease_.end();
        lease_.lower(detail::lease_end(store_->now(), *ttl));
        Outcome outcome = store_->extend(Claim{key_, token_, *ttl, {}}, Patience{before, {}});
        if (outcome.answer == Answer::yes) {
            lease_.set(detail::lease_end(outcome.sent, *ttl));
            if (!owns_lock()) outcome.answer = Answer::no;  // the answer came after the lease that it confirms
        } else if (outcome.answer == Answer::no) {
            lease_.clear();
        }
        return outcome;
    }

    Outcome unlock_outcome() noexcept {
        const Outcome nothing{Answer::no, Errc::not_held, {}, {}};
        lease_.clear();
        if (store_ == nullptr || token_.empty()) return nothing;
        if (process_ != detail::process_id()) {
            token_.clear();
            return nothing;
        }
        try {
            Outcome outcome = Unlocking::release(*store_, Claim{key_, token_, ttl_, {}}, Patience{});
            if (outcome.answer == Answer::unknown) release_unanswered_ = true;
            if (outcome.answer == Answer::failed || outcome.answer == Answer::unknown) return outcome;
            if (outcome.answer == Answer::no && !std::exchange(release_unanswered_, false)) outcome.error = Errc::not_held;
            token_.clear();
            return outcome;
        } catch (const std::exception& e) {
            release_unanswered_ = true;
            return {Answer::unknown, std::make_error_code(std::errc::not_enough_memory), {}, {}};
        }
    }

    /// The end of a guard that may hold something.
    void finish() noexcept {
        if (store_ == nullptr || token_.empty() || process_ != detail::process_id()) return;
        const Outcome outcome = unlock_outcome();
        if (!outcome.error) return;
        if (!token_.empty()) store_->abandon(Claim{key_, token_, ttl_, {}});
        try {
            store_->report(Error{outcome.error, "hiredlock: " + about("released by its guard's end: " + outcome.detail)});
        } catch (...) {  // no memory for the message
        }
        token_.clear();
    }

    Store* store_;
    std::string key_;
    std::chrono::milliseconds ttl_{};
    std::tuple<Policies...> policies_{};
    std::string token_;  // in the key while the lock is held; kept while a release has not been answered
    detail::Lease lease_;
    pid_t process_ = detail::process_id();
    bool release_unanswered_ = false;
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
