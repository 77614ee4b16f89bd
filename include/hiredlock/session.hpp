// One logged-in connection to one server, and the lock operations on it: connects when needed, waits no longer than it may, and throws away a
// connection whose answer did not come.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <hiredlock/exchange.hpp>
#include <hiredlock/wire.hpp>

namespace hiredlock::detail {

/// One thread at a time.
class Session {
public:
    explicit Session(Endpoint endpoint) : endpoint_(std::move(endpoint)), name_(endpoint_.name()), dialect_(endpoint_.cas) {}

    /// A context of the caller's, connected and logged in by its owner.
    Session(redisContext* borrowed, std::chrono::milliseconds command_timeout)
        : name_("borrowed redisContext"), wire_(borrowed), dialect_(Cas::automatic) {
        endpoint_.client_name.clear();
        endpoint_.command_timeout = command_timeout;
    }

    Outcome acquire(const Claim& claim, const Patience& patience) {
        Acquire exchange{claim, dialect_};
        Outcome outcome = attempt(exchange, patience);
        if (outcome.answer == Answer::unknown) send_behind(claim);
        close_if_broken(outcome);
        return outcome;
    }

    Outcome extend(const Claim& claim, const Patience& patience) {
        CompareAnd exchange{CompareAnd::Do::extend, claim, dialect_};
        return repeat(exchange, patience, Answer::no);
    }

    Outcome release(const Claim& claim, const Patience& patience) {
        CompareAnd exchange{CompareAnd::Do::release, claim, dialect_};
        return repeat(exchange, patience, Answer::yes);  // the first time may have deleted it
    }

    /// Sends a release whose answer nobody will read. Until an awaited answer has shown that this connection's form of it works, it waits all the
    /// same; so does a borrowed connection always, for its owner must not find our reply.
    Outcome send_release(const Claim& claim, const Patience& patience) {
        if (!is_open() || wire_.is_borrowed() || !dialect_.confirmed()) return release(claim, patience);
        const std::size_t before = wire_.bytes_taken();
        write_release(wire_, dialect_.current(), Naming::whole, claim.key, claim.token);
        wire_.ignore_replies(1);
        Progress progress = wire_.flush();
        const Patience limit = no_longer_than(patience, endpoint_.command_timeout);
        while (progress == Progress::blocked && wait(POLLOUT, limit)) progress = wire_.flush();
        used_ = Clock::now();
        if (progress == Progress::done) return {Answer::yes, {}, {}, used_};
        Outcome outcome = broken(progress == Progress::blocked ? Errc::timed_out : Errc::unknown_outcome, before);
        close_if_broken(outcome);
        return outcome;
    }

    Outcome ping(const Patience& patience) {
        Ping exchange;
        return repeat(exchange, patience, Answer::no);
    }

    /// Words of the server about commands whose answers nobody waited for.
    std::vector<std::string> take_ignored_errors() noexcept { return std::exchange(ignored_errors_, {}); }

    bool is_open() const noexcept { return open_; }
    bool is_borrowed() const noexcept { return wire_.is_borrowed(); }
    Cas cas() const noexcept { return dialect_.current(); }
    const std::string& name() const noexcept { return name_; }

    void close() noexcept {
        if (wire_.replies_to_ignore() > 0)
            ignored_errors_.push_back("the connection ended before " + std::to_string(wire_.replies_to_ignore()) + " deferred release(s) were answered");
        open_ = false;
        wire_.close();
    }

    /// In a forked child: lets go of the parent's socket without a word to the server.
    void forget() noexcept {
        open_ = false;
        wire_.close();
        ignored_errors_.clear();
    }

    /// The same where a thread of the parent may have been at work here at the fork: touches nothing but the number of the descriptor.
    void close_descriptor() noexcept { wire_.close_descriptor(); }

private:
    static constexpr std::chrono::milliseconds idle_enough_to_check{50};

    static Patience no_longer_than(const Patience& patience, std::chrono::milliseconds timeout) {
        return {std::min(patience.until, after(Clock::now(), timeout)), patience.stop};
    }

    bool wait(short events, const Patience& patience) const {
        pollfd descriptor{wire_.descriptor(), events, 0};
        return wait_ready({&descriptor, 1}, patience);
    }

    Outcome failed(std::error_code error, const std::string& text) const { return {Answer::failed, error, name_ + ": " + text, {}}; }

    /// What is to be said when the answer will not come: if the kernel took nothing, nothing was done.
    Outcome broken(Errc code, std::size_t taken_before) const {
        const std::string detail = name_ + ": " + (code == Errc::timed_out ? "no answer in time" : wire_.problem());
        if (wire_.protocol_error()) return {Answer::unknown, Errc::protocol, detail, {}};
        if (wire_.bytes_taken() != taken_before) return {Answer::unknown, code, detail, {}};
        return {Answer::failed, code == Errc::timed_out ? code : Errc::unreachable, detail, {}};
    }

    /// One exchange on an open connection.
    Outcome converse(Exchange& exchange, const Patience& patience) {
        const std::size_t before = wire_.bytes_taken();
        const Clock::time_point sent = Clock::now();
        exchange.start(wire_);
        Reply reply;
        for (;;) {
            Progress out = Progress::done;
            const bool said = wire_.has_outgoing();
            if (said) out = wire_.flush();
            if (out == Progress::failed) return broken(Errc::unknown_outcome, before);
            // What was just sent cannot be answered yet: wait first and read then, which saves a system call.
            const Progress in = said ? Progress::blocked : wire_.receive(reply);
            if (in == Progress::failed) return broken(Errc::unknown_outcome, before);
            if (in == Progress::blocked && !wait(out == Progress::blocked ? POLLIN | POLLOUT : POLLIN, patience))
                return broken(Errc::timed_out, before);
            if (in == Progress::done && exchange.take(reply, wire_)) break;
        }
        used_ = Clock::now();
        Outcome outcome{exchange.answer, exchange.error, {}, sent};
        if (!exchange.words.empty()) outcome.detail = name_ + ": " + exchange.words;
        return outcome;
    }

    /// One exchange, on a new connection if there is none. A connection that proves dead before it took a byte is replaced once.
    Outcome attempt(Exchange& exchange, const Patience& patience) {
        for (bool reused = is_open();; reused = false) {
            if (auto obstacle = open(patience)) return *std::move(obstacle);
            Outcome outcome = converse(exchange, no_longer_than(patience, endpoint_.command_timeout));
            if (!reused || outcome.answer != Answer::failed || outcome.error != Errc::unreachable || wire_.is_borrowed()) return outcome;
            close();
        }
    }

    /// For what may be done twice: where the connection broke without an answer, once more on a new one; `no_then` is what a no means then.
    Outcome repeat(Exchange& exchange, const Patience& patience, Answer no_then) {
        Outcome outcome = attempt(exchange, patience);
        const bool again = outcome.error == Errc::unknown_outcome && !wire_.is_borrowed();
        close_if_broken(outcome);
        if (!again) return outcome;
        outcome = attempt(exchange, patience);
        close_if_broken(outcome);
        if (outcome.answer == Answer::no) outcome.answer = no_then;
        if (outcome.answer == Answer::failed) outcome.answer = Answer::unknown;  // the first time may have done it
        return outcome;
    }

    /// The compare-and-delete behind a SET that was not answered, on the same socket: whenever the server gets to the one, it gets to the other.
    void send_behind(const Claim& claim) {
        write_release(wire_, dialect_.current(), Naming::whole, claim.key, claim.token);
        wire_.flush();
    }

    /// After an answer that did not come (and READONLY, for the address may lead to the new master by now), this connection has no next command.
    void close_if_broken(const Outcome& outcome) {
        for (auto& words : wire_.take_ignored_errors()) ignored_errors_.push_back(std::move(words));
        if (outcome.answer == Answer::unknown) {
            wire_.spoil(outcome.detail);
        } else if (outcome.answer != Answer::failed ||
                   (outcome.error != Errc::read_only && outcome.error != Errc::unreachable && outcome.error != Errc::timed_out)) {
            return;
        }
        close();
    }

    /// Makes sure of a connection that is logged in; tells why there is none.
    std::optional<Outcome> open(const Patience& patience) {
        if (wire_.is_borrowed()) {
            if (const auto obstacle = wire_.obstacle()) return failed(obstacle->code, obstacle->text);
            wire_.begin_borrowed();
        }
        if (open_ && (Clock::now() - used_ < idle_enough_to_check || !wire_.is_stale())) return std::nullopt;
        if (open_) close();
        const Patience limit = no_longer_than(patience, endpoint_.connect_timeout);
        if (!wire_.is_borrowed() && !connect(limit)) {
            const std::string why = wire_.problem();
            close();
            return failed(Errc::unreachable, why);
        }
        Handshake handshake{endpoint_, dialect_};
        if (handshake.is_needed()) {
            Outcome outcome = converse(handshake, limit);
            if (outcome.answer != Answer::yes) {
                if (outcome.answer == Answer::unknown) {
                    wire_.spoil(outcome.detail);
                    outcome.answer = Answer::failed;  // of the operation itself nothing was sent
                    if (outcome.error == Errc::unknown_outcome) outcome.error = Errc::unreachable;
                }
                close();
                return outcome;
            }
        }
        open_ = true;
        return std::nullopt;
    }

    /// Each address that the name has gets its share of the time.
    bool connect(const Patience& limit) {
        Progress progress = wire_.open(endpoint_);
        while (progress == Progress::blocked) {
            const auto left = limit.until - Clock::now();
            const Patience share{Clock::now() + left / static_cast<long>(wire_.addresses_left() + 1), limit.stop};
            progress = wait(POLLOUT, share) ? wire_.finish_open() : wire_.skip_address();
        }
        return progress == Progress::done;
    }

    Endpoint endpoint_;
    std::string name_;
    Wire wire_;
    Dialect dialect_;
    bool open_ = false;
    Clock::time_point used_{};
    std::vector<std::string> ignored_errors_;
};

}  // namespace hiredlock::detail
