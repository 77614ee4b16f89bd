// How one server is asked to release or to extend a lock that holds our token, in whichever form of compare-and-delete it has.
#pragma once

#include <cstddef>
#include <string>

#include <hiredlock/dialect.hpp>
#include <hiredlock/exchange.hpp>

namespace hiredlock::detail {

/// Deletes the key, or makes it expire ttl from now, where it holds our token. Behind an extension WAIT, where that was asked for.
class CompareAnd final : public Exchange {
public:
    enum class Do { release, extend };

    CompareAnd(Do what, const Claim& claim, Dialect& dialect, Naming first = Naming::by_sha1)
        : what_(what), claim_(claim), dialect_(dialect), first_(first) {}

    void start(CommandSink& sink) override {
        first_words_.clear();
        waiting_ = out_of_memory_ = false;
        tried_ = 0;
        say(sink, dialect_.current(), first_);
    }

    bool take(const Reply& reply, CommandSink& sink) override {
        if (waiting_) {
            error = acknowledged(reply, claim_.acknowledged, words);
            return decide(error ? Answer::failed : Answer::yes);
        }
        if (reply.is_error()) return !mend(reply, sink) && fail_with_first(reply);
        // As a release is posted; an extend shows nothing: SET ... IFEQ belongs to more than one form.
        if (what_ == Do::release && form_ == dialect_.current() && (form_ != Cas::script || naming_ == Naming::whole)) dialect_.confirm();
        if (reply.is_integer(1) || reply.is_ok()) {
            if (what_ == Do::release || !claim_.acknowledged.is_asked()) return decide(Answer::yes);
            write_wait(sink, claim_.acknowledged);
            waiting_ = true;
            return false;
        }
        if (reply.kind != Reply::Kind::integer && reply.kind != Reply::Kind::nil) return fail(reply);
        return decide(what_ == Do::release && maybe_done ? Answer::yes : Answer::no);
    }

    /// A server that has forgotten the script will not tell anyone any more.
    void give_up(CommandSink& sink) override {
        if (what_ == Do::release && form_ == Cas::script && naming_ == Naming::by_sha1) say(sink, form_, Naming::whole);
    }
    Clock::duration time_for_answers(Clock::duration command_timeout) const noexcept override {
        return command_timeout + claim_.acknowledged.timeout;
    }

private:
    void say(CommandSink& sink, Cas form, Naming naming) {
        form_ = form;
        naming_ = naming;
        if (what_ == Do::release)
            write_release(sink, form, naming, claim_.key, claim_.token);
        else
            write_extend(sink, form, naming, claim_);
    }

    /// Says it in another way where there is one.
    bool mend(const Reply& reply, CommandSink& sink) {
        if (form_ == Cas::script && naming_ == Naming::by_sha1 && reply.text.starts_with("NOSCRIPT")) {
            say(sink, Cas::script, Naming::whole);
            return true;
        }
        if (meaning(reply.text) == Errc::out_of_memory && form_ != Cas::script && dialect_.may_use_script()) {
            remember(reply);  // SET IFEQ, CAS and CAD are refused then; the script is not
            out_of_memory_ = true;
            say(sink, Cas::script, Naming::by_sha1);
            return true;
        }
        if (out_of_memory_ || !is_refused_for_good(reply)) return false;
        remember(reply);
        if (form_ == dialect_.current()) dialect_.next();  // else another exchange on this connection has gone on already
        if (++tried_ >= dialect_.size()) return false;
        say(sink, dialect_.current(), first_);
        return true;
    }

    void remember(const Reply& reply) {
        if (first_words_.empty() || (is_unknown_command(first_words_) && !is_unknown_command(reply.text))) first_words_ = reply.text;
    }

    /// Of several refusals the first is told: it is about the form that should have worked. That a command is unknown tells less than any other.
    bool fail_with_first(const Reply& reply) {
        if (first_words_.empty()) return fail(reply);
        return fail(meaning(first_words_), first_words_);
    }

    const Do what_;
    const Claim& claim_;
    Dialect& dialect_;
    const Naming first_;  // whole where nobody may be there to read a NOSCRIPT
    Cas form_ = Cas::script;
    Naming naming_ = Naming::by_sha1;
    std::size_t tried_ = 0;  // forms that were refused
    bool waiting_ = false;
    bool out_of_memory_ = false;
    std::string first_words_;
};

}  // namespace hiredlock::detail
