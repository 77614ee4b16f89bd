// What is said first on a new connection, and what it makes of the answers.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include <hiredlock/dialect.hpp>
#include <hiredlock/exchange.hpp>
#include <hiredlock/fifo.hpp>

namespace hiredlock::detail {

/// Log in, choose the database, say our name, and ask what the server can do: all in one round trip.
class Handshake final : public Exchange {
public:
    /// `redirect`: the id of the client that is to be told when a key that is read here changes; 0: none. `identify`: ask for the server's run id.
    Handshake(Endpoint endpoint, long long redirect, bool identify)
        : endpoint_(std::move(endpoint)), dialect_(endpoint_.cas), redirect_(redirect), identify_(identify) {}

    void start(CommandSink& sink) override {
        dialect_ = Dialect{endpoint_.cas};
        steps_.clear();
        if (!endpoint_.password.empty()) {
            if (endpoint_.username.empty())
                say(sink, Step::login, {"AUTH", endpoint_.password});
            else
                say(sink, Step::login, {"AUTH", endpoint_.username, endpoint_.password});
        }
        if (endpoint_.database != 0) say(sink, Step::database, {"SELECT", Digits{endpoint_.database}});
        if (!endpoint_.client_name.empty()) say(sink, Step::name, {"CLIENT", "SETNAME", endpoint_.client_name});
        // NOLOOP: what this connection itself changes is no news.
        if (redirect_ != 0) say(sink, Step::tracking, {"CLIENT", "TRACKING", "ON", "REDIRECT", Digits{redirect_}, "NOLOOP"});
        if (identify_) say(sink, Step::identity, {"INFO", "server"});
        if (endpoint_.cas != Cas::script) say(sink, Step::abilities, {"COMMAND", "INFO", "DELEX", "DELIFEQ", "CAD", "CAS"});
    }

    bool is_needed() const noexcept {
        return !endpoint_.password.empty() || endpoint_.database != 0 || !endpoint_.client_name.empty() || redirect_ != 0 || identify_ ||
               endpoint_.cas != Cas::script;
    }

    /// What was learnt of the server's commands.
    const Dialect& dialect() const noexcept { return dialect_; }
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
        dialect_.found(delex, delifeq, tair);
        const Cas cas = endpoint_.cas;
        const bool lacks = (cas == Cas::delex && !delex) || (cas == Cas::delifeq && !delifeq) || (cas == Cas::tair && !tair);
        return !lacks || !lacking();
    }

    /// Where COMMAND INFO is refused, the command that was asked for is said without arguments: if it is there it is refused for their number,
    /// which comes before the question whether ACL allows it.
    void probe(CommandSink& sink) {
        switch (endpoint_.cas) {
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

    Endpoint endpoint_;  // a copy: what began the handshake may move before it ends
    Dialect dialect_;
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

}  // namespace hiredlock::detail
