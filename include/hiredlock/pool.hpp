// Pool: the Store for a program with threads. Connections are made when needed, lent for one command each, and replaced when broken.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <hiredlock/caretaker.hpp>
#include <hiredlock/connection.hpp>
#include <hiredlock/process.hpp>

namespace hiredlock {

struct PoolOptions {
    std::size_t size = 8;  ///< the most connections that commands use at one time; a command waits while all are lent
    ErrorHook on_error{};  ///< told of failures that no caller can be told of; called on any thread that uses the Pool
};

/// Many threads may use one Pool and guards of it at the same time. After fork() the child's Pool makes connections of its own. It must outlive
/// its guards.
class Pool {
public:
    /// Connects to nothing. Throws Errc::invalid_argument for an endpoint or options that cannot work.
    explicit Pool(Endpoint endpoint, PoolOptions options = {}) : state_(new State{checked(std::move(endpoint), options), std::move(options)}) {}
    explicit Pool(const Uri& uri, PoolOptions options = {}) : Pool(Endpoint::parse(uri.text()), std::move(options)) {}
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    ~Pool() {
        std::unique_ptr<State> state{state_.load()};
        if (state->process == detail::process_id()) return;
        state->close_descriptors();
        detail::leak(std::move(state));
    }

    /// {} when the server answers; otherwise why not. For a program that wants to fail fast at start-up.
    std::error_code ping() {
        return use(Patience{}, [](detail::Session& session, const Patience& patience) { return session.ping(patience); }).error;
    }

    /// The compare-and-delete command in use; connects if need be. Throws Error where that fails.
    Cas cas() {
        Cas answer = Cas::automatic;
        const Outcome outcome = use(Patience{}, [&answer](detail::Session& session, const Patience& patience) {
            Outcome pinged = session.ping(patience);
            answer = session.dialect().current();
            return pinged;
        });
        if (outcome.error) throw Error{outcome.error, "hiredlock: " + outcome.detail};
        return answer;
    }

    static constexpr bool has_fencing = true;
    static constexpr bool has_replicas = true;

    // The operations of a LockStore.
    Clock::time_point now() const noexcept { return Clock::now(); }
    void sleep(const Patience& patience) { detail::sleep_until(patience.until, patience.stop); }

    Outcome acquire(const Claim& claim, const Patience& patience) {
        Outcome outcome = use(patience, [&claim](detail::Session& session, const Patience& limit) { return session.acquire(claim, limit); });
        if (outcome.answer == Answer::unknown) abandon(claim);
        return outcome;
    }
    Outcome extend(const Claim& claim, const Patience& patience) {
        return use(patience, [&claim](detail::Session& session, const Patience& limit) { return session.extend(claim, limit); });
    }
    Outcome release(const Claim& claim, const Patience& patience) {
        return use(patience, [&claim](detail::Session& session, const Patience& limit) { return session.release(claim, limit); });
    }
    Outcome send_release(const Claim& claim, const Patience& patience) {
        return use(patience, [&claim](detail::Session& session, const Patience& limit) { return session.send_release(claim, limit); });
    }
    void abandon(const Claim& claim) noexcept { state().caretaker.add_orphan(claim); }
    detail::Caretaker& watchdog() { return state().caretaker; }
    void report(const Error& error) noexcept { detail::call(state().options.on_error, error); }

private:
    /// All that belongs to one process. A forked child leaves its parent's as it is and begins one of its own.
    struct State {
        State(Endpoint where, PoolOptions chosen) : endpoint(std::move(where)), options(std::move(chosen)), caretaker({endpoint}) {
            sessions.reserve(options.size);
            for (std::size_t i = 0; i < options.size; ++i) sessions.emplace_back(endpoint);
            idle.reserve(options.size);
            for (detail::Session& session : sessions) idle.push_back(&session);
        }

        void close_descriptors() noexcept {
            for (detail::Session& session : sessions) session.close_descriptor();
            caretaker.close_descriptors();
        }

        const pid_t process = detail::process_id();
        const Endpoint endpoint;
        const PoolOptions options;
        std::mutex mutex;
        std::condition_variable_any returned;
        std::vector<detail::Session> sessions;
        std::vector<detail::Session*> idle;  // the one used last is lent first: it is connected, and a deferred release's reply waits there
        detail::Caretaker caretaker;
    };

    /// A session for one command; goes back when this ends.
    class Loan {
    public:
        Loan(State& state, const Patience& patience) : state_(state) {
            std::unique_lock lock{state.mutex};
            if (state.idle.empty()) {
                const auto limit = std::min(patience.until, detail::after(Clock::now(), state.endpoint.command_timeout));
                state.returned.wait_for(lock, patience.stop, limit - Clock::now(), [&state] { return !state.idle.empty(); });
                if (state.idle.empty()) return;
            }
            session_ = state.idle.back();
            state.idle.pop_back();
        }
        Loan(const Loan&) = delete;
        Loan& operator=(const Loan&) = delete;
        ~Loan() {
            if (session_ == nullptr) return;
            {
                const std::scoped_lock lock{state_.mutex};
                state_.idle.push_back(session_);
            }
            state_.returned.notify_one();
        }

        detail::Session* session() const noexcept { return session_; }

    private:
        State& state_;
        detail::Session* session_ = nullptr;
    };

    static Endpoint checked(Endpoint endpoint, const PoolOptions& options) {
        endpoint.validate();
        if (options.size < 1 || options.size > 10'000) detail::refuse("PoolOptions::size must be from 1 to 10000");
        return endpoint;
    }

    template <class Operation>
    Outcome use(const Patience& patience, Operation operation) {
        State& here = state();
        const Loan loan{here, patience};
        if (loan.session() == nullptr)
            return {Answer::failed, Errc::timed_out,
                    here.endpoint.name() + ": all " + std::to_string(here.options.size) + " connections of the pool stayed in use (PoolOptions::size)"};
        Outcome outcome = operation(*loan.session(), patience);
        detail::report_ignored(here.options.on_error, *loan.session());
        return outcome;
    }

    State& state() {
        State* current = state_.load(std::memory_order_acquire);
        if (current->process == detail::process_id()) return *current;
        return after_fork(current);
    }

    State& after_fork(State* inherited) {
        auto fresh = std::make_unique<State>(inherited->endpoint, inherited->options);
        if (!state_.compare_exchange_strong(inherited, fresh.get())) return *inherited;  // another thread of the child was first
        std::unique_ptr<State> left{inherited};
        left->close_descriptors();
        detail::leak(std::move(left));
        return *fresh.release();
    }

    std::atomic<State*> state_;
};

}  // namespace hiredlock
