// How one server is asked for a lock, and what its answers mean.
#pragma once

#include <cstdint>
#include <string_view>

#include <hiredlock/dialect.hpp>
#include <hiredlock/exchange.hpp>
#include <hiredlock/fifo.hpp>

namespace hiredlock::detail {

/// Reads a key without asking for it, so that a tracked connection is told when it goes.
class Look final : public Exchange {
public:
    explicit Look(std::string_view key) : key_(key) {}
    void start(CommandSink& sink) override { sink.command({"PTTL", key_}); }
    bool take(const Reply& reply, CommandSink&) override {
        if (reply.kind != Reply::Kind::integer) return fail(reply);
        left = reply.integer;
        return decide(Answer::yes);
    }

    long long left = -1;  ///< milliseconds, -1 without an end, -2 gone

private:
    std::string_view key_;
};

/// Puts the token into the key if that is empty: SET NX, or with a fencing number a script, or where scripts are denied a transaction. Before it,
/// where an earlier token of ours may be in the key, that token's compare-and-delete; behind it, after a grant only, WAIT.
class Acquire final : public Exchange {
public:
    /// With Watch::yes a PTTL goes along: it reads the key, so that a tracked connection is told when the key goes (a refused SET does not), and
    /// says how long that may take at most.
    enum class Watch { no, yes };

    Acquire(const Claim& claim, Dialect& dialect, Watch watch) : claim_(claim), dialect_(dialect), watch_(watch) {}

    void start(CommandSink& sink) override {
        expected_.clear();
        decided_ = false;
        left = -2;
        if (!claim_.stale.empty()) {
            stale_form_ = dialect_.current();
            write_release(sink, stale_form_, Naming::whole, claim_.key, claim_.stale);
            expected_.push(Next::stale);
        }
        if (claim_.fence_key.empty()) {
            write_acquire(sink, claim_);
            expected_.push(Next::grant);
            look(sink);
        } else if (dialect_.may_use_script()) {
            say_script(sink, Naming::by_sha1);
        } else {
            say_transaction(sink);
        }
    }

    bool take(const Reply& reply, CommandSink& sink) override {
        const Next next = expected_.pop();
        decided_ = take(next, reply, sink) || decided_;
        return decided_ && expected_.empty();
    }

    void give_up(CommandSink& sink) override { write_release(sink, dialect_.current(), Naming::whole, claim_.key, claim_.token); }
    bool is_repeatable() const noexcept override { return false; }
    Clock::duration time_for_answers(Clock::duration command_timeout) const noexcept override {
        return command_timeout + claim_.acknowledged.timeout;
    }

    long long left = -2;  ///< PTTL's answer: milliseconds, -1 without an end, -2 gone

private:
    enum class Next { stale, grant, script, queued, executed, remaining, acknowledgement, undone };

    bool take(Next next, const Reply& reply, CommandSink& sink) {
        switch (next) {
            case Next::stale:  // whatever it was: the answer to the SET counts
                if (reply.is_error() && stale_form_ == dialect_.current() && is_refused_for_good(reply)) dialect_.next();
                return false;
            case Next::grant:
                if (reply.is_ok()) return granted(sink);
                return reply.kind == Reply::Kind::nil ? decide(Answer::no) : fail(reply);
            case Next::script: return take_script(reply, sink);
            case Next::queued:
                if (reply.is_error() && words.empty()) fail(reply);
                return false;
            case Next::executed: return take_transaction(reply, sink);
            case Next::remaining:
                left = reply.kind == Reply::Kind::integer ? reply.integer : -1;  // denied: nothing is known; "gone" would make the waiter spin
                return false;
            case Next::acknowledgement:
                error = acknowledged(reply, claim_.acknowledged, words);
                return error ? undo(sink) : decide(Answer::yes);
            case Next::undone:
                // Where even that was refused the token may stay in the key: the Store must go on trying.
                answer = reply.kind == Reply::Kind::integer ? Answer::failed : Answer::unknown;
                return true;
        }
        return true;
    }

    void look(CommandSink& sink) {
        if (watch_ == Watch::no) return;
        sink.command({"PTTL", claim_.key});
        expected_.push(Next::remaining);
    }

    void say_script(CommandSink& sink, Naming naming) {
        naming_ = naming;
        write_fenced_acquire(sink, naming, claim_);
        expected_.push(Next::script);
        look(sink);
    }

    void say_transaction(CommandSink& sink) {
        write_fenced_transaction(sink, claim_);
        for (const Next next : {Next::queued, Next::queued, Next::queued, Next::executed}) expected_.push(next);
        look(sink);
    }

    bool take_script(const Reply& reply, CommandSink& sink) {
        if (reply.kind == Reply::Kind::nil) return decide(Answer::no);
        if (reply.kind == Reply::Kind::integer) {
            fencing = static_cast<std::uint64_t>(reply.integer);
            return granted(sink);
        }
        if (naming_ == Naming::by_sha1 && reply.is_error() && reply.text.starts_with("NOSCRIPT")) {
            say_script(sink, Naming::whole);
            return false;
        }
        if (reply.is_error() && is_refused_for_good(reply)) {
            dialect_.deny_scripts();
            say_transaction(sink);
            return false;
        }
        return fail(reply);
    }

    /// EXEC's answer: what SET said and what INCR said.
    bool take_transaction(const Reply& reply, CommandSink& sink) {
        if (reply.kind != Reply::Kind::array || reply.elements.size() != 2) {
            if (words.empty()) fail(reply);
            return undo(sink);  // where MULTI was refused, the SET behind it was executed by itself
        }
        const Reply& set = reply.elements[0];
        const Reply& number = reply.elements[1];
        if (set.kind == Reply::Kind::nil) return decide(Answer::no);
        if (!set.is_ok()) return fail(set);
        if (number.kind == Reply::Kind::integer) {
            fencing = static_cast<std::uint64_t>(number.integer);
            return granted(sink);
        }
        fail(number);
        return undo(sink);
    }

    bool granted(CommandSink& sink) {
        if (!claim_.acknowledged.is_asked()) return decide(Answer::yes);
        write_wait(sink, claim_.acknowledged);
        expected_.push(Next::acknowledgement);
        return false;
    }

    bool undo(CommandSink& sink) {
        give_up(sink);
        expected_.push(Next::undone);
        return false;
    }

    const Claim& claim_;
    Dialect& dialect_;
    Watch watch_;
    Naming naming_ = Naming::by_sha1;
    Cas stale_form_ = Cas::script;
    bool decided_ = false;
    Fifo<Next> expected_;
};

}  // namespace hiredlock::detail
