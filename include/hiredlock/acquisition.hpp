// How a guard waits for a lock: when it asks again, and when it stops asking. It reaches servers, time and sleep through the Store only.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <stop_token>
#include <string>
#include <type_traits>
#include <utility>

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
        if (limit_.stop.stop_requested()) return {.answer = Answer::no};
        const auto ask = [this](const Claim& claim, const Patience& patience) { return store_.acquire(claim, patience); };
        if constexpr (std::is_same_v<Retry, retry::OnRelease> && NotifyingStore<Store>) {
            // Whoever stands in line comes first; where nobody does, the lock may well be free.
            if (limit_.once || !store_.line().is_waited_for(key))
                if (!attempt_again_after(ask)) return outcome_;
            sleep(collision());
            return wait_in_line(key);
        } else {
            while (attempt_again_after(ask)) sleep(spread(pause()));
            return outcome_;
        }
    }

private:
    static constexpr std::chrono::milliseconds grace{4};  // by which the answer to the last attempt may be late
    static constexpr retry::Backoff apart{};              // how long those who collide go out of each other's way

    Outcome wait_in_line(const std::string& key) {
        const auto joined = store_.now();
        auto place = store_.line().join(key);
        const bool is_first = place.wait_for_turn(Patience{limit_.until, limit_.stop});
        auto outage = place.outage();
        const bool fails = outage.since != Clock::time_point::max();
        if (!is_first) return fails && !limit_.stop.stop_requested() ? outage.last : Outcome{.answer = Answer::no};
        // One outage is one for the whole line: those behind need not each find out, one after the other.
        if (fails && is_given_up(std::max(joined, outage.since))) return outage.last;
        failing_since_ = std::min(failing_since_, outage.since);
        was_busy_ = failing_since_ == Clock::time_point::max();  // or nobody would have stood in line
        const auto ask = [this](const Claim& claim, const Patience& patience) { return store_.acquire_and_watch(claim, patience); };
        for (;;) {
            const bool again = attempt_again_after(ask);
            if (outcome_.error)
                place.set_outage({failing_since_, {.error = outcome_.error, .detail = outcome_.detail}});
            else if (!limit_.stop.stop_requested())
                place.set_outage({});
            if (!again) return outcome_;
            wait(place);
        }
    }

    template <class Place>
    void wait(Place& place) {
        const auto start = store_.now();
        place.wait(Patience{std::min(next_look(), last_start_), limit_.stop});
        // Whoever had some of the votes is told when they come back, as all others are: not to grasp at them in step again and again.
        if (store_.now() - start > apart.max) collisions_ = std::min(collisions_, 1U);
        sleep(collision());
    }

    /// When to ask if no notification comes.
    Clock::time_point next_look() {
        const auto now = store_.now();
        if constexpr (std::is_same_v<Retry, retry::OnRelease>) {
            using std::chrono::milliseconds;
            const bool is_gone = outcome_.left == Outcome::gone;  // between our question and our look
            const bool was_gone = std::exchange(was_gone_, is_gone);
            if (is_gone && !was_gone) return now;
            if (outcome_.left && !is_gone) {
                const bool ends_first = *outcome_.left >= milliseconds{0} && *outcome_.left < retry_.poll;
                return after(now, ends_first ? *outcome_.left + milliseconds{1} : retry_.poll);
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
        collisions_ = outcome_.divided ? collisions_ + 1 : 0;
        if (outcome_.answer == Answer::yes) return false;
        // What the limit cuts off tells nothing of the server: the lock was busy to the end.
        const bool is_silence = outcome_.error == Errc::timed_out || outcome_.error == Errc::no_quorum;
        const bool cut_off = was_busy_ && end >= limit_.until && is_silence;
        was_busy_ = outcome_.answer == Answer::no;
        if (limit_.stop.stop_requested() || cut_off) return outcome_ = {.answer = Answer::no}, false;
        if (outcome_.answer == Answer::no) {
            failing_since_ = Clock::time_point::max();
        } else {
            if (!is_transient(outcome_.error)) return false;
            failing_since_ = std::min(failing_since_, start);
            if (is_given_up(failing_since_)) return false;
        }
        // The last attempt is made so that its answer arrives at the limit.
        const bool last = limit_.once || start >= last_start_ || end >= limit_.until;
        last_start_ = outcome_.answer == Answer::no && !limit_.is_unlimited() ? limit_.until - (end - start) : limit_.until;
        return !last;
    }

    /// Without a limit an acquisition ends with the failure of a Store that has failed for long.
    bool is_given_up(Clock::time_point failing_since) { return limit_.is_unlimited() && store_.now() >= after(failing_since, clamped(retry_.outage)); }

    Clock::duration pause() { return retry_.pause(asked_, random()); }

    /// Ahead of the next attempt where others had votes at the same time: a random time, so that equals do not collide for ever.
    Clock::duration collision() { return collisions_ > 0 ? Clock::duration{apart.pause(collisions_, random())} : Clock::duration::zero(); }
    /// The same for a policy that does not itself pause for a random time.
    Clock::duration spread(Clock::duration pause) {
        return std::is_same_v<Retry, retry::Backoff> ? pause : pause + std::min(pause, collision());
    }

    std::uint64_t random() {
        if (seed_.empty()) seed_ = new_token();
        return jitter(seed_, asked_);
    }

    void sleep(Clock::duration pause) {
        if (pause > Clock::duration::zero()) store_.sleep(Patience{std::min(after(store_.now(), pause), last_start_), limit_.stop});
    }

    Store& store_;
    const Retry& retry_;
    const Limit& limit_;
    Attempt attempt_;
    Outcome outcome_;
    unsigned asked_ = 0;
    unsigned collisions_ = 0;  // attempts in a row for which the votes were divided
    bool was_busy_ = false;  // when last heard of
    bool was_gone_ = false;  // when last looked for
    Clock::time_point last_start_ = limit_.until;
    Clock::time_point failing_since_ = Clock::time_point::max();
    std::string seed_;
};

}  // namespace hiredlock::detail
