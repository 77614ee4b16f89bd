// One connection to one server, from nothing to logged in, as a state machine that never blocks; and whose turn each reply on it is.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <hiredlock/compare_and.hpp>
#include <hiredlock/fifo.hpp>
#include <hiredlock/handshake.hpp>
#include <hiredlock/wire.hpp>

namespace hiredlock::detail {

/// One thread at a time. What a Session conducts its exchanges on.
class Link {
public:
    explicit Link(Endpoint endpoint) : endpoint_(std::move(endpoint)), name_(endpoint_.name()), dialect_(endpoint_.cas) {}

    /// A context of the caller's, connected and logged in by its owner.
    Link(redisContext* borrowed, std::chrono::milliseconds command_timeout)
        : name_("borrowed redisContext"), wire_(borrowed), dialect_(Cas::automatic) {
        endpoint_.client_name.clear();
        endpoint_.command_timeout = command_timeout;
    }

    const Endpoint& endpoint() const noexcept { return endpoint_; }
    const std::string& name() const noexcept { return name_; }
    Dialect& dialect() noexcept { return dialect_; }
    bool is_borrowed() const noexcept { return wire_.is_borrowed(); }

    bool is_greeted() const noexcept { return phase_ == Phase::open; }
    /// How many connections there have been: another number, another connection.
    unsigned connections() const noexcept { return connections_; }

    int descriptor() const noexcept { return wire_.descriptor(); }
    short events() const noexcept {
        if (phase_ == Phase::connecting) return POLLOUT;
        return wire_.has_outgoing() ? POLLIN | POLLOUT : POLLIN;
    }

    /// From the next connection on, run_id() is asked for.
    void identify() noexcept { identifies_ = true; }
    /// What tells this server from every other, empty where that is not known.
    const std::string& run_id() const noexcept { return run_id_; }

    /// From the next connection on, the client with this id is told of changes of keys that are read here.
    void track_for(long long client_id) noexcept {
        if (redirect_ == client_id) return;
        redirect_ = client_id;
        close();
    }
    bool is_tracking() const noexcept { return tracking_; }
    /// Whether that client had gone when this connection was made.
    bool is_redirect_gone() const noexcept { return redirect_gone_; }

    /// On a connection that is subscribed: `done` with a message, `blocked` without one, `failed` where it is not open (any more).
    Progress next_message(Reply& message) {
        if (!is_greeted()) return Progress::failed;
        const Progress progress = wire_.receive(message);
        if (progress == Progress::failed) close();
        return progress;
    }
    /// On a connection that is subscribed: says a command whose answer comes as a message.
    void post(std::initializer_list<std::string_view> arguments) {
        wire_.command(arguments);
        wire_.flush();
    }

    /// What went wrong with commands whose answers nobody waited for.
    std::vector<std::string> take_ignored_errors() noexcept { return std::exchange(ignored_errors_, {}); }

    void close() noexcept {
        if (expected_.contains(nullptr))
            ignored_errors_.emplace_back("the connection ended before a deferred release was answered");
        forget_connection();
    }

    /// In a forked child: lets go of the parent's socket. A thread of the parent may have been at work here at the fork: nothing but the number of the
    /// descriptor is touched.
    void close_inherited() noexcept { wire_.close_inherited(); }

protected:
    bool is_connecting() const noexcept { return phase_ == Phase::connecting; }
    /// When open() wants to be called again though nothing has come.
    Clock::time_point opening_wake() const noexcept {
        return phase_ == Phase::connecting || phase_ == Phase::greeting ? std::min(address_limit_, opening_limit_) : Clock::time_point::max();
    }

    /// Opens it, or goes on with that, as far as it can without waiting: `done` once it is open. `failed`: it is closed, and failure() says why.
    Progress open() {
        Progress progress = Progress::done;
        while (progress == Progress::done && !is_greeted()) {
            switch (phase_) {
                case Phase::closed: progress = begin(); break;
                case Phase::connecting: progress = connect(); break;
                case Phase::greeting: progress = greet(); break;
                case Phase::open: break;
            }
        }
        if (progress == Progress::failed) close();
        return progress;
    }
    struct Failure {
        std::error_code error{};
        std::string text{};
    };
    const Failure& failure() const noexcept { return failure_; }

    /// What an earlier caller left half open goes on if it has got further meanwhile. If it failed or is too late, whoever comes begins anew.
    void go_on_opening() {
        if (phase_ != Phase::connecting && phase_ != Phase::greeting) return;
        const bool is_late = Clock::now() >= opening_limit_;
        pollfd descriptor{this->descriptor(), events(), 0};
        if (!poll_once({&descriptor, 1}, Clock::time_point{})) return is_late ? close() : void();
        if (is_late) opening_limit_ = address_limit_ = after(Clock::now(), endpoint_.connect_timeout);
        open();
    }

    /// Writes the first commands of an exchange.
    void start(Exchange& exchange) {
        Scribe scribe{*this, &exchange};
        exchange.start(scribe);
    }

    /// Sends what is to be sent and hands each answer to `take`, until that says stop (done), the connection fails, or there is nothing more to do now.
    template <class Take>
    Progress talk(Take take) {
        for (;;) {
            if (wire_.has_outgoing()) {
                const Progress out = wire_.flush();
                if (out == Progress::failed) return out;
                if (out == Progress::done) return Progress::blocked;  // it cannot be answered yet: save a system call
            }
            if (expected_.empty()) return Progress::blocked;  // nor is there anything to read
            Reply reply;
            const Progress in = wire_.receive(reply);
            if (in != Progress::done) return in;
            Exchange* const exchange = expected_.pop();
            if (exchange == nullptr) {
                if (reply.is_error()) {
                    ignored_errors_.emplace_back(without_arguments(reply.text));
                    dialect_.doubt();
                }
                continue;
            }
            Scribe scribe{*this, exchange};
            if (take(*exchange, reply, scribe)) return Progress::done;
        }
    }

    /// Where the connection stands open and has been idle: whether it can still be used.
    bool is_usable() const { return is_borrowed() ? !wire_.obstacle() : !wire_.is_stale(!expected_.empty()); }
    /// One of several servers, each of which has a vote.
    bool identifies() const noexcept { return identifies_; }

    /// Whether an answer is out and wait_for_reply() can wait for it, in the kernel and for the command timeout.
    bool may_wait_for_reply() const noexcept { return is_greeted() && wire_.may_wait() && !wire_.has_outgoing() && !expected_.empty(); }
    void wait_for_reply() { wire_.wait_for_reply(); }

    std::size_t bytes_written() const noexcept { return wire_.bytes_written(); }
    std::size_t bytes_taken() const noexcept { return wire_.bytes_taken(); }
    bool is_protocol_error() const noexcept { return wire_.protocol_error(); }
    const std::string& problem() const noexcept { return wire_.problem(); }

    /// A release whose answer nobody reads can be said now.
    bool may_release_unawaited() const noexcept { return is_greeted() && !is_borrowed() && dialect_.confirmed() && !wire_.has_outgoing(); }
    Progress release_unawaited(const Claim& claim) {
        write_release(wire_, dialect_.current(), Naming::whole, claim.key, claim.token);
        expected_.push(nullptr);
        return wire_.flush();
    }

    /// Ahead of close(): what is to be said behind the commands of an exchange whose answer will not come.
    void give_up_on(Exchange& exchange) { exchange.give_up(wire_); }
    /// Ahead of close(), where answers were out.
    void spoil(const std::string& why) {
        wire_.flush();
        wire_.spoil(name_ + ": " + why);
    }

    /// In a forked child.
    void forget() noexcept {
        close_inherited();
        forget_connection();
        ignored_errors_.clear();
    }

private:
    enum class Phase { closed, connecting, greeting, open };

    /// Notes whose answer comes when.
    struct Scribe final : CommandSink {
        Scribe(Link& to, Exchange* of) : link(to), exchange(of) {}
        void command(std::initializer_list<std::string_view> arguments) override {
            link.wire_.command(arguments);
            link.expected_.push(exchange);
        }
        Link& link;
        Exchange* exchange;
    };

    void forget_connection() noexcept {
        phase_ = Phase::closed;
        expected_.clear();
        wire_.close();
    }

    Progress begin() {
        opening_limit_ = address_limit_ = after(Clock::now(), endpoint_.connect_timeout);
        if (!wire_.is_borrowed()) return connect_further(wire_.open(endpoint_));
        if (const auto obstacle = wire_.obstacle()) return fail(obstacle->code, obstacle->text);
        wire_.begin_borrowed();
        return begin_greeting();
    }

    Progress connect() {
        pollfd descriptor{this->descriptor(), POLLOUT, 0};
        if (poll_once({&descriptor, 1}, Clock::time_point{})) return connect_further(wire_.finish_open());
        return Clock::now() < address_limit_ ? Progress::blocked : connect_further(wire_.skip_address());
    }

    Progress connect_further(Progress progress) {
        phase_ = Phase::connecting;
        if (progress == Progress::done) return begin_greeting();
        if (progress == Progress::failed) return fail(Errc::unreachable, wire_.problem());
        // Each address that the name has gets its share of the time.
        const auto now = Clock::now();
        address_limit_ = now + (opening_limit_ - now) / static_cast<long>(wire_.addresses_left() + 1);
        return Progress::blocked;
    }

    Progress begin_greeting() {
        ++connections_;
        wire_.let_wait(endpoint_.command_timeout);
        tracking_ = false;
        address_limit_ = opening_limit_;
        greeting_ = std::make_unique<Handshake>(endpoint_, redirect_, identifies_);
        dialect_ = greeting_->dialect();
        phase_ = greeting_->is_needed() ? Phase::greeting : Phase::open;
        start(*greeting_);
        return Progress::done;
    }

    Progress greet() {
        const Progress progress = talk([&](Exchange&, const Reply& reply, CommandSink& sink) { return greeting_->take(reply, sink); });
        if (progress == Progress::failed) {
            wire_.spoil(name_ + ": " + wire_.problem());
            return fail(wire_.protocol_error() ? Errc::protocol : Errc::unreachable, wire_.problem());
        }
        if (progress == Progress::blocked) {
            if (Clock::now() < opening_limit_) return Progress::blocked;
            wire_.spoil(name_ + ": no answer in time");
            return fail(Errc::timed_out, "no answer in time");
        }
        if (greeting_->answer != Answer::yes) return fail(greeting_->error, greeting_->words);
        dialect_ = greeting_->dialect();
        tracking_ = greeting_->is_tracking();
        redirect_gone_ = greeting_->is_redirect_gone();
        run_id_ = greeting_->run_id();
        phase_ = Phase::open;
        return Progress::done;
    }

    Progress fail(std::error_code error, const std::string& text) {
        failure_ = {error, text};
        return Progress::failed;
    }

    Endpoint endpoint_;
    std::string name_;
    Wire wire_;
    Dialect dialect_;

    Phase phase_ = Phase::closed;
    std::unique_ptr<Handshake> greeting_;
    Clock::time_point opening_limit_{};
    Clock::time_point address_limit_{};
    Failure failure_;
    long long redirect_ = 0;
    bool tracking_ = false;
    bool redirect_gone_ = false;
    bool identifies_ = false;
    std::string run_id_;
    unsigned connections_ = 0;

    Fifo<Exchange*> expected_;  // whose answer comes next; null: nobody's
    std::vector<std::string> ignored_errors_;
};

}  // namespace hiredlock::detail
