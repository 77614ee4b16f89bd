// How a guard waits for a lock: when it asks again, and when it stops asking. It reaches servers, time and sleep through the Store only.
#pragma once

#include <algorithm>
#include <chrono>
#include <optional>
#include <stop_token>
#include <string>
#include <type_traits>

#include <hiredlock/retry.hpp>
#include <hiredlock/store.hpp>
#include <hiredlock/token.hpp>

namespace hiredlock::detail {

/// How far an acquisition goes.
struct Limit {
    Clock::time_point until = Clock::time_point::max();
    std::stop_token stop{};
    bool once = false;  ///< one attempt, bounded by the Store's time limits only

    bool is_unlimited() const noexcept { return until == Clock::time_point::max(); }
};

/// One acquisition by one guard. `attempt(ask, patience)` makes one attempt, and puts it to the server by calling `ask(claim, patience)`.
template <LockStore Store, class Retry, class Attempt>
class Acquisition {
public:
    Acquisition(Store& store, const Retry& retry, const Limit& limit, Attempt attempt)
        : store_(store), retry_(retry), limit_(limit), attempt_(std::move(attempt)) {}

    Outcome run(const std::string& key) {
        const auto ask = [this](const Claim& claim, const Patience& patience) { return store_.acquire(claim, patience); };
        if constexpr (std::is_same_v<Retry, retry::OnRelease> && NotifyingStore<Store>) {
            // Whoever stands in line comes first; where nobody does, the lock may well be free.
            if (limit_.once || !store_.line().is_waited_for(key))
                if (!attempt_again_after(ask)) return outcome_;
            return wait_in_line(key);
        } else {
            while (attempt_again_after(ask)) store_.sleep(Patience{std::min(after(store_.now(), pause()), last_start_), limit_.stop});
            return outcome_;
        }
    }

private:
    static constexpr std::chrono::milliseconds grace{4};  // by which the answer to the last attempt may be late

    Outcome wait_in_line(const std::string& key) {
        auto place = store_.line().join(key);
        if (!place.wait_for_turn(Patience{limit_.until, limit_.stop})) return {.answer = Answer::no};
        failing_since_ = std::min(failing_since_, place.failing_since());
        const auto ask = [this](const Claim& claim, const Patience& patience) { return store_.acquire_and_watch(claim, patience); };
        while (attempt_again_after(ask)) {
            place.failing_since() = failing_since_;
            place.wait(Patience{std::min(next_look(), last_start_), limit_.stop});
        }
        place.failing_since() = outcome_.answer == Answer::yes ? Clock::time_point::max() : failing_since_;
        return outcome_;
    }

    /// When to ask if no notification comes.
    Clock::time_point next_look() {
        const auto now = store_.now();
        if constexpr (std::is_same_v<Retry, retry::OnRelease>) {
            using std::chrono::milliseconds;
            if (outcome_.answer == Answer::no && outcome_.left == milliseconds{-2}) return now;  // it went between our question and our look
            if (outcome_.answer == Answer::no && outcome_.left) {
                const auto look = after(now, retry_.poll);
                return *outcome_.left < milliseconds{0} ? look : std::min(look, after(now, *outcome_.left + milliseconds{1}));
            }
        }
        return after(now, pause());
    }

    /// Makes one attempt. True where another one is to be made later.
    template <class Ask>
    bool attempt_again_after(Ask ask) {
        ++asked_;
        const auto start = store_.now();
        outcome_ = attempt_(ask, Patience{limit_.is_unlimited() ? limit_.until : after(limit_.until, grace), limit_.stop});
        const auto end = store_.now();
        if (outcome_.answer == Answer::yes) return false;
        if (limit_.stop.stop_requested()) return outcome_ = {.answer = Answer::no}, false;
        if (outcome_.answer == Answer::no) {
            failing_since_ = Clock::time_point::max();
        } else {
            if (!is_transient(outcome_.error)) return false;
            failing_since_ = std::min(failing_since_, start);
            if (limit_.is_unlimited() && end - failing_since_ >= retry_.outage) return false;
        }
        // The last attempt is made so that its answer arrives at the limit.
        const bool last = limit_.once || start >= last_start_ || end >= limit_.until;
        last_start_ = outcome_.answer == Answer::no && !limit_.is_unlimited() ? limit_.until - (end - start) : limit_.until;
        return !last;
    }

    Clock::duration pause() {
        if (seed_.empty()) seed_ = new_token();
        return retry_.pause(asked_, jitter(seed_, asked_));
    }

    Store& store_;
    const Retry& retry_;
    const Limit& limit_;
    Attempt attempt_;
    Outcome outcome_;
    unsigned asked_ = 0;
    Clock::time_point last_start_ = limit_.until;
    Clock::time_point failing_since_ = Clock::time_point::max();
    std::string seed_;
};

}  // namespace hiredlock::detail
