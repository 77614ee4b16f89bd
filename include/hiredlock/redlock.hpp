// Redlock: a lock that the majority of N independent servers grants, all asked at once from one thread.
// The algorithm is the one that Redis documents: https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <hiredlock/assembly.hpp>
#include <hiredlock/caretaker.hpp>
#include <hiredlock/connection.hpp>
#include <hiredlock/lending.hpp>
#include <hiredlock/notifier.hpp>
#include <hiredlock/process.hpp>

namespace hiredlock {

struct RedlockOptions {
    std::size_t size = 8;  ///< how many operations may be under way at one time, each over connections of its own to every server
    ErrorHook on_error{};  ///< told of failures that no caller can be told of; called on any thread that uses the Redlock
};

namespace detail {

/// Where a lock is that was granted: what its release must know of the servers that were not among those who granted it. Any thread.
class Whereabouts {
public:
    struct Of {
        std::vector<bool> lacking{};    ///< failed or refused: they need not release it, however long they stay so. Empty: none
        std::vector<bool> late{};       ///< had not answered: the release must come behind the acquire, over the same connection. Empty: none
        Assembly* asked_by = nullptr;
    };

    void note(std::string_view token, Of where) {
        if (where.lacking.empty() && where.late.empty()) return;
        const std::scoped_lock lock{mutex_};
        if (by_token_.size() >= most) by_token_.clear();  // they will all be asked, over any connection
        by_token_.insert_or_assign(std::string{token}, std::move(where));
    }
    Of take(std::string_view token) {
        const std::scoped_lock lock{mutex_};
        const auto at = by_token_.find(token);
        return at == by_token_.end() ? Of{} : std::move(by_token_.extract(at).mapped());
    }

private:
    static constexpr std::size_t most = 10'000;

    std::mutex mutex_;
    std::map<std::string, Of, std::less<>> by_token_;
};

}  // namespace detail

/// Many threads may use one Redlock and guards of it at the same time. It must outlive its guards. A server that is down, slow or refuses costs
/// nothing while a majority of all the servers configured answers; an odd number of them is best, for 4 bear no more failures than 3.
class Redlock {
public:
    /// Connects to nothing. Throws Errc::invalid_argument for no servers at all, for one that is given twice, or for an endpoint or options that cannot
    /// work. One server under two names is found out when both answer, and then every operation is Errc::invalid_argument.
    explicit Redlock(std::vector<Endpoint> servers, RedlockOptions options = {})
        : state_(std::make_unique<State>(checked(std::move(servers), options), std::move(options))) {}
    Redlock(std::initializer_list<Uri> servers, RedlockOptions options = {}) : Redlock(parsed(servers), std::move(options)) {}

    /// {} when a majority answers; otherwise why not.
    std::error_code ping() { return ask(detail::Question::ping, {}, {}).error; }

    static constexpr bool has_fencing = false;  // numbers that independent servers count do not grow together
    static constexpr bool has_replicas = true;  // each server's vote then counts only with its own replicas' acknowledgement

    // The operations of a LockStore.
    Clock::time_point now() const noexcept { return Clock::now(); }
    void sleep(const Patience& patience) { detail::sleep_until(patience.until, patience.stop); }

    Outcome acquire(const Claim& claim, const Patience& patience) {
        State& here = state_.get();
        return use(here, patience, [&](detail::Assembly& assembly) {
            return conclude(here, assembly, *assembly.ask(detail::Question::acquire, claim, patience));
        });
    }
    detail::Notifier& line() { return state_.get().notifier; }
    /// The first server tells when its vote may be free again. That is a hint, which may fail to come (that server may be the only one that has the lock
    /// for another): so whoever waits asks from time to time as well.
    Outcome acquire_and_watch(const Claim& claim, const Patience& patience) {
        State& here = state_.get();
        const auto pauses = [&patience] { return Clock::now() + shortest_pause < patience.until; };
        Answer first = Answer::unknown;
        Outcome outcome = use(here, patience, [&](detail::Assembly& assembly) {
            const auto round = assembly.ask(detail::Question::acquire, claim, patience);
            Outcome concluded = conclude(here, assembly, *round);
            if (concluded.answer == Answer::no && pauses()) first = assembly.answer_of_first(*round, patience);
            return concluded;
        });
        if (first == Answer::yes) outcome.left = Outcome::gone;  // given back by now; the others may be about to follow
        if (first != Answer::no || !pauses()) return outcome;
        if (here.notifier.watch(claim.key, patience) == Outcome::gone) outcome.left = Outcome::gone;  // between the question and the look
        here.remind(here.reminded_of_waiters, idle_before_close);
        return outcome;
    }
    Outcome extend(const Claim& claim, const Patience& patience) { return ask(detail::Question::extend, claim, patience); }
    Outcome release(const Claim& claim, const Patience& patience) { return release(detail::Question::release, claim, patience); }
    Outcome send_release(const Claim& claim, const Patience& patience) { return release(detail::Question::unawaited_release, claim, patience); }

    void abandon(const Claim& claim) noexcept { state_.get().caretaker.add_orphan(claim); }
    detail::Caretaker& watchdog() { return state_.get().caretaker; }
    void report(const Error& error) noexcept { detail::call(state_.get().options.on_error, error); }

private:
    static constexpr std::chrono::milliseconds before_tending{250};
    static constexpr std::chrono::milliseconds shortest_pause{5};  // that is worth a notification
    static constexpr std::chrono::seconds idle_before_close{10};  // of the connections that only those who wait need

    struct State {
        State(std::vector<Endpoint> all, RedlockOptions chosen)
            : servers(std::move(all)),
              options(std::move(chosen)),
              notifier(servers.front()),
              caretaker(servers, [this] { return tend(); }),
              assemblies(options.size, [this] { return detail::Assembly{servers, caretaker}; }) {
            for (const Endpoint& server : servers) longest_wait = std::max(longest_wait, server.command_timeout);
        }
        ~State() {
            const std::scoped_lock lock{tending};
            is_ending = true;
        }

        std::unique_ptr<State> remade() const { return std::make_unique<State>(servers, options); }
        void close_inherited() noexcept {
            for (detail::Assembly& assembly : assemblies.all()) assembly.close_inherited();
            notifier.close_inherited();
            caretaker.close_inherited();
        }

        /// Of answers that may come late, and of connections to close once nobody waits.
        void remind(std::atomic<bool>& reminded, Clock::duration pause) {
            if (!reminded.exchange(true, std::memory_order_relaxed)) caretaker.remind(Clock::now() + pause);
        }

        /// On the caretaker's thread: takes late answers, where nobody uses the connections that they come on.
        Clock::time_point tend() {
            const std::scoped_lock lock{tending};
            reminded_of_answers = reminded_of_waiters = false;  // before looking, so that whoever leaves something behind the look asks for another reminder
            if (is_ending) return Clock::time_point::max();
            auto next = notifier.close_if_idle(idle_before_close);
            if (next != Clock::time_point::max()) reminded_of_waiters = true;
            if (!tend_idle()) return next;
            reminded_of_answers = true;
            return std::min(next, Clock::now() + before_tending);
        }
        bool tend_idle() {
            const auto assembly = assemblies.lend({.until = Clock::time_point::min(), .stop = {}});
            if (!assembly) return false;
            const bool more = assembly->tend();
            return tend_idle() || more;
        }

        const pid_t process = detail::process_id();
        const std::vector<Endpoint> servers;
        const RedlockOptions options;
        std::chrono::milliseconds longest_wait{};
        detail::Whereabouts whereabouts;
        std::mutex tending;
        bool is_ending = false;
        std::atomic<bool> reminded_of_answers{false}, reminded_of_waiters{false};
        detail::Notifier notifier;
        detail::Caretaker caretaker;  // outlives the rounds, which give it their orphans
        detail::Lending<detail::Assembly> assemblies;
    };

    static std::vector<Endpoint> parsed(std::initializer_list<Uri> servers) {
        std::vector<Endpoint> endpoints;
        for (const Uri& uri : servers) endpoints.push_back(Endpoint::parse(uri.text()));
        return endpoints;
    }

    static std::vector<Endpoint> checked(std::vector<Endpoint> servers, const RedlockOptions& options) {
        if (servers.empty()) detail::refuse("a Redlock needs servers: an odd number, 3 or 5");
        if (options.size < 1 || options.size > 1000) detail::refuse("RedlockOptions::size must be from 1 to 1000");
        std::set<std::string> names;
        for (const Endpoint& server : servers) {
            server.validate();
            if (!names.insert(server.name()).second)
                detail::refuse("a Redlock is given " + server.name() + " twice; each server must be independent of the others");
        }
        return servers;
    }

    /// What the votes mean for the caller and for those who gave them.
    static Outcome conclude(State& here, detail::Assembly& assembly, const detail::Round& round) {
        Outcome outcome = assembly.verdict(round);
        if (outcome.answer == Answer::yes)
            here.whereabouts.note(round.token, {round.without(), round.late(), &assembly});
        else
            assembly.take_back(round);
        return outcome;
    }

    Outcome ask(detail::Question what, const Claim& claim, const Patience& patience) {
        return use(state_.get(), patience, [&](detail::Assembly& assembly) { return assembly.verdict(*assembly.ask(what, claim, patience)); });
    }

    /// A server that has not answered the acquire yet is released behind it: by the same connections if they are free, else by whoever uses them.
    Outcome release(detail::Question what, const Claim& claim, const Patience& patience) {
        State& here = state_.get();
        auto where = here.whereabouts.take(claim.token);
        const auto ask = [&](detail::Assembly& assembly) { return assembly.verdict(*assembly.ask(what, claim, patience, where.lacking)); };
        if (where.late.empty()) return use(here, patience, ask);
        if (const auto same = here.assemblies.lend(*where.asked_by)) return use(here, *same, ask);
        std::vector<bool> others = where.late;
        others.flip();
        where.asked_by->leave_release(claim, std::move(others));
        here.remind(here.reminded_of_answers, before_tending);
        where.lacking.resize(where.late.size());
        std::transform(where.late.begin(), where.late.end(), where.lacking.begin(), where.lacking.begin(), std::logical_or<>{});
        return use(here, patience, ask);
    }

    template <class Operation>
    static Outcome use(State& here, const Patience& patience, Operation operation) {
        const auto assembly = here.assemblies.lend({std::min(patience.until, detail::after(Clock::now(), here.longest_wait)), patience.stop});
        if (assembly) return use(here, *assembly, operation);
        return {.error = Errc::timed_out,
                .detail = "all " + std::to_string(here.options.size) + " sets of connections stayed in use (RedlockOptions::size)"};
    }
    template <class Operation>
    static Outcome use(State& here, detail::Assembly& assembly, Operation operation) {
        Outcome outcome = operation(assembly);
        assembly.release_left();
        if (assembly.is_busy()) here.remind(here.reminded_of_answers, before_tending);
        return outcome;
    }

    detail::PerProcess<State> state_;
};

}  // namespace hiredlock
