// Pool: the Store for a program with threads. Connections are made when needed, lent for one command each, and replaced when broken.
#pragma once

#include <atomic>
#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include <hiredlock/caretaker.hpp>
#include <hiredlock/connection.hpp>
#include <hiredlock/lending.hpp>
#include <hiredlock/notifier.hpp>
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
    explicit Pool(Endpoint endpoint, PoolOptions options = {})
        : state_(std::make_unique<State>(checked(std::move(endpoint), options), std::move(options))) {}
    explicit Pool(const Uri& uri, PoolOptions options = {}) : Pool(Endpoint::parse(uri.text()), std::move(options)) {}

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
    detail::Notifier& line() { return state().notifier; }
    Outcome acquire_and_watch(const Claim& claim, const Patience& patience) {
        State& here = state();
        auto outcome = here.notifier.acquire_and_watch(claim, patience);
        if (!outcome) return acquire(claim, patience);
        if (!here.reminded.exchange(true, std::memory_order_relaxed)) here.caretaker.remind(Clock::now() + idle_before_close);
        if (outcome->answer == Answer::unknown) abandon(claim);
        return *std::move(outcome);
    }
    detail::Caretaker& watchdog() { return state().caretaker; }
    void report(const Error& error) noexcept { detail::call(state().options.on_error, error); }

private:
    static constexpr std::chrono::seconds idle_before_close{10};  // of the connections that only those who wait need

    struct State {
        State(Endpoint where, PoolOptions chosen)
            : endpoint(std::move(where)),
              options(std::move(chosen)),
              sessions(options.size, [this] { return detail::Session{endpoint}; }),
              notifier(endpoint),
              caretaker({endpoint}, [this] { return close_idle(); }) {}

        std::unique_ptr<State> remade() const { return std::make_unique<State>(endpoint, options); }

        void close_inherited() noexcept {
            for (detail::Session& session : sessions.all()) session.close_inherited();
            notifier.close_inherited();
            caretaker.close_inherited();
        }

        Clock::time_point close_idle() {
            reminded = false;  // before looking, so that whoever connects behind the look asks for another reminder
            const auto again = notifier.close_if_idle(idle_before_close);
            if (again != Clock::time_point::max()) reminded = true;
            return again;
        }

        const pid_t process = detail::process_id();
        const Endpoint endpoint;
        const PoolOptions options;
        detail::Lending<detail::Session> sessions;
        detail::Notifier notifier;
        std::atomic<bool> reminded{false};
        detail::Caretaker caretaker;
    };

    static Endpoint checked(Endpoint endpoint, const PoolOptions& options) {
        endpoint.validate();
        if (options.size < 1 || options.size > 10'000) detail::refuse("PoolOptions::size must be from 1 to 10000");
        return endpoint;
    }

    State& state() { return state_.get(); }

    template <class Operation>
    Outcome use(const Patience& patience, Operation operation) {
        State& here = state();
        const auto limit = std::min(patience.until, detail::after(Clock::now(), here.endpoint.command_timeout));
        const auto session = here.sessions.lend({limit, patience.stop});
        if (!session)
            return {.error = Errc::timed_out,
                    .detail = here.endpoint.name() + ": all " + std::to_string(here.options.size) + " connections of the pool stayed in use (PoolOptions::size)"};
        Outcome outcome = operation(*session, patience);
        detail::report_ignored(here.options.on_error, *session);
        return outcome;
    }

    detail::PerProcess<State> state_;
};

}  // namespace hiredlock
