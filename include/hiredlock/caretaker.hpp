// The one background thread of a Store, started when it is first needed. It renews the locks under a watchdog and deletes orphaned tokens, on
// connections of its own, all that is due in one write for each server.
#pragma once

#include <signal.h>

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <hiredlock/orphans.hpp>
#include <hiredlock/upkeep.hpp>
#include <hiredlock/socket.hpp>
#include <hiredlock/token.hpp>
#include <hiredlock/watchdog.hpp>

namespace hiredlock::detail {

/// Any thread may call it. The mutex guards the schedule and the renewals; it is held neither while waiting for a server nor in a callback.
class Caretaker {
public:
    /// With several servers a majority of them decides. `on_reminder` is called, on the thread, at the time of remind() and at each that it returns.
    explicit Caretaker(const std::vector<Endpoint>& endpoints, std::function<Clock::time_point()> on_reminder = {})
        : upkeep_(endpoints, mutex_, schedule_, orphans_), on_reminder_(std::move(on_reminder)) {}
    Caretaker(const Caretaker&) = delete;
    Caretaker& operator=(const Caretaker&) = delete;

    ~Caretaker() {
        {
            const std::scoped_lock lock{mutex_};
            stopping_ = true;
        }
        waker_.wake();
        if (thread_.joinable()) thread_.join();
    }

    /// Deletes the token now, and again until it has been there or its ttl has passed. Without memory or threads it stays until its ttl.
    void add_orphan(const Claim& orphan) noexcept {
        try {
            const std::scoped_lock lock{mutex_};
            orphans_.add(orphan, Clock::now());
            start();
        } catch (...) {  // the ttl ends it
        }
    }

    /// Keeps a lock alive that has just been granted; its lease has been set. Throws where no thread can be had.
    void watch(const std::shared_ptr<Renewal>& renewal) {
        const std::scoped_lock lock{mutex_};
        start();
        renewal->watched = true;
        renewal->paused = renewal->in_round = renewal->in_flight = false;
        ++renewal->acquisition;
        renewal->spacing = renewal->interval;
        renewal->due = pace::first(Clock::now(), renewal->interval, next_jitter());
        schedule_.add(renewal);
    }

    /// From here on no renewal of it is sent. Waits for the answer to one that is on its way, and for callbacks that run, except within them.
    void unwatch(const std::shared_ptr<Renewal>& renewal) noexcept {
        std::unique_lock lock{mutex_};
        if (std::exchange(renewal->watched, false)) schedule_.remove(renewal);
        renewal->lease.clear();
        if (std::this_thread::get_id() == thread_.get_id()) return;
        changed_.wait_for(lock, longest_flight, [&] { return !renewal->in_flight; });
        changed_.wait(lock, [&] { return !renewal->calling; });
    }

    /// Before the guard itself extends: no renewal is sent until resume(). False where one stayed on its way past `until`.
    bool pause(const std::shared_ptr<Renewal>& renewal, Clock::time_point until) {
        std::unique_lock lock{mutex_};
        if (!renewal->watched) return true;
        renewal->paused = true;
        schedule_.changed(renewal);
        while (renewal->in_flight && Clock::now() < until) changed_.wait_for(lock, std::min<Clock::duration>(until - Clock::now(), std::chrono::seconds{1}));
        return !renewal->in_flight;
    }

    /// After it: `extended` with the time at which that was sent, where it was confirmed. False where the lock was lost meanwhile.
    bool resume(const std::shared_ptr<Renewal>& renewal, std::chrono::milliseconds ttl, Clock::duration interval, const Outcome& outcome) {
        const std::scoped_lock lock{mutex_};
        if (!renewal->watched) return false;
        renewal->paused = false;
        if (outcome.answer == Answer::yes) {
            renewal->ttl = ttl;
            renewal->interval = interval;
            extended(*renewal, outcome.sent, ttl, next_jitter());
        } else {
            renewal->lease.unanswered(ttl);
            renewal->spacing = std::min(renewal->spacing, interval);
            renewal->due = std::min(renewal->due, pace::after_failure(Clock::now(), interval));
        }
        schedule_.changed(renewal);
        waker_.wake();
        return true;
    }

    /// The guard learned from the server that it is not ours: the loss is told as the thread's own discoveries are.
    void lose(const std::shared_ptr<Renewal>& renewal, std::string reason) {
        const std::scoped_lock lock{mutex_};
        if (!renewal->watched) return;
        renewal->lost_because = std::move(reason);
        renewal->lease.clear();
        schedule_.changed(renewal);  // due at once, as a loss
        waker_.wake();
    }

    void remind(Clock::time_point at) noexcept {
        try {
            const std::scoped_lock lock{mutex_};
            reminder_ = std::min(reminder_, at);
            start();
        } catch (...) {  // no thread: no reminder
        }
    }

    /// In a forked child, where the thread does not exist.
    void close_inherited() noexcept {
        waker_.close_inherited();
        upkeep_.close_inherited();
    }

private:
    static constexpr std::chrono::milliseconds longest_flight{250};
    static constexpr std::chrono::seconds idle_before_end{10};

    void start() {
        if (std::exchange(finished_, false)) thread_.join();
        if (!thread_.joinable()) {
            // The program's signal handlers are not to run on this thread.
            sigset_t all, before;
            ::sigfillset(&all);
            ::pthread_sigmask(SIG_SETMASK, &all, &before);
            try {
                thread_ = std::thread{[this] { run(); }};
            } catch (...) {
                ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
                throw;
            }
            ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
        }
        waker_.wake();
    }

    void run() {
        std::unique_lock lock{mutex_};
        auto busy_at = Clock::now();
        while (!stopping_) {
            if (!upkeep_.is_open()) upkeep_.begin();
            lock.unlock();
            upkeep_.step();
            lock.lock();
            if (upkeep_.end()) changed_.notify_all();
            const auto losses = schedule_.take_losses(Clock::now());
            for (const auto& renewal : losses) tell(lock, renewal);
            if (Clock::now() >= reminder_) {
                reminder_ = Clock::time_point::max();
                lock.unlock();
                const auto again = on_reminder_();
                lock.lock();
                reminder_ = std::min(reminder_, again);
            }
            const auto now = Clock::now();
            // With a round out nothing else is sent; a look each millisecond is enough for losses.
            const auto until = upkeep_.is_open() ? std::max(next_work(), now + std::chrono::milliseconds{1}) : next_work();
            if (until != Clock::time_point::max() || upkeep_.is_waiting()) busy_at = now;
            if (now >= busy_at + idle_before_end) break;
            if (until <= now) continue;
            lock.unlock();
            sleep(std::min(until, busy_at + idle_before_end));
            lock.lock();
        }
        upkeep_.close();
        finished_ = true;
    }

    /// While a round is under way the next waits for its end; a loss does not.
    Clock::time_point next_work() const noexcept {
        const auto next = std::min(schedule_.next(), reminder_);
        return upkeep_.is_open() ? next : std::min(next, orphans_.next_due());
    }

    /// Waits for servers, for somebody's wake(), or for a time.
    void sleep(Clock::time_point until) {
        std::vector<pollfd> descriptors{{waker_.readable(), POLLIN, 0}};
        const auto limit = upkeep_.wait_for(descriptors);
        poll_once(descriptors, std::min(until, limit));
        waker_.rest();
    }

    /// Tells a loss, once: stop callbacks and on_lost run without the mutex, and may unlock or destroy the guard.
    void tell(std::unique_lock<std::mutex>& lock, const Schedule::Entry& renewal) {
        if (!std::exchange(renewal->watched, false)) return;  // unlocked since
        renewal->lease.clear();
        renewal->calling = true;
        const auto on_lost = renewal->on_lost;
        auto stop = renewal->stop_source();
        const std::string reason = renewal->lost_because.empty() ? "its lease ran out" : renewal->lost_because;
        const Error error{Errc::lost, "hiredlock: lock " + in_quotes(renewal->key) + ": " + reason};
        lock.unlock();
        stop.request_stop();
        try {
            if (on_lost) on_lost(error);
        } catch (...) {  // a callback that throws has nobody to throw to
        }
        lock.lock();
        renewal->calling = false;
        changed_.notify_all();
    }

    Waker waker_;
    std::mutex mutex_;
    std::condition_variable changed_;
    Schedule schedule_;
    Orphans orphans_;
    Upkeep upkeep_;  // the thread's own
    std::function<Clock::time_point()> on_reminder_;
    Clock::time_point reminder_ = Clock::time_point::max();
    bool stopping_ = false;
    bool finished_ = false;  // the thread has ended, having had nothing to do for long
    std::thread thread_;
};

}  // namespace hiredlock::detail
