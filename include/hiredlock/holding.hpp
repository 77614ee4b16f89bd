// What a guard does with its one key: acquire, extend and release it, with outcomes and without exceptions. Lock puts std::unique_lock's face on it.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <tuple>
#include <type_traits>
#include <utility>

#include <hiredlock/acquisition.hpp>
#include <hiredlock/fence.hpp>
#include <hiredlock/keeping.hpp>
#include <hiredlock/lease.hpp>
#include <hiredlock/policy.hpp>
#include <hiredlock/process.hpp>
#include <hiredlock/renew.hpp>
#include <hiredlock/replication.hpp>
#include <hiredlock/retry.hpp>
#include <hiredlock/store.hpp>
#include <hiredlock/token.hpp>
#include <hiredlock/unlocking.hpp>

namespace hiredlock::detail {

template <LockStore Store, class... Policies>
class Holding {
public:
    using Renew = typename Choose<policy::Renew, renew::Manual, Policies...>::type;
    using Replication = typename Choose<policy::Replication, replication::None, Policies...>::type;
    using Fence = typename Choose<policy::Fence, fence::None, Policies...>::type;
    using Retry = typename Choose<policy::Retry, std::conditional_t<NotifyingStore<Store>, retry::OnRelease, retry::Backoff>, Policies...>::type;
    using Unlocking = typename Choose<policy::Unlocking, unlocking::Confirmed, Policies...>::type;

    /// Throws Errc::invalid_argument for what cannot work.
    Holding(Store& store, std::string key, std::optional<std::chrono::milliseconds> ttl, std::tuple<Policies...> policies)
        : store_(&store), key_(std::move(key)), policies_(std::move(policies)), keeping_(get<Renew>()) {
        constexpr std::size_t longest_key = 512U * 1024U * 1024U;
        if (key_.empty()) refuse("a lock's key must not be empty");
        if (key_.size() > longest_key) refuse("a lock's key must not be longer than 512 MiB");
        if (!ttl) refuse(about(ttl_rule));
        ttl_ = longest_ = *ttl;
        for (const char* problem : {get<Retry>().problem(), get<Replication>().problem(), get<Fence>().problem(), keeping_.problem(get<Renew>(), ttl_)})
            if (problem != nullptr) refuse(about(problem));
        fence_key_ = get<Fence>().key_for(key_);
        if (fence_key_ == key_) refuse(about("fence::Counter needs another key than the lock's own"));
    }

    Holding(Holding&&) noexcept = default;
    /// As if this one ended and another were made in its place.
    Holding& operator=(Holding&& other) noexcept {
        if (this == &other) return *this;
        std::destroy_at(this);
        return *std::construct_at(this, std::move(other));
    }
    ~Holding() { finish(); }

    bool owns() const noexcept { return is_ours() && keeping_.lease().holds(store_->now()); }
    Clock::time_point end() const noexcept { return is_ours() ? keeping_.lease().end() : Clock::time_point::min(); }
    /// The Store's time; the real one after this was moved from.
    Clock::time_point now() const noexcept { return store_ != nullptr ? store_->now() : Clock::now(); }

    const std::string& key() const noexcept { return key_; }
    std::string_view token() const noexcept { return is_ours() ? std::string_view{token_} : std::string_view{}; }
    std::uint64_t fencing() const noexcept { return fencing_; }
    const Keeping<Renew>& keeping() const noexcept { return keeping_; }
    std::string about(const std::string& what) const { return "lock " + in_quotes(key_) + ": " + what; }

    Outcome acquire(const Limit& limit) {
        if (store_ == nullptr) return {.error = std::make_error_code(std::errc::operation_not_permitted), .detail = "this guard has been moved from"};
        if (owns()) return {.error = std::make_error_code(std::errc::resource_deadlock_would_occur), .detail = "this guard holds it already"};
        if (process_ != process_id()) become_child();
        keeping_.end(*store_);
        // The token of a lock that was lost, or whose release was not answered, may still be in the key.
        std::string stale = std::exchange(token_, {});
        release_unanswered_ = false;

        const Retry retry = get<Retry>();
        std::string token = new_token();
        const auto once = [&](auto ask, const Patience& patience) { return attempt(ask, token, stale, patience); };
        Outcome outcome = Acquisition{*store_, retry, limit, once}.run(key_);
        if (!stale.empty()) store_->abandon(claim(stale, longest_));
        return outcome;
    }

    /// Takes over a key that holds this token.
    Outcome adopt(Ticket ticket) {
        if (ticket.token.empty()) return {.answer = Answer::no};
        Outcome outcome = store_->extend(claim(ticket.token, ttl_), Patience{});
        if (outcome.answer != Answer::yes) return outcome;
        fencing_ = ticket.fencing;
        return keep(std::move(outcome), std::move(ticket.token));
    }

    Outcome extend(std::optional<std::chrono::milliseconds> ttl) {
        if (!ttl) return {.error = Errc::invalid_argument, .detail = ttl_rule};
        if (const char* problem = keeping_.problem(get<Renew>(), *ttl)) return {.error = Errc::invalid_argument, .detail = problem};
        const Patience until_lost{end(), {}};
        if (!owns()) return {.answer = Answer::no};
        longest_ = std::max(longest_, *ttl);
        Outcome outcome{.error = Errc::timed_out, .detail = "a renewal stayed unanswered"};
        if (keeping_.begin_extend(*store_, *ttl)) outcome = store_->extend(claim(token_, *ttl), until_lost);
        const bool kept = keeping_.end_extend(*store_, *ttl, outcome);
        // No longer ours, or the answer came after the lease that it confirms.
        if (!outcome.error && (!kept || !owns())) outcome.answer = Answer::no;
        return outcome;
    }

    Outcome release() noexcept {
        const bool ours = end_keeping();
        if (!ours || token_.empty()) {
            token_.clear();
            return {.answer = Answer::no, .error = Errc::not_held, .detail = {}};
        }
        try {
            Outcome outcome = Unlocking::release(*store_, claim(token_, ttl_), Patience{});
            if (outcome.answer == Answer::failed || outcome.answer == Answer::unknown) {
                release_unanswered_ = true;
                return outcome;
            }
            // Gone, after an attempt that was not answered: that one did it.
            if (outcome.answer == Answer::no && !release_unanswered_) outcome.error = Errc::not_held;
            release_unanswered_ = false;
            token_.clear();
            return outcome;
        } catch (const std::exception&) {  // no memory
            release_unanswered_ = true;
            return {.answer = Answer::unknown, .error = std::make_error_code(std::errc::not_enough_memory), .detail = {}};
        }
    }

    /// Lets go without telling the server.
    Ticket hand_over() noexcept {
        if (!end_keeping()) token_.clear();
        return {key_, std::exchange(token_, {}), fencing_};
    }

private:
    /// Not moved from, and not inherited from the process that forked this one.
    bool is_ours() const noexcept { return store_ != nullptr && process_ == process_id(); }

    /// The policy that was given, or a default one.
    template <class P>
    P get() const {
        if constexpr ((std::is_same_v<P, Policies> || ...))
            return std::get<P>(policies_);
        else
            return P{};
    }

    Claim claim(std::string_view token, std::chrono::milliseconds ttl, std::string_view stale = {}) const {
        return {key_, token, ttl, stale, fence_key_, get<Replication>().asked()};
    }

    /// Asks once; once more, at once, where the connection broke without an answer. A token goes into one SET only: after an answer that did not
    /// come it is the stale one, deleted ahead of the next SET, and a fresh one takes its place.
    template <class Ask>
    Outcome attempt(Ask ask, std::string& token, std::string& stale, const Patience& patience) {
        Outcome outcome;
        for (int tries = 0; tries < 2; ++tries) {
            outcome = ask(claim(token, ttl_, stale), patience);
            if (outcome.answer == Answer::yes) {
                stale.clear();
                return granted(std::move(outcome), token, patience);
            }
            if (outcome.answer == Answer::no) stale.clear();
            if (outcome.answer == Answer::unknown && !stale.empty()) store_->abandon(claim(stale, longest_));
            if (outcome.answer == Answer::unknown) stale = token;
            token = new_token();
            if (outcome.error != Errc::unknown_outcome) break;
        }
        return outcome;
    }

    /// A grant whose lease has run out before we heard of it is none.
    Outcome granted(Outcome outcome, std::string& token, const Patience& patience) {
        if (store_->now() < lease_end(outcome.sent, ttl_)) {
            fencing_ = outcome.fencing;
            return keep(std::move(outcome), std::move(token));
        }
        let_go(std::exchange(token, new_token()), patience);
        return {.error = Errc::timed_out, .detail = "it was granted too late: its lease had already run out"};
    }

    /// The token in the key is ours.
    Outcome keep(Outcome outcome, std::string token) {
        token_ = std::move(token);
        try {
            keeping_.begin(*store_, Grant{key_, token_, ttl_, outcome.sent, get<Replication>().asked()});
        } catch (const std::exception& e) {  // no thread, no memory
            keeping_.end(*store_);
            let_go(std::exchange(token_, {}), Patience{});
            return {.error = std::make_error_code(std::errc::resource_unavailable_try_again), .detail = std::string{"no watchdog can be had: "} + e.what()};
        }
        return outcome;
    }

    void let_go(const std::string& token, const Patience& patience) {
        const Outcome released = store_->release(claim(token, ttl_), patience);
        if (released.answer == Answer::failed || released.answer == Answer::unknown) store_->abandon(claim(token, ttl_));
    }

    /// From here on it is not owned, and nothing is renewed. False where it was not this process's to begin with.
    bool end_keeping() noexcept {
        if (!is_ours()) return false;
        keeping_.end(*store_);
        return true;
    }

    /// In a forked child, what this guard held is its parent's.
    void become_child() {
        token_.clear();
        keeping_.forget();
        process_ = process_id();
    }

    /// The end of a guard that may hold something.
    void finish() noexcept {
        if (token_.empty()) {
            end_keeping();
            return;
        }
        const Outcome outcome = release();
        if (!outcome.error || !is_ours()) return;
        if (!token_.empty()) store_->abandon(claim(token_, longest_));
        try {
            store_->report(Error{outcome.error, "hiredlock: " + about("released by its guard's end: " + outcome.detail)});
        } catch (...) {  // no memory for the message
        }
        token_.clear();
    }

    struct NotOwned {
        void operator()(Store*) const noexcept {}
    };

    std::unique_ptr<Store, NotOwned> store_;  // null once this was moved from
    std::string key_;
    std::string fence_key_;
    std::chrono::milliseconds ttl_{};
    std::tuple<Policies...> policies_;
    std::string token_;  // in the key while the lock is held; kept while a release has not been answered
    std::chrono::milliseconds longest_{};  // that the key may have been given
    std::uint64_t fencing_ = 0;
    Keeping<Renew> keeping_;
    pid_t process_ = process_id();
    bool release_unanswered_ = false;
};

}  // namespace hiredlock::detail
