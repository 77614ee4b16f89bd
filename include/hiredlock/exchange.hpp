// What one operation says to one server and what it makes of the answers. Decisions only: a driver moves the bytes.
#pragma once

#include <deque>
#include <string>
#include <utility>

#include <hiredlock/command.hpp>
#include <hiredlock/dialect.hpp>
#include <hiredlock/reply.hpp>
#include <hiredlock/store.hpp>

namespace hiredlock::detail {

/// One operation with one server. start() says the first commands; each answer goes to take(), which may say more; true means decided, and
/// then every command said has been answered, unless the outcome is `failed`: a driver that keeps the connection sees to that.
class Exchange {
public:
    virtual ~Exchange() = default;
    virtual void start(CommandSink& sink) = 0;
    virtual bool take(const Reply& reply, CommandSink& sink) = 0;

    Answer answer = Answer::failed;
    std::error_code error{};
    std::string words{};  ///< the server's own

protected:
    bool decide(Answer value) noexcept {
        answer = value;
        return true;
    }

    bool fail(std::error_code code, std::string_view text) {
        answer = Answer::failed;
        error = code;
        words = text;
        return true;
    }

    bool fail(const Reply& reply) {
        if (reply.is_error()) return fail(meaning(reply.text), reply.text);
        return fail(Errc::protocol, "an answer of an unexpected type");
    }
};

/// Log in, choose the database, say our name, and ask what the server can do: all in one round trip.
class Handshake final : public Exchange {
public:
    Handshake(const Endpoint& endpoint, Dialect& dialect) : endpoint_(endpoint), dialect_(dialect) {}

    void start(CommandSink& sink) override {
        dialect_.reset();
        steps_.clear();
        if (!endpoint_.password.empty()) {
            if (endpoint_.username.empty())
                say(sink, Step::login, {"AUTH", endpoint_.password});
            else
                say(sink, Step::login, {"AUTH", endpoint_.username, endpoint_.password});
        }
        if (endpoint_.database != 0) say(sink, Step::database, {"SELECT", Digits{endpoint_.database}});
        if (!endpoint_.client_name.empty()) say(sink, Step::name, {"CLIENT", "SETNAME", endpoint_.client_name});
        if (endpoint_.cas != Cas::script) say(sink, Step::abilities, {"COMMAND", "INFO", "DELEX", "DELIFEQ", "CAD", "CAS"});
    }

    bool is_needed() const noexcept {
        return !endpoint_.password.empty() || endpoint_.database != 0 || !endpoint_.client_name.empty() || endpoint_.cas != Cas::script;
    }

    bool take(const Reply& reply, CommandSink&) override {
        const Step step = steps_.front();
        steps_.pop_front();
        if (step == Step::login && !reply.is_ok()) return refused(reply, Errc::denied);
        if (step == Step::database && !reply.is_ok()) return refused(reply, Errc::invalid_argument);
        if (step == Step::name && reply.is_error() && turned_away(reply)) return fail(reply);
        if (step == Step::abilities && reply.kind == Reply::Kind::array && reply.elements.size() == 4 && !learn(reply)) return true;
        return steps_.empty() && decide(Answer::yes);  // a name that was not taken does no harm
    }

private:
    enum class Step { login, database, name, abilities };

    void say(CommandSink& sink, Step step, std::initializer_list<std::string_view> arguments) {
        sink.command(arguments);
        steps_.push_back(step);
    }

    /// The server speaks before it closes the door: protected mode, too many clients.
    static bool turned_away(const Reply& reply) noexcept {
        return reply.text.starts_with("DENIED") || meaning(reply.text) == Errc::unreachable;
    }

    /// An answer whose words say nothing more exact means that this step's own parameter was wrong.
    bool refused(const Reply& reply, Errc otherwise) {
        fail(reply);
        if (error == Errc::protocol) error = otherwise;
        return true;
    }

    bool learn(const Reply& reply) {
        const auto has = [&](std::size_t i) { return reply.elements[i].kind == Reply::Kind::array && !reply.elements[i].elements.empty(); };
        const bool delex = has(0), delifeq = has(1), tair = has(2) && has(3);
        dialect_.found(delex, delifeq, tair);
        const Cas cas = endpoint_.cas;
        const bool lacks = (cas == Cas::delex && !delex) || (cas == Cas::delifeq && !delifeq) || (cas == Cas::tair && !tair);
        if (lacks) fail(Errc::unsupported, "this server lacks the command that Endpoint::cas asks for; Cas::automatic finds one that it has");
        return !lacks;
    }

    const Endpoint& endpoint_;
    Dialect& dialect_;
    std::deque<Step> steps_;
};

class Ping final : public Exchange {
public:
    void start(CommandSink& sink) override { sink.command({"PING"}); }
    bool take(const Reply& reply, CommandSink&) override { return reply.kind == Reply::Kind::text ? decide(Answer::yes) : fail(reply); }
};

/// SET NX; before it, where an earlier token of ours may be in the key, that token's compare-and-delete.
class Acquire final : public Exchange {
public:
    Acquire(const Claim& claim, const Dialect& dialect) : claim_(claim), dialect_(dialect) {}

    void start(CommandSink& sink) override {
        stale_ = !claim_.stale.empty();
        if (stale_) write_release(sink, dialect_.current(), Naming::whole, claim_.key, claim_.stale);
        write_acquire(sink, claim_);
    }

    bool take(const Reply& reply, CommandSink&) override {
        if (std::exchange(stale_, false)) return false;  // whatever it was: the SET's answer counts
        if (reply.is_ok()) return decide(Answer::yes);
        if (reply.kind == Reply::Kind::nil) return decide(Answer::no);
        return fail(reply);
    }

private:
    const Claim& claim_;
    const Dialect& dialect_;
    bool stale_ = false;
};

/// Deletes the key, or makes it expire ttl from now, where it holds our token.
class CompareAnd final : public Exchange {
public:
    enum class Do { release, extend };

    CompareAnd(Do what, const Claim& claim, Dialect& dialect) : what_(what), claim_(claim), dialect_(dialect) {}

    void start(CommandSink& sink) override {
        first_words_.clear();
        out_of_memory_ = false;
        say(sink, dialect_.current(), Naming::by_sha1);
    }

    bool take(const Reply& reply, CommandSink& sink) override {
        if (reply.is_error()) return !mend(reply, sink) && fail_with_first(reply);
        dialect_.confirm();
        if (reply.is_integer(1) || reply.is_ok()) return decide(Answer::yes);
        if (reply.kind == Reply::Kind::integer || reply.kind == Reply::Kind::nil) return decide(Answer::no);
        return fail(reply);
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

    /// Says it in another way where there is one; each way is tried once.
    bool mend(const Reply& reply, CommandSink& sink) {
        if (form_ == Cas::script && naming_ == Naming::by_sha1 && reply.text.starts_with("NOSCRIPT")) {
            say(sink, Cas::script, Naming::whole);
            return true;
        }
        const Errc code = meaning(reply.text);
        if (code == Errc::out_of_memory && form_ != Cas::script && dialect_.may_use_script()) {
            remember(reply);  // SET and CAS need memory, the script's PEXPIRE does not
            say(sink, Cas::script, Naming::by_sha1);
            out_of_memory_ = true;
            return true;
        }
        if (out_of_memory_ || (code != Errc::denied && !is_unknown_command(reply.text))) return false;
        remember(reply);
        if (!dialect_.next()) return false;
        say(sink, dialect_.current(), Naming::by_sha1);
        return true;
    }

    void remember(const Reply& reply) {
        if (first_words_.empty()) first_words_ = reply.text;
    }

    /// Of several refusals the first is told: it is about the form that should have worked.
    bool fail_with_first(const Reply& reply) {
        if (first_words_.empty()) return fail(reply);
        return fail(meaning(first_words_), first_words_);
    }

    const Do what_;
    const Claim& claim_;
    Dialect& dialect_;
    Cas form_ = Cas::script;
    Naming naming_ = Naming::by_sha1;
    bool out_of_memory_ = false;
    std::string first_words_;
};

}  // namespace hiredlock::detail
