// What one operation says to one server and what it makes of the answers. Decisions only: a driver moves the bytes.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include <hiredlock/command.hpp>
#include <hiredlock/dialect.hpp>
#include <hiredlock/fifo.hpp>
#include <hiredlock/reply.hpp>
#include <hiredlock/store.hpp>

namespace hiredlock::detail {

/// One operation with one server. start() says the first commands; each answer goes to take(), which may say more; true means decided and every
/// command answered (a Handshake that failed excepted: its connection is closed). start() may come again, after a connection broke.
class Exchange {
public:
    virtual ~Exchange() = default;
    virtual void start(CommandSink& sink) = 0;
    virtual bool take(const Reply& reply, CommandSink& sink) = 0;

    /// The answer will not come: what is to be said behind the commands before the connection is closed.
    virtual void give_up(CommandSink&) {}
    /// True where doing it twice is as good as once, so that it may be started again on another connection.
    virtual bool is_repeatable() const noexcept { return true; }
    /// How long to wait for all answers, given the endpoint's command timeout.
    virtual Clock::duration time_for_answers(Clock::duration command_timeout) const noexcept { return command_timeout; }

    Answer answer = Answer::failed;
    std::error_code error{};
    std::string words{};  ///< the server's own
    std::uint64_t fencing = 0;

    // Set by the Session that conducts it.
    bool maybe_done = false;           ///< an earlier start was sent and not answered
    std::optional<Outcome> ended{};    ///< how it ended, once it has

protected:
    bool decide(Answer value) noexcept {
        answer = value;
        return true;
    }

    bool fail(std::error_code code, std::string_view text) {
        answer = Answer::failed;
        error = code;
        words = without_arguments(text);
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
    /// `redirect`: the id of the client that is to be told when a key that is read here changes; 0: none. `identify`: ask for the server's run id.
    Handshake(const Endpoint& endpoint, Dialect& dialect, long long redirect, bool identify) : endpoint_(&endpoint), dialect_(&dialect), redirect_(redirect), identify_(identify) {}

    void start(CommandSink& sink) override {
        dialect_->reset();
        steps_.clear();
        if (!endpoint_->password.empty()) {
            if (endpoint_->username.empty())
                say(sink, Step::login, {"AUTH", endpoint_->password});
            else
                say(sink, Step::login, {"AUTH", endpoint_->username, endpoint_->password});
        }
        if (endpoint_->database != 0) say(sink, Step::database, {"SELECT", Digits{endpoint_->database}});
        if (!endpoint_->client_name.empty()) say(sink, Step::name, {"CLIENT", "SETNAME", endpoint_->client_name});
        // NOLOOP: what this connection itself changes is no news.
        if (redirect_ != 0) say(sink, Step::tracking, {"CLIENT", "TRACKING", "ON", "REDIRECT", Digits{redirect_}, "NOLOOP"});
        if (identify_) say(sink, Step::identity, {"INFO", "server"});
        if (endpoint_->cas != Cas::script) say(sink, Step::abilities, {"COMMAND", "INFO", "DELEX", "DELIFEQ", "CAD", "CAS"});
    }

    bool is_needed() const noexcept {
        return !endpoint_->password.empty() || endpoint_->database != 0 || !endpoint_->client_name.empty() || redirect_ != 0 || identify_ ||
               endpoint_->cas != Cas::script;
    }

    bool is_tracking() const noexcept { return tracking_; }
    /// Not denied: the client that was to be told has gone.
    bool is_redirect_gone() const noexcept { return redirect_gone_; }
    const std::string& run_id() const noexcept { return run_id_; }

    bool take(const Reply& reply, CommandSink& sink) override {
        const Step step = steps_.pop();
        if (step == Step::login && !reply.is_ok()) return refused(reply, Errc::denied);
        if (step == Step::database && !reply.is_ok()) return refused(reply, Errc::invalid_argument);
        if (step == Step::name && reply.is_error() && turned_away(reply)) return fail(reply);
        if (step == Step::tracking) {
            tracking_ = reply.is_ok();
            redirect_gone_ = reply.is_error() && reply.text.starts_with("ERR The client ID");
        }
        if (step == Step::identity && reply.kind == Reply::Kind::text) run_id_ = field(reply.text, "run_id:");
        if (step == Step::abilities) {
            const bool told = reply.kind == Reply::Kind::array && reply.elements.size() == 4;
            if (told && !learn(reply)) return true;
            if (!told) probe(sink);
        }
        if (step == Step::probe && is_unknown_command(reply.text)) return lacking();
        return steps_.empty() && decide(Answer::yes);  // a name that was not taken does no harm
    }

private:
    enum class Step { login, database, name, tracking, identity, abilities, probe };

    void say(CommandSink& sink, Step step, std::initializer_list<std::string_view> arguments) {
        sink.command(arguments);
        steps_.push(step);
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

    static std::string field(std::string_view info, std::string_view name) {
        const auto at = info.find(name);
        if (at == std::string_view::npos) return {};
        info.remove_prefix(at + name.size());
        return std::string{info.substr(0, info.find_first_of("\r\n"))};
    }

    bool learn(const Reply& reply) {
        const auto has = [&](std::size_t i) { return reply.elements[i].kind == Reply::Kind::array && !reply.elements[i].elements.empty(); };
        const bool delex = has(0), delifeq = has(1), tair = has(2) && has(3);
        dialect_->found(delex, delifeq, tair);
        const Cas cas = endpoint_->cas;
        const bool lacks = (cas == Cas::delex && !delex) || (cas == Cas::delifeq && !delifeq) || (cas == Cas::tair && !tair);
        return !lacks || !lacking();
    }

    /// Where COMMAND INFO is refused, the command that was asked for is said without arguments: if it is there it is refused for their number,
    /// which comes before the question whether ACL allows it.
    void probe(CommandSink& sink) {
        switch (endpoint_->cas) {
            case Cas::delex: return say(sink, Step::probe, {"DELEX"});
            case Cas::delifeq: return say(sink, Step::probe, {"DELIFEQ"});
            case Cas::tair: return say(sink, Step::probe, {"CAD"}), say(sink, Step::probe, {"CAS"});
            case Cas::script:
            case Cas::automatic: break;
        }
    }

    bool lacking() {
        return fail(Errc::unsupported, "this server lacks the command that Endpoint::cas asks for; Cas::automatic finds one that it has");
    }

    const Endpoint* endpoint_;
    Dialect* dialect_;
    long long redirect_;
    bool identify_;
    bool tracking_ = false;
    bool redirect_gone_ = false;
    std::string run_id_;
    Fifo<Step> steps_;
};

/// Makes a connection the one that invalidation messages come to.
class Subscribe final : public Exchange {
public:
    static constexpr std::string_view channel = "__redis__:invalidate";

    void start(CommandSink& sink) override {
        client_id = 0;
        answered_ = false;
        sink.command({"CLIENT", "ID"});
        sink.command({"SUBSCRIBE", channel});
    }

    bool take(const Reply& reply, CommandSink&) override {
        if (!std::exchange(answered_, true)) {
            if (reply.kind == Reply::Kind::integer)
                client_id = reply.integer;
            else
                fail(reply);
            return false;  // SUBSCRIBE's answer is still to come
        }
        if (client_id == 0) return true;
        return reply.kind == Reply::Kind::array ? decide(Answer::yes) : fail(reply);
    }

    long long client_id = 0;

private:
    bool answered_ = false;  // CLIENT ID
};

class Ping final : public Exchange {
public:
    void start(CommandSink& sink) override { sink.command({"PING"}); }
    bool take(const Reply& reply, CommandSink&) override { return reply.kind == Reply::Kind::text ? decide(Answer::yes) : fail(reply); }
};

/// What WAIT or WAITAOF answered: {} where enough have the write, else why it does not count.
inline std::error_code acknowledged(const Reply& reply, const Acknowledgement& asked, std::string& words) {
    if (reply.is_error()) {
        words = without_arguments(reply.text);
        return meaning(reply.text);
    }
    const bool pair = asked.on_disk && reply.kind == Reply::Kind::array && reply.elements.size() == 2 &&
                      reply.elements[0].kind == Reply::Kind::integer && reply.elements[1].kind == Reply::Kind::integer;
    if (!pair && (asked.on_disk || reply.kind != Reply::Kind::integer)) {
        words = "an answer of an unexpected type";
        return Errc::protocol;
    }
    const long long local = pair ? reply.elements[0].integer : asked.local;
    const long long replicas = pair ? reply.elements[1].integer : reply.integer;
    if (local >= asked.local && replicas >= asked.replicas) return {};
    words = std::to_string(replicas) + " of " + std::to_string(asked.replicas) + " replicas acknowledged in time";
    if (local < asked.local) words += ", the server's own disk did not";
    return Errc::not_replicated;
}

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
            write_release(sink, dialect_.current(), Naming::whole, claim_.key, claim_.stale);
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
            case Next::stale: return false;  // whatever it was: the answer to the SET counts
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
        if (reply.is_error() && (meaning(reply.text) == Errc::denied || is_unknown_command(reply.text))) {
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
    bool decided_ = false;
    Fifo<Next> expected_;
};

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
        if (what_ == Do::release) dialect_.confirm();  // an extend shows nothing: SET ... IFEQ belongs to more than one form
        if (reply.is_integer(1) || reply.is_ok()) {
            if (what_ == Do::release || !claim_.acknowledged.is_asked()) return decide(Answer::yes);
            write_wait(sink, claim_.acknowledged);
            waiting_ = true;
            return false;
        }
        if (reply.kind != Reply::Kind::integer && reply.kind != Reply::Kind::nil) return fail(reply);
        return decide(what_ == Do::release && maybe_done ? Answer::yes : Answer::no);
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
        const Errc code = meaning(reply.text);
        if (code == Errc::out_of_memory && form_ != Cas::script && dialect_.may_use_script()) {
            remember(reply);  // SET IFEQ, CAS and CAD are refused then; the script is not
            out_of_memory_ = true;
            say(sink, Cas::script, Naming::by_sha1);
            return true;
        }
        if (out_of_memory_ || (code != Errc::denied && !is_unknown_command(reply.text))) return false;
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
