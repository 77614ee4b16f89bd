// The one background thread of a Store, started when it is first needed. It renews the locks under a watchdog and deletes orphaned tokens, on
// connections of its own, all that is due in one write for each server.
#pragma once

#include <signal.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <hiredlock/batch.hpp>
#include <hiredlock/orphans.hpp>
#include <hiredlock/quorum.hpp>
#include <hiredlock/session.hpp>
#include <hiredlock/token.hpp>
#include <hiredlock/watchdog.hpp>

namespace hiredlock::detail {

/// Any thread may call it. The mutex guards the schedule and the renewals; it is held neither while waiting for a server nor in a callback.
class Caretaker {
public:
    /// With several servers a majority of them decides. `on_reminder` is called, on the thread, at the time of remind() and at each that it returns.
    explicit Caretaker(const std::vector<Endpoint>& endpoints, std::function<Clock::time_point()> on_reminder = {}) : on_reminder_(std::move(on_reminder)) {
        for (const Endpoint& endpoint : endpoints) nodes_.push_back(std::make_unique<Node>(endpoint));
    }
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
        renewal->due = pace::first(Clock::now(), renewal->interval, random());
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
            extended(*renewal, outcome.sent, ttl);
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
        for (const auto& node : nodes_) node->session.close_inherited();
    }

private:
    static constexpr std::size_t largest_batch = 512;
    static constexpr std::chrono::milliseconds longest_flight{250};
    static constexpr std::chrono::seconds idle_before_end{10};
    static constexpr std::chrono::milliseconds shortest_time_for_answers{5};
    static constexpr std::chrono::milliseconds shortest_wait{10};

    /// What one round of work is about, alive until the last server has answered or timed out.
    struct Round {
        struct Task {
            std::shared_ptr<Renewal> renewal{};  // or else an orphan
            std::uint64_t acquisition = 0;
            Orphan orphan{};  // of a renewal, copies of its key and token
            Claim claim{};
            Votes votes{};
            bool sent = false;
            std::error_code error{};
            std::string words{};
        };
        std::vector<Task> tasks;
        Clock::time_point sent = Clock::time_point::max();
        std::size_t nodes_out = 0;
    };

    struct Node {
        explicit Node(const Endpoint& endpoint) : session(endpoint) {}
        Session session;
        std::unique_ptr<Batch> batch;    // null: idle
        std::shared_ptr<Round> round;
        std::vector<bool> answered;      // by task
    };

    static std::uint64_t random() {
        static std::atomic<std::uint64_t> count{0};
        static const std::string seed = new_token();
        return jitter(seed, count.fetch_add(1, std::memory_order_relaxed));
    }

    /// A confirmed extend. One before it that was not answered may yet come into force and leave its shorter ttl: then that is to be kept alive.
    static void extended(Renewal& renewal, Clock::time_point sent, std::chrono::milliseconds ttl) {
        if (!renewal.lease.extended(Clock::now(), sent, ttl)) return;  // too late: a loss, told in a moment
        const auto end = renewal.lease.end();
        renewal.spacing = end < lease_end(sent, ttl) ? std::min(renewal.interval, (end - sent) / 3) : renewal.interval;
        renewal.due = pace::after_success(sent, renewal.spacing, random());
    }

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
            if (round_ == nullptr) compose();
            lock.unlock();
            for (const auto& node : nodes_) step(*node);
            lock.lock();
            if (round_ != nullptr && is_decided(*round_)) settle(*std::exchange(round_, nullptr));
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
            const auto until = round_ == nullptr ? next_work() : std::max(next_work(), now + std::chrono::milliseconds{1});
            if (until != Clock::time_point::max() || round_ != nullptr || is_node_out()) busy_at = now;
            if (now >= busy_at + idle_before_end) break;
            if (until <= now) continue;
            lock.unlock();
            sleep(std::min(until, busy_at + idle_before_end));
            lock.lock();
        }
        for (const auto& node : nodes_) node->session.close();
        finished_ = true;
    }

    /// While a round is under way the next waits for its end; a loss does not.
    Clock::time_point next_work() const noexcept {
        const auto next = std::min(schedule_.next(), reminder_);
        return round_ == nullptr ? std::min(next, orphans_.next_due()) : next;
    }

    bool is_node_out() const noexcept {
        return std::any_of(nodes_.begin(), nodes_.end(), [](const auto& node) { return node->batch != nullptr; });
    }

    /// Waits for servers, for somebody's wake(), or for a time.
    void sleep(Clock::time_point until) {
        std::vector<pollfd> descriptors{{waker_.readable(), POLLIN, 0}};
        for (const auto& node : nodes_) {
            if (node->batch == nullptr) continue;
            descriptors.push_back({node->session.descriptor(), node->session.events(), 0});
            until = std::min(until, node->session.wake());
        }
        poll_once(descriptors, until);
        waker_.rest();
    }

    /// Takes what is due and hands it to every server that is free.
    void compose() {
        const auto now = Clock::now();
        auto round = std::make_shared<Round>();
        Clock::duration time = Clock::duration::max();
        for (const auto& entry : schedule_.due_renewals(now, largest_batch)) {
            Round::Task task{.renewal = entry, .acquisition = entry->acquisition, .votes = {.nodes = nodes_.size()}};
            task.orphan.key = entry->key;
            task.orphan.token = entry->token;
            task.claim = {.ttl = entry->ttl, .acknowledged = entry->acknowledged};
            time = std::min(time, entry->spacing);
            round->tasks.push_back(std::move(task));
            entry->in_round = true;
            schedule_.changed(entry);
        }
        if (round->tasks.size() < largest_batch)
            for (Orphan& orphan : orphans_.take_due(now)) round->tasks.push_back({.orphan = std::move(orphan), .votes = {.nodes = nodes_.size()}});
        if (round->tasks.empty()) return;
        // A WAIT holds up what comes after it, and those that go with it hear no earlier. None of them may be lost by that.
        auto until = Clock::time_point::max();
        for (auto& task : round->tasks) {
            task.claim.key = task.orphan.key;
            task.claim.token = task.orphan.token;
            if (task.renewal != nullptr) until = std::min(until, Schedule::half_way(now, *task.renewal));
        }
        if (std::any_of(round->tasks.begin(), round->tasks.end(), [](const auto& task) { return task.claim.acknowledged.is_asked(); }))
            until = schedule_.may_wait(now, until);
        const auto spare = std::max<Clock::duration>(until - now, shortest_wait);
        for (auto& task : round->tasks) {
            auto& timeout = task.claim.acknowledged.timeout;
            timeout = std::min(timeout, std::chrono::ceil<std::chrono::milliseconds>(std::min<Clock::duration>(spare, std::chrono::hours{1})));
        }
        // Answers that are slow although the server is well must not be given up on each time.
        time = std::max({time, 4 * round_trip_, Clock::duration{shortest_time_for_answers}});
        round_ = round;
        for (const auto& node : nodes_)
            if (node->batch == nullptr) hand_to(*node, round, time);
        for (auto& task : round->tasks) task.votes.failed += nodes_.size() - round->nodes_out;  // those still busy with an earlier round
    }

    void hand_to(Node& node, const std::shared_ptr<Round>& round, Clock::duration time) {
        std::vector<Batch::Item> items;
        for (const auto& task : round->tasks)
            items.push_back({task.renewal != nullptr ? CompareAnd::Do::extend : CompareAnd::Do::release, task.claim});
        node.round = round;
        node.answered.assign(items.size(), false);
        const auto select = [this, &node](std::size_t i) { return still_wanted(*node.round, i); };
        const auto answered = [&node](std::size_t i, Answer answer, std::error_code error, const std::string& words) {
            node.answered[i] = true;
            count(node.round->tasks[i], answer, error, node.session.name() + ": " + words);
        };
        node.batch = std::make_unique<Batch>(std::move(items), node.session.dialect(), time, select, answered);
        node.session.begin(*node.batch, Clock::time_point::max());  // its own time for answers is the limit
        ++round->nodes_out;
    }

    static void count(Round::Task& task, Answer answer, std::error_code error, std::string words) {
        task.votes.yes += answer == Answer::yes ? 1 : 0;
        task.votes.no += answer == Answer::no ? 1 : 0;
        if (answer == Answer::yes || answer == Answer::no) return;
        ++task.votes.failed;
        task.error = error;
        task.words = std::move(words);
    }

    /// At the moment of sending: a lock that was unlocked meanwhile is not renewed any more, and the lease of one that is counts as the shorter.
    bool still_wanted(Round& round, std::size_t i) {
        const std::scoped_lock lock{mutex_};
        Round::Task& task = round.tasks[i];
        if (task.renewal == nullptr) return true;
        const auto now = Clock::now();
        Renewal& renewal = *task.renewal;
        if (!renewal.watched || renewal.paused || renewal.acquisition != task.acquisition || !renewal.lease.holds(now)) return false;
        if (renewal.ttl != task.claim.ttl) return false;  // the guard has extended it meanwhile, and that must not be undone
        round.sent = std::min(round.sent, now);
        renewal.lease.extending(now, task.claim.ttl);
        renewal.in_flight = task.sent = true;
        schedule_.changed(task.renewal);
        return true;
    }

    void step(Node& node) {
        if (node.batch == nullptr) return;
        node.session.step();
        const auto outcome = node.batch->ended;
        if (!outcome) return;
        for (std::size_t i = 0; i < node.answered.size(); ++i)
            if (!node.answered[i]) count(node.round->tasks[i], Answer::failed, outcome->error, outcome->detail);
        --node.round->nodes_out;
        node.batch.reset();
        node.round.reset();
    }

    /// When a majority has said the same of each renewal there is nothing to wait for. Orphans are to be gone everywhere, but nothing waits for them.
    bool is_decided(const Round& round) const {
        if (round.nodes_out == 0) return true;
        const bool may_wait = schedule_.next() > Clock::now();
        return std::all_of(round.tasks.begin(), round.tasks.end(), [may_wait](const Round::Task& task) {
            return task.renewal != nullptr ? task.votes.is_decided() : task.votes.pending() == 0 || !may_wait;
        });
    }

    /// Puts what became of a round into the schedule.
    void settle(const Round& round) {
        const auto now = Clock::now();
        if (round.sent <= now) round_trip_ = now - round.sent;
        for (const Round::Task& task : round.tasks) {
            if (task.renewal == nullptr) {
                if (task.votes.yes < task.votes.nodes) orphans_.unsettled(task.orphan, now);
                continue;
            }
            Renewal& renewal = *task.renewal;
            if (renewal.acquisition != task.acquisition) continue;
            renewal.in_round = renewal.in_flight = false;
            if (!renewal.watched) continue;
            if (task.sent && task.votes.is_granted()) {
                extended(renewal, round.sent, task.claim.ttl);
            } else if (task.sent && task.votes.is_refused()) {
                renewal.lease.clear();
                renewal.lost_because = "the server says that it has expired or is another's";
            } else {
                if (task.sent) renewal.lease.unanswered(task.claim.ttl);
                renewal.due = pace::after_failure(now, renewal.spacing);
                renewal.lost_because = "its lease ran out before it could be renewed: " + task.words;
            }
            schedule_.changed(task.renewal);
        }
        changed_.notify_all();
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

    std::vector<std::unique_ptr<Node>> nodes_;  // the thread's own
    Waker waker_;
    std::mutex mutex_;
    std::condition_variable changed_;
    Schedule schedule_;
    Orphans orphans_;
    std::shared_ptr<Round> round_;  // the one whose outcome is still open
    Clock::duration round_trip_{};
    std::function<Clock::time_point()> on_reminder_;
    Clock::time_point reminder_ = Clock::time_point::max();
    bool stopping_ = false;
    bool finished_ = false;  // the thread has ended, having had nothing to do for long
    std::thread thread_;
};

}  // namespace hiredlock::detail
