// One logged-in connection to one server and the exchanges under way on it, as a state machine that never blocks: connects when needed, keeps the
// time limits, and throws away a connection whose answer did not come.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <hiredlock/acquire.hpp>
#include <hiredlock/compare_and.hpp>
#include <hiredlock/fifo.hpp>
#include <hiredlock/handshake.hpp>
#include <hiredlock/wire.hpp>

namespace hiredlock::detail {

/// One thread at a time. A driver calls begin(), then step() whenever descriptor() is ready for events() or wake() has come, until the exchange has
/// ended. run() is the driver for one session. Several exchanges may be under way; their commands go out in the order in which they began.
class Session {
public:
    explicit Session(Endpoint endpoint) : endpoint_(std::move(endpoint)), name_(endpoint_.name()), dialect_(endpoint_.cas) {}

    /// A context of the caller's, connected and logged in by its owner.
    Session(redisContext* borrowed, std::chrono::milliseconds command_timeout)
        : name_("borrowed redisContext"), wire_(borrowed), dialect_(Cas::automatic) {
        endpoint_.client_name.clear();
        endpoint_.command_timeout = command_timeout;
    }

    /// Begins an exchange. It and `keep`, which may own it, must live until it has ended. `limit` is the caller's; the endpoint's time limits apply
    /// besides.
    void begin(Exchange& exchange, Clock::time_point limit, std::shared_ptr<void> keep = {}) {
        const bool is_opening = phase_ == Phase::connecting || phase_ == Phase::greeting;
        if (tasks_.empty() && is_opening) go_on_opening();
        tasks_.push_back({.exchange = &exchange, .keep = std::move(keep), .caller_limit = limit});
    }

    /// Goes on as far as it can without waiting.
    void step() {
        while (!tasks_.empty()) {
            Next next = Next::wait;
            switch (phase_) {
                case Phase::closed: next = open(); break;
                case Phase::connecting: next = connected(); break;
                case Phase::greeting: next = greet(); break;
                case Phase::open: next = converse(); break;
            }
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

    int descriptor() const noexcept { return wire_.descriptor(); }
    short events() const noexcept {
        if (phase_ == Phase::connecting) return POLLOUT;
        return wire_.has_outgoing() ? POLLIN | POLLOUT : POLLIN;
    }
    Clock::time_point wake() const noexcept {
        auto earliest = phase_ == Phase::connecting || phase_ == Phase::greeting ? std::min(address_limit_, opening_limit_) : Clock::time_point::max();
        for (const Task& task : tasks_) earliest = std::min(earliest, task.asked ? task.limit : task.caller_limit);
        return earliest;
    }
    bool is_busy() const noexcept { return !tasks_.empty(); }
    std::size_t under_way() const noexcept { return tasks_.size(); }
    /// Whether an answer has been due for about as long as answers take, or longer. The first one that stays out is waited for in hope.
    bool is_overdue() const noexcept { return tasks_.size() > 1 && tasks_.front().asked && Clock::now() - tasks_.front().sent > 2 * trip_; }

    /// Begins an exchange and waits for its end.
    Outcome run(Exchange& exchange, const Patience& patience) {
        begin(exchange, patience.until);
        for (step(); !exchange.ended; step()) {
            if (may_wait_in_kernel(patience)) {
                wire_.wait_for_reply();
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
        Acquire exchange{limited, dialect_, Acquire::Watch::no};
        return run(exchange, patience);
    }
    /// With a refusal, `left` where this connection is tracked.
    Outcome acquire_and_watch(const Claim& claim, const Patience& patience) {
        const Claim limited = within(claim, patience);
        Acquire exchange{limited, dialect_, Acquire::Watch::yes};
        Outcome outcome = run(exchange, patience);
        if (outcome.answer == Answer::no && tracking_) outcome.left = std::chrono::milliseconds{exchange.left};
        return outcome;
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

    /// Sends a release whose answer nobody will read; false where that cannot be done now. Until an awaited answer has shown that this connection's
    /// form of it works it cannot; nor on a borrowed connection, for its owner must not find our reply.
    bool post_release(const Claim& claim) {
        if (phase_ != Phase::open || wire_.is_borrowed() || !dialect_.confirmed() || wire_.has_outgoing()) return false;
        write_release(wire_, dialect_.current(), Naming::whole, claim.key, claim.token);
        expected_.push(nullptr);
        if (wire_.flush() == Progress::done) return true;
        break_off(Errc::unknown_outcome);
        return false;
    }
    Outcome send_release(const Claim& claim, const Patience& patience) {
        const auto sent = Clock::now();
        if (post_release(claim)) return {.answer = Answer::yes, .sent = sent};
        // Said as it will be posted, to see whether that works here.
        CompareAnd exchange{CompareAnd::Do::release, claim, dialect_, wire_.is_borrowed() ? Naming::by_sha1 : Naming::whole};
        return run(exchange, patience);
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
        if (phase_ != Phase::open) return Progress::failed;
        const Progress progress = wire_.receive(message);
        if (progress == Progress::failed) close();
        return progress;
    }
    /// On a connection that is subscribed: says a command whose answer comes as a message.
    void post(std::initializer_list<std::string_view> arguments) {
        wire_.command(arguments);
        wire_.flush();
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

    /// What went wrong with commands whose answers nobody waited for.
    std::vector<std::string> take_ignored_errors() noexcept { return std::exchange(ignored_errors_, {}); }

    bool is_greeted() const noexcept { return phase_ == Phase::open; }
    /// How many connections there have been: another number, another connection.
    unsigned connections() const noexcept { return connections_; }
    bool is_borrowed() const noexcept { return wire_.is_borrowed(); }
    Dialect& dialect() noexcept { return dialect_; }
    const Endpoint& endpoint() const noexcept { return endpoint_; }
    const std::string& name() const noexcept { return name_; }

    void close() noexcept {
        if (expected_.contains(nullptr))
            ignored_errors_.emplace_back("the connection ended before a deferred release was answered");
        forget_connection();
    }

    /// In a forked child: lets go of the parent's socket without a word to the server.
    void forget() noexcept {
        close_inherited();
        forget_connection();
        tasks_.clear();
        ignored_errors_.clear();
    }

    /// The same where a thread of the parent may have been at work here at the fork: touches nothing but the number of the descriptor.
    void close_inherited() noexcept { wire_.close_inherited(); }

private:
    enum class Phase { closed, connecting, greeting, open };
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

    /// Writes for an exchange and notes whose answer comes when.
    struct Scribe final : CommandSink {
        Scribe(Session& to, Exchange* of) : session(to), exchange(of) {}
        void command(std::initializer_list<std::string_view> arguments) override {
            session.wire_.command(arguments);
            session.expected_.push(exchange);
        }
        Session& session;
        Exchange* exchange;
    };

    static constexpr std::chrono::milliseconds idle_enough_to_check{50};

    /// The common case, where an answer is out and only the command timeout limits the wait: one system call less.
    bool may_wait_in_kernel(const Patience& patience) const {
        return phase_ == Phase::open && wire_.may_wait() && !wire_.has_outgoing() && !expected_.empty() && !patience.stop.stop_possible() &&
               wake() - Clock::now() > endpoint_.command_timeout - std::chrono::milliseconds{1};
    }

    void forget_connection() noexcept {
        phase_ = Phase::closed;
        used_ = {};
        retiring_ = false;
        expected_.clear();
        wire_.close();
    }

    Outcome failed(std::error_code error, const std::string& text) const {
        return {.answer = Answer::failed, .error = error, .detail = name_ + ": " + text};
    }

    Tasks::iterator end(Tasks::iterator at, Outcome outcome) {
        at->exchange->ended = std::move(outcome);
        return tasks_.erase(at);
    }
    Tasks::iterator end_unasked(Tasks::iterator at, Errc code, const std::string& text) {
        Outcome outcome = failed(code, text);
        if (at->repeated) outcome.answer = Answer::unknown;  // the first time may have done it
        return end(at, std::move(outcome));
    }

    // --- Opening.

    Next open() {
        const auto now = Clock::now();
        opening_limit_ = address_limit_ = after(now, endpoint_.connect_timeout);
        if (!wire_.is_borrowed()) return opening(wire_.open(endpoint_));
        if (const auto obstacle = wire_.obstacle()) return opening_failed(obstacle->code, obstacle->text);
        wire_.begin_borrowed();
        return begin_greeting();
    }

    /// What an earlier caller left half open: it goes on if it has got further meanwhile. If it failed or is too late, whoever comes begins anew.
    void go_on_opening() {
        const bool is_late = Clock::now() >= opening_limit_;
        pollfd descriptor{this->descriptor(), events(), 0};
        if (!poll_once({&descriptor, 1}, Clock::time_point{})) return is_late ? close() : void();
        if (is_late) opening_limit_ = address_limit_ = after(Clock::now(), endpoint_.connect_timeout);
        if (phase_ == Phase::connecting) connected();
        if (phase_ == Phase::greeting) greet();
    }

    Next opening(Progress progress) {
        phase_ = Phase::connecting;
        if (progress == Progress::done) return begin_greeting();
        if (progress == Progress::failed) return opening_failed(Errc::unreachable, wire_.problem());
        // Each address that the name has gets its share of the time.
        const auto now = Clock::now();
        address_limit_ = now + (opening_limit_ - now) / static_cast<long>(wire_.addresses_left() + 1);
        return Next::wait;
    }

    Next connected() {
        pollfd descriptor{this->descriptor(), POLLOUT, 0};
        if (poll_once({&descriptor, 1}, Clock::time_point{})) return opening(wire_.finish_open());
        const auto now = Clock::now();
        end_those_past(now);
        return now < address_limit_ ? Next::wait : opening(wire_.skip_address());
    }

    Next begin_greeting() {
        ++connections_;
        wire_.let_wait(endpoint_.command_timeout);
        tracking_ = false;
        address_limit_ = opening_limit_;
        greeting_ = std::make_unique<Handshake>(endpoint_, dialect_, redirect_, identifies_);
        phase_ = greeting_->is_needed() ? Phase::greeting : Phase::open;
        Scribe scribe{*this, greeting_.get()};
        greeting_->start(scribe);
        return Next::go_on;
    }

    Next greet() {
        bool over = false;
        const Progress progress = talk([&](Exchange&, const Reply& reply, CommandSink& sink) { return over = greeting_->take(reply, sink); });
        if (progress == Progress::failed) {
            wire_.spoil(name_ + ": " + wire_.problem());
            return opening_failed(wire_.protocol_error() ? Errc::protocol : Errc::unreachable, wire_.problem());
        }
        if (!over) {
            const auto now = Clock::now();
            end_those_past(now);
            if (now < opening_limit_) return Next::wait;
            wire_.spoil(name_ + ": no answer in time");
            return opening_failed(Errc::timed_out, "no answer in time");
        }
        if (greeting_->answer != Answer::yes) return opening_failed(greeting_->error, greeting_->words);
        tracking_ = greeting_->is_tracking();
        redirect_gone_ = greeting_->is_redirect_gone();
        run_id_ = greeting_->run_id();
        phase_ = Phase::open;
        return Next::go_on;
    }

    /// Of what waits for the connection nothing has been sent.
    Next opening_failed(std::error_code error, const std::string& text) {
        const Outcome outcome = failed(error, text);
        close();
        for (auto at = tasks_.begin(); at != tasks_.end();) {
            Outcome one = outcome;
            if (at->repeated) one.answer = Answer::unknown;
            at = end(at, std::move(one));
        }
        return Next::wait;
    }

    void end_those_past(Clock::time_point now) {
        for (auto at = tasks_.begin(); at != tasks_.end();)
            at = now >= at->caller_limit ? end_unasked(at, phase_ == Phase::connecting ? Errc::unreachable : Errc::timed_out, "no connection in time") : at + 1;
    }

    // --- Conversing.

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
        if (tasks_.empty() && retiring_) close();
        const auto now = Clock::now();
        const bool late = std::any_of(tasks_.begin(), tasks_.end(), [now](const Task& task) { return now >= task.limit; });
        return late ? break_off(Errc::timed_out) : Next::wait;
    }

    bool is_asked_any() const noexcept {
        return std::any_of(tasks_.begin(), tasks_.end(), [](const Task& task) { return task.asked; });
    }

    /// Whether a connection that was left idle can be used.
    bool is_fit() const {
        if (used_ == Clock::time_point{}) return true;
        if (wire_.is_borrowed()) return !wire_.obstacle();
        // Of several servers one that has gone is told apart from one that breaks under a question: that costs its vote.
        const bool was_just_used = !identifies_ && Clock::now() - used_ < idle_enough_to_check;
        return was_just_used || !wire_.is_stale(!expected_.empty());
    }

    void ask(Task& task) {
        task.asked = true;
        task.sent = Clock::now();
        task.limit = std::min(task.caller_limit, after(task.sent, task.exchange->time_for_answers(endpoint_.command_timeout)));
        task.before = wire_.bytes_written();
        Scribe scribe{*this, task.exchange};
        task.exchange->start(scribe);
    }

    void answered(Exchange& exchange) {
        used_ = Clock::now();
        const auto at = std::find_if(tasks_.begin(), tasks_.end(), [&](const Task& task) { return task.exchange == &exchange; });
        if (at == tasks_.end()) return;
        trip_ = used_ - at->sent;
        Outcome outcome{.answer = exchange.answer, .error = exchange.error, .sent = at->sent, .fencing = exchange.fencing};
        if (!exchange.words.empty()) outcome.detail = name_ + ": " + exchange.words;
        // A replica by now: the address may lead to another server.
        if (outcome.error == Errc::read_only || outcome.answer == Answer::unknown) retiring_ = true;
        end(at, std::move(outcome));
    }

    /// The answers to what was asked will not come over this connection, and its late replies must not be taken for those of later commands: it is
    /// closed. What has not been sent, or may be done twice, is asked once more over a new one if it was the connection that broke.
    Next break_off(Errc code) {
        const bool was_alive = used_ != Clock::time_point{};
        const bool again = code == Errc::unknown_outcome && !wire_.protocol_error() && !wire_.is_borrowed();
        const std::string text = code == Errc::timed_out ? "no answer in time" : wire_.problem();
        if (wire_.protocol_error()) code = Errc::protocol;
        bool spoilt = false;
        const std::size_t taken = wire_.bytes_taken();
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
            if (sent) at->exchange->give_up(wire_);
            Outcome outcome = failed(code, text);
            if (sent || at->repeated) outcome.answer = Answer::unknown;
            if (!sent && code == Errc::unknown_outcome) outcome.error = Errc::unreachable;
            at = end(at, std::move(outcome));
        }
        if (spoilt) {
            wire_.flush();
            wire_.spoil(name_ + ": " + text);
        }
        close();
        return Next::go_on;
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

    Endpoint endpoint_;
    std::string name_;
    Wire wire_;
    Dialect dialect_;

    Phase phase_ = Phase::closed;
    std::unique_ptr<Handshake> greeting_;
    Clock::time_point opening_limit_{};
    Clock::time_point address_limit_{};
    Clock::time_point used_{};  // when the last answer came; 0 on a connection that has not answered yet
    Clock::duration trip_{};    // how long the last answer took
    bool retiring_ = false;     // to be closed once nothing is under way
    long long redirect_ = 0;
    bool tracking_ = false;
    bool redirect_gone_ = false;
    bool identifies_ = false;
    std::string run_id_;
    unsigned connections_ = 0;

    Tasks tasks_;
    Fifo<Exchange*> expected_;  // whose answer comes next; null: nobody's
    std::vector<std::string> ignored_errors_;
};

}  // namespace hiredlock::detail
