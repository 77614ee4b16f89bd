// A MapStore behind a network that fails as the test says, and that remembers what was asked of it.
#pragma once

#include "map_store.hpp"

#include <algorithm>
#include <chrono>
#include <deque>
#include <functional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

/// What becomes of one operation.
struct Fate {
    enum class Of { answered, refused, request_lost, reply_lost, executed_later };

    Of what = Of::answered;
    hiredlock::Clock::duration takes = std::chrono::milliseconds{1};  ///< half of it to the server, half of it back
    hiredlock::Errc error = hiredlock::Errc::timed_out;
    hiredlock::Clock::duration later{};  ///< how long after it was given up on the server gets it
    bool patient = false;                ///< takes its time although the caller's patience has ended

    static Fate takes_time(hiredlock::Clock::duration time) { return {.takes = time, .patient = true}; }
    static Fate refused(hiredlock::Errc error) { return {.what = Of::refused, .error = error}; }
    static Fate request_lost(hiredlock::Errc error = hiredlock::Errc::timed_out) { return {.what = Of::request_lost, .error = error}; }
    static Fate reply_lost(hiredlock::Errc error = hiredlock::Errc::timed_out) { return {.what = Of::reply_lost, .error = error}; }
    static Fate executed_later(hiredlock::Clock::duration later) { return {.what = Of::executed_later, .later = later}; }
};

class FaultyStore {
public:
    /// One operation as the guard asked for it.
    struct Asked {
        std::string key, token, stale, fence_key;
        std::chrono::milliseconds ttl;
        MapStore::Time at, until;
    };
    using Fates = std::deque<Fate>;

    static constexpr bool has_fencing = true;
    static constexpr bool has_replicas = true;

    // What is to happen to the next operations of each kind; after those, `usual`.
    Fates acquires, extends, releases;
    Fate usual{};
    std::function<void()> under_way = [] {};  ///< called when an operation is on its way to the server

    std::vector<Asked> acquired, extended, released, sent_releases, abandoned;
    std::vector<MapStore::Time> slept_at, slept_until;
    MapStore map;

    MapStore::Time now() const noexcept { return map.now(); }
    void sleep(const hiredlock::Patience& patience) {
        slept_at.push_back(now());
        slept_until.push_back(patience.until);
        if (!patience.stop.stop_requested() && patience.until > now()) pass(patience.until - now());
    }
    hiredlock::Outcome acquire(const hiredlock::Claim& claim, const hiredlock::Patience& patience) {
        acquired.push_back(asked(claim, patience));
        return perform(acquires, claim, patience, &MapStore::acquire);
    }
    hiredlock::Outcome extend(const hiredlock::Claim& claim, const hiredlock::Patience& patience) {
        extended.push_back(asked(claim, patience));
        return perform(extends, claim, patience, &MapStore::extend);
    }
    hiredlock::Outcome release(const hiredlock::Claim& claim, const hiredlock::Patience& patience) {
        released.push_back(asked(claim, patience));
        return perform(releases, claim, patience, &MapStore::release);
    }
    hiredlock::Outcome send_release(const hiredlock::Claim& claim, const hiredlock::Patience& patience) {
        sent_releases.push_back(asked(claim, patience));
        return perform(releases, claim, patience, &MapStore::send_release);
    }
    void abandon(const hiredlock::Claim& claim) noexcept {
        abandoned.push_back(asked(claim, {}));
        map.abandon(claim);
    }
    void report(const hiredlock::Error& error) noexcept { map.report(error); }

    void pass(hiredlock::Clock::duration time) {
        const auto end = now() + time;
        while (!later_.empty() && later_.front().at <= end) {
            const Later next = std::exchange(later_.front(), {});
            later_.pop_front();
            map.advance(std::max(next.at - now(), hiredlock::Clock::duration::zero()));
            next.execute();
        }
        map.advance(end - now());
    }

private:
    using Operation = hiredlock::Outcome (MapStore::*)(const hiredlock::Claim&, const hiredlock::Patience&);
    struct Later {
        MapStore::Time at;
        std::function<void()> execute;
    };

    Asked asked(const hiredlock::Claim& c, const hiredlock::Patience& patience) const {
        return {std::string{c.key}, std::string{c.token}, std::string{c.stale}, std::string{c.fence_key}, c.ttl, now(), patience.until};
    }

    hiredlock::Outcome perform(Fates& fates, const hiredlock::Claim& claim, const hiredlock::Patience& patience, Operation operation) {
        Fate fate = usual;
        if (!fates.empty()) {
            fate = fates.front();
            fates.pop_front();
        }
        const auto sent = now();
        under_way();
        if (!fate.patient && patience.until < sent + fate.takes) {
            fate.takes = std::max(patience.until - sent, hiredlock::Clock::duration::zero());
            if (fate.what == Fate::Of::answered) fate.what = Fate::Of::reply_lost;
        }
        using hiredlock::Answer;
        if (fate.what == Fate::Of::executed_later) {
            const Asked kept = asked(claim, patience);
            later_.push_back({sent + fate.takes + fate.later, [this, kept, operation] {
                                  (map.*operation)({.key = kept.key, .token = kept.token, .ttl = kept.ttl, .stale = kept.stale}, {});
                              }});
        }
        pass(fate.takes / 2);
        hiredlock::Outcome outcome{.answer = Answer::unknown, .error = fate.error, .detail = "as the test says", .sent = sent};
        if (fate.what == Fate::Of::refused) outcome.answer = Answer::failed;
        if (fate.what == Fate::Of::answered) outcome = (map.*operation)(claim, patience);
        if (fate.what == Fate::Of::reply_lost) (map.*operation)(claim, patience);
        outcome.sent = sent;
        pass(fate.takes - fate.takes / 2);
        // As the contract has it: after `unknown` the Store itself sees to it that the token of an acquire does not stay.
        if (outcome.answer == Answer::unknown && operation == &MapStore::acquire) map.abandon(claim);
        return outcome;
    }

    std::deque<Later> later_;
};

static_assert(hiredlock::LockStore<FaultyStore>);
static_assert(hiredlock::ReplicatedStore<FaultyStore>);
