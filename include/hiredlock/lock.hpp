// The guard. It has the shape and the meanings of std::unique_lock, and reaches servers, time and sleep through its Store only.
#pragma once

#include <chrono>
#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include <hiredlock/acquisition.hpp>
#include <hiredlock/error.hpp>
#include <hiredlock/fence.hpp>
#include <hiredlock/lease.hpp>
#include <hiredlock/policy.hpp>
#include <hiredlock/process.hpp>
#include <hiredlock/renew.hpp>
#include <hiredlock/replication.hpp>
#include <hiredlock/retry.hpp>
#include <hiredlock/store.hpp>
#include <hiredlock/token.hpp>
#include <hiredlock/unlocking.hpp>
#include <hiredlock/watchdog.hpp>

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

    using Renew = typename detail::Choose<policy::Renew, renew::Manual, Policies...>::type;
    using Replication = typename detail::Choose<policy::Replication, replication::None, Policies...>::type;
    using Fence = typename detail::Choose<policy::Fence, fence::None, Policies...>::type;
    using Retry = typename detail::Choose<policy::Retry, std::conditional_t<NotifyingStore<Store>, retry::OnRelease, retry::Backoff>, Policies...>::type;
    using Unlocking = typename detail::Choose<policy::Unlocking, unlocking::Confirmed, Policies...>::type;

    static constexpr bool is_watched = !std::is_same_v<Renew, renew::Manual>;
    static constexpr bool is_fenced = !std::is_same_v<Fence, fence::None>;

    static_assert(!is_watched || detail::WatchingStore<Store>,
                  "hiredlock: renew::Watchdog needs a Store with a thread of its own, such as a Pool; a Connection has none");
    static_assert(!is_fenced || FencingStore<Store>,
                  "hiredlock: fence::Counter needs a Store of one server, such as a Pool; numbers of independent servers do not grow together");
    static_assert(std::is_same_v<Replication, replication::None> || ReplicatedStore<Store>,
                  "hiredlock: replication::Wait and WaitAof need a Store whose servers have replicas, such as a Pool");

public:
    // --- Construction. All throw Errc::invalid_argument for an empty key, a ttl below 5 ms or absurd, or a policy value that cannot work, before
    // anything is sent. The Store must outlive the guard.

    /// Waits until the lock is ours: lock(), which throws after ten seconds without a server (Pool::ping() fails faster).
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
        adopt(std::move(ticket));
    }

    Lock(Lock&& other) noexcept
        : store_(std::exchange(other.store_, nullptr)),
          key_(std::move(other.key_)),
          fence_key_(std::move(other.fence_key_)),
          ttl_(other.ttl_),
          policies_(std::move(other.policies_)),
          token_(std::exchange(other.token_, {})),
          fencing_(other.fencing_),
          keeping_(std::exchange(other.keeping_, {})),
          process_(other.process_),
          release_unanswered_(other.release_unanswered_) {}

    /// Unlocks what this guard holds first, as the destructor does.
    Lock& operator=(Lock&& other) noexcept {
        if (this != &other) {
            finish();
            store_ = std::exchange(other.store_, nullptr);
            key_ = std::move(other.key_);
            fence_key_ = std::move(other.fence_key_);
            ttl_ = other.ttl_;
            policies_ = std::move(other.policies_);
            token_ = std::exchange(other.token_, {});
            fencing_ = other.fencing_;
            keeping_ = std::exchange(other.keeping_, {});
            process_ = other.process_;
            release_unanswered_ = other.release_unanswered_;
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
    bool owns_lock() const noexcept { return store_ != nullptr && lease().holds(store_->now()) && process_ == detail::process_id(); }
    explicit operator bool() const noexcept { return owns_lock(); }

    /// How long the lease still is, 0 where the lock is not held. Work that must not overlap another holder's has to end before.
    Clock::duration remaining() const noexcept {
        if (!owns_lock()) return Clock::duration::zero();
        return std::max(lease().end() - store_->now(), Clock::duration::zero());
    }
    /// When the lease ends; time_point::min() where there is none.
    Clock::time_point expires_at() const noexcept { return store_ != nullptr ? lease().end() : Clock::time_point::min(); }

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

    /// Stopped the moment the lock is lost; a new one for each acquisition. With renew::Watchdog only.
    std::stop_token stop_token() const
        requires is_watched
    {
        return keeping_ != nullptr ? keeping_->stop_token() : std::stop_token{};
    }

    /// The number of the last grant, larger than that of every grant before it; 0 before the first. With fence::Counter only.
    std::uint64_t fencing_token() const noexcept
        requires is_fenced
    {
        return fencing_;
    }

    /// What went wrong in the last operation that failed, for people: the server and its words. Empty where none has.
    const std::string& last_error() const noexcept { return last_error_; }

    const std::string& key() const noexcept { return key_; }
    /// The value in the key while the lock is held; empty where nothing is held.
    std::string_view token() const noexcept { return token_; }

    // --- Letting go.

    /// Deletes the key if it still holds our token. owns_lock() is false from the start of it.
    /// {}: done (with unlocking::Deferred: sent). Errc::not_held: it had expired, or is somebody else's; nothing was deleted.
    /// Anything else: the outcome is unknown; unlock() may be called again, and then finding the key gone is success.
    std::error_code unlock() noexcept { return note(unlock_outcome()).error; }

    /// Lets go without telling the server, which keeps the lock until its ttl ends: whoever has the ticket may adopt it; if nobody does, "once in
    /// an hour" is a ttl of an hour. The ticket's token is empty where nothing was held.
    Ticket release() noexcept {
        end_keeping();
        if (process_ != detail::process_id()) token_.clear();
        return {key_, std::exchange(token_, {}), fencing_};
    }

private:
    struct Checked {};

    using Limit = detail::Limit;

    template <class Rep, class Period, class... Given>
    Lock(Checked, Store& store, std::string key, std::chrono::duration<Rep, Period> ttl, Given... given) : store_(&store), key_(std::move(key)) {
        (take(std::move(given)), ...);
        constexpr std::size_t longest_key = 512U * 1024U * 1024U;
        if (key_.empty()) detail::refuse("a lock's key must not be empty");
        if (key_.size() > longest_key) detail::refuse("a lock's key must not be longer than 512 MiB");
        const auto whole = detail::whole_ttl(ttl);
        if (!whole) detail::refuse(about(detail::ttl_rule));
        ttl_ = *whole;
        refuse_bad(get<Retry>().problem());
        refuse_bad(get<Replication>().problem());
        refuse_bad(get<Fence>().problem());
        fence_key_ = get<Fence>().key_for(key_);
        if (fence_key_ == key_) detail::refuse(about("fence::Counter needs another key than the lock's own"));
        if constexpr (is_watched) {
            refuse_bad(get<Renew>().problem(ttl_));
            keeping_ = std::make_shared<detail::Renewal>();
        }
    }

    void refuse_bad(const char* problem) const {
        if (problem != nullptr) detail::refuse(about(problem));
    }

    template <class Given>
    void take(Given given) {
        constexpr bool named = (std::is_same_v<Given, Policies> || ...);
        static_assert(named || !Policy<Given>, "hiredlock: a policy that is passed to a Lock must be named in its type");
        static_assert(Policy<Given>, "hiredlock: what follows the ttl of a Lock must be a mode, a limit to wait, or policies");
        if constexpr (named) std::get<Given>(policies_) = std::move(given);
    }

    /// The policy that was given, or a default one.
    template <class P>
    P get() const {
        if constexpr ((std::is_same_v<P, Policies> || ...))
            return std::get<P>(policies_);
        else
            return P{};
    }

    detail::Lease& lease() noexcept {
        if constexpr (is_watched)
            return keeping_->lease;
        else
            return keeping_;
    }
    const detail::Lease& lease() const noexcept { return const_cast<Lock*>(this)->lease(); }

    Claim claim(std::string_view token, std::chrono::milliseconds ttl, std::string_view stale = {}) const {
        return {key_, token, ttl, stale, fence_key_, get<Replication>().asked()};
    }

    std::string about(const std::string& what) const { return "lock " + detail::quoted(key_) + ": " + what; }

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
        if (store_ == nullptr) return {.error = std::make_error_code(std::errc::operation_not_permitted), .detail = "this guard has been moved from"};
        if (owns_lock()) return {.error = std::make_error_code(std::errc::resource_deadlock_would_occur), .detail = "this guard holds it already"};
        if (process_ != detail::process_id()) become_child();
        end_keeping();
        // The token of a lock that was lost, or whose release was not answered, may still be in the key.
        std::string stale = std::exchange(token_, {});
        release_unanswered_ = false;

        const Retry retry = get<Retry>();
        std::string token = new_token();
        const auto once = [&](auto ask, const Patience& patience) { return attempt(ask, token, stale, patience); };
        return detail::Acquisition{*store_, retry, limit, once}.run(key_);
    }

    /// Asks once; once more, at once, where the connection broke without an answer. A token goes into one SET only: after an answer that did not
    /// come it is the stale one, deleted ahead of the next SET, and a fresh one takes its place.
    template <class Ask>
    Outcome attempt(Ask ask, std::string& token, std::string& stale, const Patience& patience) {
        Outcome outcome;
        for (int tries = 0; tries < 2; ++tries) {
            outcome = ask(claim(token, ttl_, stale), patience);
            if (outcome.answer == Answer::yes) return granted(std::move(outcome), token);
            if (outcome.answer == Answer::no) stale.clear();
            if (outcome.answer == Answer::unknown) stale = std::exchange(token, new_token());
            if (outcome.error != Errc::unknown_outcome) break;
        }
        return outcome;
    }

    /// A grant whose lease has run out before we heard of it is none.
    Outcome granted(Outcome outcome, std::string& token) {
        if (store_->now() < detail::lease_end(outcome.sent, ttl_)) {
            fencing_ = outcome.fencing;
            return keep(std::move(outcome), std::move(token));
        }
        const std::string late = std::exchange(token, new_token());
        let_go(late);
        return {.error = Errc::timed_out, .detail = "it was granted too late: its lease had already run out"};
    }

    /// The token in the key is ours.
    Outcome keep(Outcome outcome, std::string token) {
        token_ = std::move(token);
        lease().granted(outcome.sent, ttl_);
        if constexpr (is_watched) {
            const Renew renew = get<Renew>();
            detail::Renewal& renewal = *keeping_;
            renewal.key = key_;
            renewal.token = token_;
            renewal.ttl = ttl_;
            renewal.interval = renew.interval_for(ttl_);
            renewal.last_renewal = renew.max_hold ? detail::after(outcome.sent, *renew.max_hold) : Clock::time_point::max();
            renewal.acknowledged = get<Replication>().asked();
            renewal.on_lost = renew.on_lost;
            renewal.lost_because.clear();
            renewal.renew_stop_source();
            try {
                store_->watchdog().watch(keeping_);
            } catch (const std::system_error& e) {
                end_keeping();
                let_go(std::exchange(token_, {}));
                return {.error = e.code(), .detail = std::string{"no watchdog thread can be had: "} + e.what()};
            }
        }
        return outcome;
    }

    void let_go(const std::string& token) {
        const Outcome released = store_->release(claim(token, ttl_), Patience{});
        if (released.answer == Answer::failed || released.answer == Answer::unknown) store_->abandon(claim(token, ttl_));
    }

    /// From here on owns_lock() is false and nothing is renewed.
    void end_keeping() noexcept {
        if (store_ == nullptr) return;
        if constexpr (is_watched) {
            if (process_ == detail::process_id()) return store_->watchdog().unwatch(keeping_);
        }
        lease().clear();
    }

    /// In a forked child, what this guard held is its parent's.
    void become_child() {
        token_.clear();
        process_ = detail::process_id();
        if constexpr (is_watched) keeping_ = std::make_shared<detail::Renewal>();
        lease().clear();
    }

    void adopt(Ticket ticket) {
        if (ticket.token.empty()) return;
        Outcome outcome = store_->extend(claim(ticket.token, ttl_), Patience{});
        if (!settle(outcome, nullptr)) return;
        fencing_ = ticket.fencing;
        settle(keep(std::move(outcome), std::move(ticket.token)), nullptr);
    }

    Outcome extend_to(std::optional<std::chrono::milliseconds> ttl) {
        if (!ttl) return {.error = Errc::invalid_argument, .detail = detail::ttl_rule};
        if constexpr (is_watched) {
            if (const char* problem = get<Renew>().problem(*ttl)) return {.error = Errc::invalid_argument, .detail = problem};
        }
        if (!owns_lock()) return {.answer = Answer::no};
        const auto end = lease().end();
        if constexpr (is_watched) {
            if (!store_->watchdog().pause(keeping_, end)) return resumed(*ttl, {.error = Errc::timed_out, .detail = "a renewal stayed unanswered"});
        }
        lease().extending(store_->now(), *ttl);
        return resumed(*ttl, store_->extend(claim(token_, *ttl), Patience{end, {}}));
    }

    /// What the outcome of an extend makes of the lease.
    Outcome resumed(std::chrono::milliseconds ttl, Outcome outcome) {
        if constexpr (is_watched) {
            auto& watchdog = store_->watchdog();
            if (outcome.answer == Answer::no) watchdog.lose(keeping_, "the server says that it has expired or is another's");
            if (!watchdog.resume(keeping_, ttl, get<Renew>().interval_for(ttl), outcome) && !outcome.error) outcome.answer = Answer::no;
        } else if (outcome.answer == Answer::yes) {
            lease().extended(outcome.sent, ttl);
        } else if (outcome.answer == Answer::no) {
            lease().clear();
        } else {
            lease().unanswered(ttl);
        }
        if (outcome.answer == Answer::yes && !owns_lock()) outcome.answer = Answer::no;  // the answer came after the lease that it confirms
        return outcome;
    }

    Outcome unlock_outcome() noexcept {
        const Outcome nothing{.answer = Answer::no, .error = Errc::not_held, .detail = {}};
        end_keeping();
        if (store_ == nullptr || token_.empty()) return nothing;
        if (process_ != detail::process_id()) {
            token_.clear();
            return nothing;
        }
        try {
            Outcome outcome = Unlocking::release(*store_, claim(token_, ttl_), Patience{});
            if (outcome.answer == Answer::unknown) release_unanswered_ = true;
            if (outcome.answer == Answer::failed || outcome.answer == Answer::unknown) return outcome;
            if (outcome.answer == Answer::no && !release_unanswered_) outcome.error = Errc::not_held;
            release_unanswered_ = false;
            token_.clear();
            return outcome;
        } catch (const std::exception&) {  // no memory
            release_unanswered_ = true;
            return {.answer = Answer::unknown, .error = std::make_error_code(std::errc::not_enough_memory)};
        }
    }

    /// The end of a guard that may hold something.
    void finish() noexcept {
        if (store_ == nullptr || process_ != detail::process_id()) return;
        if (token_.empty()) return end_keeping();
        const Outcome outcome = unlock_outcome();
        if (!outcome.error) return;
        if (!token_.empty()) store_->abandon(claim(token_, ttl_));
        try {
            store_->report(Error{outcome.error, "hiredlock: " + about("released by its guard's end: " + outcome.detail)});
        } catch (...) {  // no memory for the message
        }
        token_.clear();
    }

    Store* store_;
    std::string key_;
    std::string fence_key_;
    std::chrono::milliseconds ttl_{};
    std::tuple<Policies...> policies_{};
    std::string token_;  // in the key while the lock is held; kept while a release has not been answered
    std::string last_error_;
    std::uint64_t fencing_ = 0;
    std::conditional_t<is_watched, std::shared_ptr<detail::Renewal>, detail::Lease> keeping_{};
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
