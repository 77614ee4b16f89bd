// How a guard's lease is kept: by the guard itself, or by its Store's watchdog.
#pragma once

#include <chrono>
#include <memory>
#include <stop_token>
#include <string>
#include <utility>

#include <hiredlock/renew.hpp>
#include <hiredlock/store.hpp>
#include <hiredlock/watchdog.hpp>

namespace hiredlock::detail {

/// What there is to keep.
struct Grant {
    const std::string& key;
    const std::string& token;
    std::chrono::milliseconds ttl;
    Clock::time_point sent;
    Acknowledgement acknowledged;
};

template <class Renew>
class Keeping;

/// Nobody renews: the lease is the guard's own.
template <>
class Keeping<renew::Manual> {
public:
    explicit Keeping(const renew::Manual&) {}

    static const char* problem(const renew::Manual&, std::chrono::milliseconds) noexcept { return nullptr; }

    const Lease& lease() const noexcept { return lease_; }

    template <class Store>
    void begin(Store&, const Grant& grant) noexcept {
        lease_.granted(grant.sent, grant.ttl);
    }
    template <class Store>
    void end(Store&) noexcept {
        lease_.clear();
    }
    void forget() noexcept { lease_.clear(); }

    /// Before an extend is sent; false where that cannot be now.
    template <class Store>
    bool begin_extend(Store& store, std::chrono::milliseconds ttl) noexcept {
        lease_.extending(store.now(), ttl);
        return true;
    }
    /// What its outcome makes of the lease; false where the lock is lost.
    template <class Store>
    bool end_extend(Store& store, std::chrono::milliseconds ttl, const Outcome& outcome) noexcept {
        if (outcome.answer == Answer::yes)
            lease_.extended(store.now(), outcome.sent, ttl);
        else if (outcome.answer == Answer::no)
            lease_.clear();
        else
            lease_.unanswered(ttl);
        return outcome.answer != Answer::no;
    }

private:
    Lease lease_;
};

/// The Store's thread renews. What it needs stands apart from the guard, which may move.
template <>
class Keeping<renew::Watchdog> {
public:
    explicit Keeping(renew::Watchdog policy) : policy_(std::move(policy)), renewal_(std::make_shared<Renewal>()) {}

    static const char* problem(const renew::Watchdog& policy, std::chrono::milliseconds ttl) noexcept { return policy.problem(ttl); }

    const Lease& lease() const noexcept { return renewal_->lease; }
    std::stop_token stop_token() const { return renewal_ != nullptr ? renewal_->stop_token() : std::stop_token{}; }

    /// Throws std::system_error where no thread can be had.
    template <class Store>
    void begin(Store& store, const Grant& grant) {
        Renewal& renewal = *renewal_;
        renewal.lease.granted(grant.sent, grant.ttl);
        renewal.key = grant.key;
        renewal.token = grant.token;
        renewal.ttl = grant.ttl;
        renewal.interval = policy_.interval_for(grant.ttl);
        renewal.last_renewal = policy_.max_hold ? after(grant.sent, clamped(*policy_.max_hold)) : Clock::time_point::max();
        renewal.acknowledged = grant.acknowledged;
        renewal.on_lost = policy_.on_lost;
        renewal.lost_because.clear();
        renewal.renew_stop_source();
        store.watchdog().watch(renewal_);
    }
    template <class Store>
    void end(Store& store) noexcept {
        store.watchdog().unwatch(renewal_);
    }
    /// In a forked child: the parent's thread is not here to be told.
    void forget() { renewal_ = std::make_shared<Renewal>(); }

    template <class Store>
    bool begin_extend(Store& store, std::chrono::milliseconds ttl) {
        const bool paused = store.watchdog().pause(renewal_, renewal_->lease.end());
        if (paused) renewal_->lease.extending(store.now(), ttl);
        return paused;
    }
    template <class Store>
    bool end_extend(Store& store, std::chrono::milliseconds ttl, const Outcome& outcome) {
        if (outcome.answer == Answer::no) store.watchdog().lose(renewal_, "the server says that it has expired or is another's");
        return store.watchdog().resume(renewal_, ttl, policy_.interval_for(ttl), outcome) && outcome.answer != Answer::no;
    }

private:
    renew::Watchdog policy_;
    std::shared_ptr<Renewal> renewal_;
};

}  // namespace hiredlock::detail
