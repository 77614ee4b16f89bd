// One logged-in connection to one server and the exchange that is under way on it, as a state machine that never blocks: connects when needed,
// keeps the time limits, and throws away a connection whose answer did not come.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <hiredlock/exchange.hpp>
#include <hiredlock/wire.hpp>

namespace hiredlock::detail {

/// One thread at a time. A driver calls begin(), then step() whenever descriptor() is ready for events() or wake() has come, until that gives
/// an outcome. run() is the driver for one session.
class Session {
public:
    explicit Session(Endpoint endpoint) : endpoint_(std::move(endpoint)), name_(endpoint_.name()), dialect_(endpoint_.cas) {}

    /// A context of the caller's, connected and logged in by its owner.
    Session(redisContext* borrowed, std::chrono::milliseconds command_timeout)
        : name_("borrowed redisContext"), wire_(borrowed), dialect_(Cas::automatic) {
        endpoint_.client_name.clear();
        endpoint_.command_timeout = command_timeout;
    }

    /// Begins an exchange, which must outlive it. `limit` is the caller's; the endpoint's time limits apply besides.
    void begin(Exchange& exchange, Clock::time_point limit) {
        exchange_ = &exchange;
        caller_limit_ = limit;
        asked_ = repeated_ = reopened_ = false;
    }

    /// Goes on as far as it can without waiting; the outcome once there is one.
    std::optional<Outcome> step() {
        for (;;) {
            std::optional<Outcome> outcome;
            Next next = Next::wait;
            switch (phase_) {
                case Phase::closed: next = open(outcome); break;
                case Phase::connecting: next = connected(outcome); break;
                case Phase::greeting: next = greet(outcome); break;
                case Phase::open: next = ask(outcome); break;
            }
            if (outcome) return conclude(*std::move(outcome));
            if (next == Next::wait) return std::nullopt;
        }
    }

    /// The caller waits no longer: ends the exchange as step() does when a time limit passes.
    Outcome give_up() { return conclude(no_answer(Errc::timed_out)); }

    int descriptor() const noexcept { return wire_.descriptor(); }
    short events() const noexcept {
        if (phase_ == Phase::connecting) return POLLOUT;
        return wire_.has_outgoing() ? POLLIN | POLLOUT : POLLIN;
    }
    Clock::time_point wake() const noexcept { return phase_ == Phase::connecting ? std::min(address_limit_, limit_) : limit_; }
    bool is_busy() const noexcept { return exchange_ != nullptr; }

    /// Begins an exchange and waits for its end.
    Outcome run(Exchange& exchange, const Patience& patience) {
        begin(exchange, patience.until);
        for (;;) {
            if (auto outcome = step()) return *std::move(outcome);
            pollfd descriptor{this->descriptor(), events(), 0};
            wait_ready({&descriptor, 1}, {wake(), patience.stop});
            if (patience.stop.stop_requested()) return give_up();
        }
    }

    Outcome acquire(const Claim& claim, const Patience& patience) {
        const Claim limited = within(claim, patience);
        Acquire exchange{limited, dialect_};
        return run(exchange, patience);
    }
    Outcome extend(const Claim& claim, const Patience& patience) {
        const Claim limited = within(claim, patience);
        CompareAnd exchange{CompareAnd::Do::extend, limited, dialect_};
        return run(exchange, patience);
    }
    Outcome release(const Claim& claim, const Patience& patience) {
        CompareAnd exchange{CompareAnd::Do::release, claim, dialect_};
        return run(exchange, patience);
    }
    Outcome ping(const Patience& patience) {
        Ping exchange;
        return run(exchange, patience);
    }

    /// Sends a release whose answer nobody will read. Until an awaited answer has shown that this connection's form of it works, it waits all the
    /// same; so does a borrowed connection always, for its owner must not find our reply.
    Outcome send_release(const Claim& claim, const Patience& patience) {
        if (phase_ != Phase::open || wire_.is_borrowed() || !dialect_.confirmed() || wire_.has_outgoing()) return release(claim, patience);
        sent_ = Clock::now();
        taken_before_ = wire_.bytes_taken();
        asked_ = true;
        write_release(wire_, dialect_.current(), Naming::whole, claim.key, claim.token);
        wire_.ignore_replies(1);
        Progress progress = wire_.flush();
        const Patience limit{std::min(patience.until, after(sent_, endpoint_.command_timeout)), patience.stop};
        pollfd descriptor{this->descriptor(), POLLOUT, 0};
        while (progress == Progress::blocked && wait_ready({&descriptor, 1}, limit)) progress = wire_.flush();
        used_ = sent_;
        if (progress == Progress::done) return {.answer = Answer::yes, .sent = sent_};
        return conclude(no_answer(progress == Progress::blocked ? Errc::timed_out : Errc::unknown_outcome));
    }

    /// What the server said to commands whose answers nobody waited for, where that was no success.
    std::vector<std::string> take_ignored_errors() noexcept { return std::exchange(ignored_errors_, {}); }

    bool is_borrowed() const noexcept { return wire_.is_borrowed(); }
    Dialect& dialect() noexcept { return dialect_; }
    const Endpoint& endpoint() const noexcept { return endpoint_; }
    const std::string& name() const noexcept { return name_; }

    void close() noexcept {
        if (wire_.replies_to_ignore() > 0) ignored_errors_.emplace_back("the connection ended before a deferred release was answered");
        phase_ = Phase::closed;
        used_ = {};
        wire_.close();
    }

    /// In a forked child: lets go of the parent's socket without a word to the server.
    void forget() noexcept {
        phase_ = Phase::closed;
        used_ = {};
        wire_.close();
        ignored_errors_.clear();
    }

    /// The same where a thread of the parent may have been at work here at the fork: touches nothing but the number of the descriptor.
    void close_descriptor() noexcept { wire_.close_descriptor(); }

private:
    enum class Phase { closed, connecting, greeting, open };
    enum class Next { go_on, wait };

    static constexpr std::chrono::milliseconds idle_enough_to_check{50};

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

    Outcome failed(std::error_code error, const std::string& text) const {
        return {.answer = Answer::failed, .error = error, .detail = name_ + ": " + text};
    }

    /// What is to be said when an answer will not come: where the kernel took nothing of the operation, it was not done.
    Outcome no_answer(Errc code) const {
        Outcome outcome = failed(code, code == Errc::timed_out ? "no answer in time" : wire_.problem());
        const bool sent = repeated_ || (phase_ == Phase::open && asked_ && wire_.bytes_taken() != taken_before_);
        if (sent) outcome.answer = Answer::unknown;
        if (wire_.protocol_error()) outcome.error = Errc::protocol;
        else if (!sent && (code == Errc::unknown_outcome || phase_ == Phase::connecting)) outcome.error = Errc::unreachable;
        return outcome;
    }

    /// The end of an exchange. After an answer that did not come, this connection has no next command: its late reply would be taken for that
    /// command's own. After READONLY neither, for the address may lead to another server by now.
    Outcome conclude(Outcome outcome) {
        const bool lost_step = phase_ != Phase::open || (exchange_ == nullptr && outcome.answer != Answer::yes);
        if (outcome.answer == Answer::unknown) {
            if (exchange_ != nullptr && phase_ == Phase::open) {
                exchange_->give_up(wire_);
                wire_.flush();
            }
            wire_.spoil(outcome.detail);
        } else if (phase_ == Phase::greeting) {
            wire_.spoil(outcome.detail);
        }
        for (auto& words : wire_.take_ignored_errors()) ignored_errors_.push_back(std::move(words));
        if (lost_step || outcome.answer == Answer::unknown || outcome.error == Errc::read_only || outcome.error == Errc::timed_out ||
            outcome.error == Errc::unreachable)
            close();
        exchange_ = nullptr;
        return outcome;
    }

    Next open(std::optional<Outcome>& outcome) {
        limit_ = std::min(caller_limit_, after(Clock::now(), endpoint_.connect_timeout));
        if (wire_.is_borrowed()) {
            if (const auto obstacle = wire_.obstacle()) {
                outcome = failed(obstacle->code, obstacle->text);
                return Next::wait;
            }
            wire_.begin_borrowed();
            return begin_greeting();
        }
        return opening(wire_.open(endpoint_), outcome);
    }

    Next opening(Progress progress, std::optional<Outcome>& outcome) {
        phase_ = Phase::connecting;
        if (progress == Progress::done) return begin_greeting();
        if (progress == Progress::failed) {
            outcome = no_answer(Errc::unknown_outcome);
            return Next::wait;
        }
        // Each address that the name has gets its share of the time.
        const auto now = Clock::now();
        address_limit_ = now + (limit_ - now) / static_cast<long>(wire_.addresses_left() + 1);
        return Next::wait;
    }

    Next connected(std::optional<Outcome>& outcome) {
        pollfd descriptor{this->descriptor(), POLLOUT, 0};
        if (poll_once({&descriptor, 1}, Clock::time_point{})) return opening(wire_.finish_open(), outcome);
        if (Clock::now() < wake()) return Next::wait;
        return opening(wire_.skip_address(), outcome);
    }

    Next begin_greeting() {
        greeting_.emplace(endpoint_, dialect_);
        phase_ = Phase::greeting;
        if (!greeting_->is_needed()) {
            phase_ = Phase::open;
            return Next::go_on;
        }
        greeting_->start(wire_);
        return Next::go_on;
    }

    Next greet(std::optional<Outcome>& outcome) {
        const auto progress = talk(*greeting_);
        if (progress == Progress::blocked) return in_time(outcome);
        if (progress == Progress::failed) {
            outcome = no_answer(Errc::unknown_outcome);
        } else if (greeting_->answer != Answer::yes) {
            outcome = failed(greeting_->error, greeting_->words);
        } else {
            phase_ = Phase::open;
        }
        return Next::go_on;
    }

    Next ask(std::optional<Outcome>& outcome) {
        const auto now = Clock::now();
        if (!asked_) {
            const bool idle = now - used_ >= idle_enough_to_check && !wire_.is_borrowed();
            if (used_ != Clock::time_point{} && ((idle && wire_.is_stale()) || (wire_.is_borrowed() && wire_.obstacle()))) {
                close();
                return Next::go_on;
            }
            asked_ = true;
            sent_ = now;
            limit_ = std::min(caller_limit_, after(now, exchange_->time_for_answers(endpoint_.command_timeout)));
            taken_before_ = wire_.bytes_taken();
            exchange_->start(wire_);
        }
        const auto progress = talk(*exchange_);
        if (progress == Progress::blocked) return in_time(outcome);
        if (progress == Progress::failed) return broke(outcome);
        used_ = Clock::now();
        outcome = Outcome{exchange_->answer, exchange_->error, {}, sent_, exchange_->fencing};
        if (!exchange_->words.empty()) outcome->detail = name_ + ": " + exchange_->words;
        return Next::wait;
    }

    /// The connection broke under an exchange. If it was an old one that took nothing, or if doing it twice does no harm, once more on a new one.
    Next broke(std::optional<Outcome>& outcome) {
        outcome = no_answer(Errc::unknown_outcome);
        const bool sent = outcome->answer == Answer::unknown;
        const bool again = sent ? exchange_->is_repeatable() && !repeated_ && outcome->error == Errc::unknown_outcome : used_ != Clock::time_point{} && !reopened_;
        if (!again || wire_.is_borrowed()) return Next::wait;
        repeated_ = sent || repeated_;
        exchange_->maybe_done = repeated_;
        reopened_ = true;
        asked_ = false;
        outcome.reset();
        close();
        return Next::go_on;
    }

    Next in_time(std::optional<Outcome>& outcome) {
        if (Clock::now() >= limit_) outcome = no_answer(Errc::timed_out);
        return Next::wait;
    }

    /// Sends what is to be sent and hands out what has come, until the exchange is decided (done) or there is nothing more to do for now.
    Progress talk(Exchange& exchange) {
        for (;;) {
            if (wire_.has_outgoing()) {
                const Progress out = wire_.flush();
                if (out != Progress::blocked) return out == Progress::done ? Progress::blocked : out;  // not answered yet: save a system call
            }
            Reply reply;
            const Progress in = wire_.receive(reply);
            if (in != Progress::done) return in;
            if (exchange.take(reply, wire_)) return Progress::done;
        }
    }

    Endpoint endpoint_;
    std::string name_;
    Wire wire_;
    Dialect dialect_;

    Phase phase_ = Phase::closed;
    std::optional<Handshake> greeting_;
    Clock::time_point used_{};           // when the last answer came; 0 on a connection that has not answered yet
    std::vector<std::string> ignored_errors_;

    // The exchange that is under way.
    Exchange* exchange_ = nullptr;
    Clock::time_point caller_limit_{};
    Clock::time_point limit_{};          // of what is being waited for now
    Clock::time_point address_limit_{};
    Clock::time_point sent_{};
    std::size_t taken_before_ = 0;
    bool asked_ = false;
    bool repeated_ = false;
    bool reopened_ = false;
};

}  // namespace hiredlock::detail
