// The exchanges under way with one server, as a state machine that never blocks: they wait for the connection, share it, keep their time limits, and
// are told what became of them when it is thrown away because an answer did not come.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <hiredlock/acquire.hpp>
#include <hiredlock/compare_and.hpp>
#include <hiredlock/link.hpp>

namespace hiredlock::detail {

/// One thread at a time. A driver calls begin(), then step() whenever descriptor() is ready for events() or wake() has come, until the exchange has
/// ended. run() is the driver for one session. Several exchanges may be under way; their commands go out in the order in which they began.
class Session : public Link {
public:
    using Link::Link;

    /// Begins an exchange. It and `keep`, which may own it, must live until it has ended. `limit` is the caller's; the endpoint's time limits apply
    /// besides.
    void begin(Exchange& exchange, Clock::time_point limit, std::shared_ptr<void> keep = {}) {
        if (tasks_.empty()) go_on_opening();
        tasks_.push_back({.exchange = &exchange, .keep = std::move(keep), .caller_limit = limit});
    }

    /// Goes on as far as it can without waiting.
    void step() {
        while (!tasks_.empty()) {
            const Next next = is_greeted() ? converse() : connect();
            if (next == Next::wait) return;
        }
    }

    /// The caller waits no longer for this one: it ends as when its time limit passes.
    void give_up(Exchange& exchange) {
        const auto at = std::find_if(tasks_.begin(), tasks_.end(), [&](const Task& task) { return task.exchange == &exchange; });
        if (at == tasks_.end()) return;
        if (at->asked)
            break_off(Errc::timed_out);
        else
            end_unasked(at, Errc::timed_out, "no answer in time");
    }

    Clock::time_point wake() const noexcept {
        auto earliest = opening_wake();
        for (const Task& task : tasks_) earliest = std::min(earliest, task.asked ? task.limit : task.caller_limit);
        return earliest;
    }
    bool is_busy() const noexcept { return !tasks_.empty(); }
    std::size_t under_way() const noexcept { return tasks_.size(); }
    /// By when the oldest answer that is out should come, judging by how long the last one took; max() for the first question of all.
    Clock::time_point due() const noexcept {
        const bool has_no_measure = trip_ == Clock::duration::zero() && tasks_.size() == 1;
        if (tasks_.empty() || has_no_measure) return Clock::time_point::max();
        return tasks_.front().sent + 2 * trip_;
    }

    /// Begins an exchange and waits for its end.
    Outcome run(Exchange& exchange, const Patience& patience) {
        const Abandoning abandoning{*this, exchange};
        begin(exchange, patience.until);
        for (step(); !exchange.ended; step()) {
            if (may_wait_in_kernel(patience)) {
                wait_for_reply();
                continue;
            }
            pollfd descriptor{this->descriptor(), events(), 0};
            wait_ready({&descriptor, 1}, {wake(), patience.stop});
            if (patience.stop.stop_requested()) give_up(exchange);
        }
        return *std::move(exchange.ended);
    }

    Outcome acquire(const Claim& claim, const Patience& patience) {
        const Claim limited = within(claim, patience);
        Acquire exchange{limited, dialect(), Acquire::Watch::no};
        return run(exchange, patience);
    }
    /// With a refusal, `left` where this connection is tracked.
    Outcome acquire_and_watch(const Claim& claim, const Patience& patience) {
        const Claim limited = within(claim, patience);
        Acquire exchange{limited, dialect(), Acquire::Watch::yes};
        Outcome outcome = run(exchange, patience);
        if (outcome.answer == Answer::no && is_tracking()) outcome.left = std::chrono::milliseconds{exchange.left};
        return outcome;
    }
    Outcome extend(const Claim& claim, const Patience& patience) {
        const Claim limited = within(claim, patience);
        CompareAnd exchange{CompareAnd::Do::extend, limited, dialect()};
        return run(exchange, patience);
    }
    Outcome release(const Claim& claim, const Patience& patience) {
        CompareAnd exchange{CompareAnd::Do::release, claim, dialect()};
        return run(exchange, patience);
    }
    Outcome ping(const Patience& patience) {
        Ping exchange;
        return run(exchange, patience);
    }

    /// Sends a release whose answer nobody will read; false where that cannot be done now. Until an awaited answer has shown that this connection's
    /// form of it works it cannot; nor on a borrowed connection, for its owner must not find our reply.
    bool post_release(const Claim& claim) {
        if (!may_release_unawaited()) return false;
        if (release_unawaited(claim) == Progress::done) return true;
        break_off(Errc::unknown_outcome);
        return false;
    }
    Outcome send_release(const Claim& claim, const Patience& patience) {
        const auto sent = Clock::now();
        if (post_release(claim)) return {.answer = Answer::yes, .sent = sent};
        // Said as it will be posted, to see whether that works here.
        CompareAnd exchange{CompareAnd::Do::release, claim, dialect(), is_borrowed() ? Naming::by_sha1 : Naming::whole};
        return run(exchange, patience);
    }

    /// The servers' own waiting (WAIT) must fit into the caller's limit, with some time for its answer.
    static Claim within(const Claim& claim, const Patience& patience) {
        Claim limited = claim;
        if (claim.acknowledged.is_asked() && patience.until != Clock::time_point::max()) {
            using std::chrono::milliseconds;
            const auto left = std::chrono::floor<milliseconds>(patience.until - Clock::now()) - milliseconds{2};
            limited.acknowledged.timeout = std::clamp(left, milliseconds{1}, claim.acknowledged.timeout);
        }
        return limited;
    }

    /// In a forked child: lets go of the parent's socket without a word to the server.
    void forget() noexcept {
        Link::forget();
        tasks_.clear();
    }

private:
    enum class Next { go_on, wait };

    struct Task {
        Exchange* exchange = nullptr;
        std::shared_ptr<void> keep{};
        Clock::time_point caller_limit{};
        bool asked = false;       ///< its first commands have been written
        bool repeated = false;    ///< it was sent over an earlier connection, too
        bool reopened = false;    ///< it waited for an earlier connection, which proved dead
        std::size_t before = 0;   ///< how much had been written before its commands
        Clock::time_point sent{};
        Clock::time_point limit{};
    };
    using Tasks = std::vector<Task>;

    /// Where an exception (no memory) ends run(), nothing may refer to its exchange any more.
    struct Abandoning {
        Session& session;
        const Exchange& exchange;
        ~Abandoning() {
            if (exchange.ended) return;
            session.tasks_.clear();
            session.close();
        }
    };

    static constexpr std::chrono::milliseconds idle_enough_to_check{50};

    /// The common case, where an answer is out and only the command timeout limits the wait: one system call less.
    bool may_wait_in_kernel(const Patience& patience) const {
        return may_wait_for_reply() && !patience.stop.stop_possible() &&
               wake() - Clock::now() > endpoint().command_timeout - std::chrono::milliseconds{1};
    }

    Outcome failed(std::error_code error, const std::string& text) const {
        return {.answer = Answer::failed, .error = error, .detail = name() + ": " + text};
    }

    Tasks::iterator end(Tasks::iterator at, Outcome outcome) {
        at->exchange->ended = std::move(outcome);
        return tasks_.erase(at);
    }
    Tasks::iterator end_unasked(Tasks::iterator at, std::error_code error, const std::string& text) {
        Outcome outcome = failed(error, text);
        if (at->repeated) outcome.answer = Answer::unknown;  // the first time may have done it
        return end(at, std::move(outcome));
    }

    Next connect() {
        const Progress progress = open();
        if (progress == Progress::blocked) end_those_past(Clock::now());
        if (progress == Progress::failed)
            while (!tasks_.empty()) end_unasked(tasks_.begin(), failure().error, failure().text);
        return progress == Progress::done ? Next::go_on : Next::wait;
    }

    void end_those_past(Clock::time_point now) {
        for (auto at = tasks_.begin(); at != tasks_.end();)
            at = now >= at->caller_limit ? end_unasked(at, is_connecting() ? Errc::unreachable : Errc::timed_out, "no connection in time") : at + 1;
    }

    Next converse() {
        if (!is_asked_any() && !is_fit()) {
            close();
            return Next::go_on;
        }
        for (Task& task : tasks_)
            if (!task.asked) ask(task);
        const Progress progress = talk([this](Exchange& exchange, const Reply& reply, CommandSink& sink) {
            if (exchange.take(reply, sink)) answered(exchange);
            return false;
        });
        if (progress == Progress::failed) return break_off(Errc::unknown_outcome);
        if (tasks_.empty() && retiring_ == connections()) close();
        const auto now = Clock::now();
        const bool late = std::any_of(tasks_.begin(), tasks_.end(), [now](const Task& task) { return now >= task.limit; });
        return late ? break_off(Errc::timed_out) : Next::wait;
    }

    bool is_asked_any() const noexcept {
        return std::any_of(tasks_.begin(), tasks_.end(), [](const Task& task) { return task.asked; });
    }

    /// Whether anything that was asked over this connection has been answered.
    bool has_answered() const noexcept { return answered_ == connections(); }

    /// Whether a connection that was left idle can be used.
    bool is_fit() const {
        if (!has_answered()) return true;
        // Of several servers one that has gone is told apart from one that breaks under a question: that costs its vote.
        const bool was_just_used = !is_borrowed() && !identifies() && Clock::now() - used_ < idle_enough_to_check;
        return was_just_used || is_usable();
    }

    void ask(Task& task) {
        task.asked = true;
        task.sent = Clock::now();
        task.limit = std::min(task.caller_limit, after(task.sent, task.exchange->time_for_answers(endpoint().command_timeout)));
        task.before = bytes_written();
        start(*task.exchange);
    }

    void answered(Exchange& exchange) {
        used_ = Clock::now();
        answered_ = connections();
        const auto at = std::find_if(tasks_.begin(), tasks_.end(), [&](const Task& task) { return task.exchange == &exchange; });
        if (at == tasks_.end()) return;
        trip_ = used_ - at->sent;
        Outcome outcome{.answer = exchange.answer, .error = exchange.error, .sent = at->sent, .fencing = exchange.fencing};
        if (!exchange.words.empty()) outcome.detail = name() + ": " + exchange.words;
        // A replica by now: the address may lead to another server.
        if (outcome.error == Errc::read_only || outcome.answer == Answer::unknown) retiring_ = connections();
        end(at, std::move(outcome));
    }

    /// The answers to what was asked will not come over this connection, and its late replies must not be taken for those of later commands: it is
    /// closed. What has not been sent, or may be done twice, is asked once more over a new one if it was the connection that broke.
    Next break_off(Errc code) {
        const bool was_alive = has_answered();
        const bool again = code == Errc::unknown_outcome && !is_protocol_error() && !is_borrowed();
        const std::string text = code == Errc::timed_out ? "no answer in time" : problem();
        if (is_protocol_error()) code = Errc::protocol;
        bool spoilt = false;
        const std::size_t taken = bytes_taken();
        for (auto at = tasks_.begin(); at != tasks_.end();) {
            const bool sent = at->asked && taken > at->before;
            const bool once_more = again && (sent ? at->exchange->is_repeatable() && !at->repeated : was_alive && !at->reopened);
            if (once_more) {
                at->reopened = true;
                at->repeated = at->repeated || sent;
                at->exchange->maybe_done = at->repeated;
                at->asked = false;
                ++at;
                continue;
            }
            spoilt = spoilt || sent;
            if (sent) give_up_on(*at->exchange);
            Outcome outcome = failed(code, text);
            if (sent || at->repeated) outcome.answer = Answer::unknown;
            if (!sent && code == Errc::unknown_outcome) outcome.error = Errc::unreachable;
            at = end(at, std::move(outcome));
        }
        if (spoilt) spoil(text);
        close();
        return Next::go_on;
    }

    Tasks tasks_;
    unsigned answered_ = 0;     // the connection that the last answer came over
    Clock::time_point used_{};  // when that was
    Clock::duration trip_{};    // how long it took
    unsigned retiring_ = 0;     // the connection that is to be closed once nothing is under way
};

}  // namespace hiredlock::detail
