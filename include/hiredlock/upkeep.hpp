// The renewals and clean-ups that are due, put to every server in one write: a round of questions whose answers a majority of the servers decides.
#pragma once

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <hiredlock/batch.hpp>
#include <hiredlock/orphans.hpp>
#include <hiredlock/quorum.hpp>
#include <hiredlock/session.hpp>
#include <hiredlock/token.hpp>
#include <hiredlock/watchdog.hpp>

namespace hiredlock::detail {

/// A confirmed extend. One before it that was not answered may yet come into force and leave its shorter ttl: then that is to be kept alive.
inline void extended(Renewal& renewal, Clock::time_point sent, std::chrono::milliseconds ttl, std::uint64_t random) {
    if (!renewal.lease.extended(Clock::now(), sent, ttl)) return;  // too late: a loss, told in a moment
    const auto end = renewal.lease.end();
    renewal.spacing = end < lease_end(sent, ttl) ? std::min(renewal.interval, (end - sent) / 3) : renewal.interval;
    renewal.due = pace::after_success(sent, renewal.spacing, random);
}

/// Used by one thread. What it decides it puts into the schedule, which other threads use, too, under the mutex: begin() and end() are called with
/// it held, the others without.
class Upkeep {
public:
    Upkeep(const std::vector<Endpoint>& endpoints, std::mutex& mutex, Schedule& schedule, Orphans& orphans)
        : mutex_(mutex), schedule_(schedule), orphans_(orphans) {
        for (const Endpoint& endpoint : endpoints) nodes_.push_back(std::make_unique<Node>(endpoint));
    }

    /// Whether the outcome of a round is still open.
    bool is_open() const noexcept { return round_ != nullptr; }
    /// Whether an answer is still to come, be it one that decides nothing any more.
    bool is_waiting() const noexcept { return std::any_of(nodes_.begin(), nodes_.end(), [](const auto& node) { return node->batch != nullptr; }); }

    /// Takes what is due, if anything is, and hands it to every server that is free.
    void begin() {
        const auto now = Clock::now();
        auto round = take_due(now);
        if (round->tasks.empty()) return;
        limit_waits(*round, now);
        auto time = Clock::duration::max();
        for (const auto& task : round->tasks)
            if (task.renewal != nullptr) time = std::min(time, task.renewal->spacing);
        // Answers that are slow although the server is well must not be given up on each time.
        time = std::max({time, 4 * round_trip_, Clock::duration{shortest_time_for_answers}});
        round_ = round;
        for (const auto& node : nodes_)
            if (node->batch == nullptr) hand_to(*node, round, time);
        for (auto& task : round->tasks) task.votes.failed += nodes_.size() - round->nodes_out;  // those still busy with an earlier round
    }

    /// Goes on as far as it can without waiting.
    void step() {
        for (const auto& node : nodes_)
            if (node->batch != nullptr) step(*node);
    }

    /// Where the round is decided, puts what became of it into the schedule. False where it is not.
    bool end() {
        if (round_ == nullptr || !is_decided(*round_)) return false;
        settle(*std::exchange(round_, nullptr));
        return true;
    }

    /// Adds what is to be waited for; until when.
    Clock::time_point wait_for(std::vector<pollfd>& descriptors) const {
        auto until = Clock::time_point::max();
        for (const auto& node : nodes_) {
            if (node->batch == nullptr) continue;
            descriptors.push_back({node->session.descriptor(), node->session.events(), 0});
            until = std::min(until, node->session.wake());
        }
        return until;
    }

    void close() noexcept {
        for (const auto& node : nodes_) node->session.close();
    }
    /// In a forked child.
    void close_inherited() noexcept {
        for (const auto& node : nodes_) node->session.close_inherited();
    }

private:
    static constexpr std::size_t largest_batch = 512;
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

    std::shared_ptr<Round> take_due(Clock::time_point now) {
        auto round = std::make_shared<Round>();
        for (const auto& entry : schedule_.due_renewals(now, largest_batch)) {
            round->tasks.push_back({.renewal = entry,
                                    .acquisition = entry->acquisition,
                                    .orphan = {.key = entry->key, .token = entry->token},
                                    .claim = {.ttl = entry->ttl, .acknowledged = entry->acknowledged}});
            entry->in_round = true;
            schedule_.changed(entry);
        }
        if (round->tasks.size() < largest_batch)
            for (Orphan& orphan : orphans_.take_due(now)) round->tasks.push_back({.orphan = std::move(orphan)});
        for (auto& task : round->tasks) {  // they have their places
            task.claim.key = task.orphan.key;
            task.claim.token = task.orphan.token;
            task.votes.nodes = nodes_.size();
        }
        return round;
    }

    /// A WAIT holds up what comes after it, and those that go with it hear no earlier. None of them may be lost by that.
    void limit_waits(Round& round, Clock::time_point now) const {
        if (std::none_of(round.tasks.begin(), round.tasks.end(), [](const auto& task) { return task.claim.acknowledged.is_asked(); })) return;
        auto until = Clock::time_point::max();
        for (const auto& task : round.tasks)
            if (task.renewal != nullptr) until = std::min(until, Schedule::half_way(now, *task.renewal));
        until = schedule_.may_wait(now, until);
        const auto most = std::clamp<Clock::duration>(until - now, shortest_wait, std::chrono::hours{1});
        for (auto& task : round.tasks) {
            auto& timeout = task.claim.acknowledged.timeout;
            timeout = std::min(timeout, std::chrono::ceil<std::chrono::milliseconds>(most));
        }
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
                extended(renewal, round.sent, task.claim.ttl, next_jitter());
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
    }

    std::vector<std::unique_ptr<Node>> nodes_;
    std::shared_ptr<Round> round_;  // the one whose outcome is still open
    Clock::duration round_trip_{};
    std::mutex& mutex_;
    Schedule& schedule_;
    Orphans& orphans_;
};

}  // namespace hiredlock::detail
