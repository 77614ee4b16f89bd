// Redlock: a lock that the majority of N independent servers grants, all asked at once from one thread.
// The algorithm is the one that Redis documents: https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/
#pragma once

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <hiredlock/caretaker.hpp>
#include <hiredlock/connection.hpp>
#include <hiredlock/lending.hpp>
#include <hiredlock/process.hpp>
#include <hiredlock/quorum.hpp>

namespace hiredlock {

struct RedlockOptions {
    std::size_t size = 8;  ///< how many commands may be under way at one time, each over connections of its own to every server
    ErrorHook on_error{};  ///< told of failures that no caller can be told of; called on any thread that uses the Redlock
};

namespace detail {

/// One connection to each of the servers, and questions put to all of them. One thread at a time.
class Assembly {
public:
    explicit Assembly(const std::vector<Endpoint>& endpoints) {
        for (const Endpoint& endpoint : endpoints) sessions_.emplace_back(endpoint).identify();
    }

    /// One question to all servers. It lives on until the last of them has answered, which may be after the caller has gone.
    struct Round {
        explicit Round(const Claim& asked)
            : key(asked.key), token(asked.token), stale(asked.stale), claim{key, token, asked.ttl, stale, {}, asked.acknowledged} {}
        Round(const Round&) = delete;
        Round& operator=(const Round&) = delete;

        const std::string key, token, stale;
        const Claim claim;
        std::vector<std::unique_ptr<Exchange>> exchanges;  // by server; null: not asked
    };

    struct Result {
        std::shared_ptr<Round> round;
        Votes votes;
        Clock::time_point sent{};
        bool same_server_twice = false;
        std::vector<std::string> reasons{};  // by server, of those that said neither yes nor no
        std::vector<std::error_code> errors{};
    };

    /// Puts to each server what `make(session, claim)` gives (null: nothing, which counts as a failure), until the votes decide or the patience ends.
    template <class Make>
    Result ask(const Claim& claim, const Patience& patience, Make make) {
        Result result{.round = std::make_shared<Round>(claim), .votes = {.nodes = sessions_.size()}, .sent = Clock::now()};
        Round& round = *result.round;
        std::vector<bool> counted(sessions_.size());
        for (std::size_t i = 0; i < sessions_.size(); ++i) {
            Session& session = sessions_[i];
            round.exchanges.push_back(make(session, round.claim));
            if (round.exchanges[i] != nullptr) {
                session.begin(*round.exchanges[i], Clock::time_point::max(), result.round);
                session.step();
            } else {
                counted[i] = true;
                fail(result, Errc::timed_out, session.name() + ": has not answered earlier questions yet");
            }
        }
        for (;;) {
            for (std::size_t i = 0; i < sessions_.size(); ++i) {
                if (counted[i] || !round.exchanges[i]->ended) continue;
                counted[i] = true;
                count(result, *round.exchanges[i]->ended);
            }
            result.same_server_twice = is_any_twice();
            if (result.votes.is_decided() || result.same_server_twice) return result;
            if (patience.stop.stop_requested() || Clock::now() >= patience.until) break;
            wait(patience);
        }
        for (std::size_t i = 0; i < sessions_.size(); ++i)
            if (!counted[i]) fail(result, Errc::timed_out, sessions_[i].name() + ": no answer in time");
        return result;
    }

    /// Says the same to all servers for which `is_meant(i)`, and waits for no answer.
    template <class IsMeant>
    void tell_release(const Claim& claim, IsMeant is_meant) {
        const auto round = std::make_shared<Round>(claim);
        for (std::size_t i = 0; i < sessions_.size(); ++i) {
            if (!is_meant(i)) continue;
            auto& exchange = round->exchanges.emplace_back(
                std::make_unique<CompareAnd>(CompareAnd::Do::release, round->claim, sessions_[i].dialect(), Naming::whole));
            sessions_[i].begin(*exchange, Clock::time_point::max(), round);
            sessions_[i].step();
        }
    }

    void close_descriptors() noexcept {
        for (Session& session : sessions_) session.close_descriptor();
    }

private:
    static void fail(Result& result, std::error_code error, std::string reason) {
        ++result.votes.failed;
        result.errors.push_back(error);
        result.reasons.push_back(std::move(reason));
    }

    static void count(Result& result, const Outcome& outcome) {
        if (outcome.answer == Answer::yes)
            ++result.votes.yes;
        else if (outcome.answer == Answer::no)
            ++result.votes.no;
        else
            fail(result, outcome.error, outcome.detail);
    }

    /// Until something comes from a server that is busy, or a time limit passes; and takes it.
    void wait(const Patience& patience) {
        descriptors_.clear();
        busy_.clear();
        auto until = patience.until;
        for (Session& session : sessions_) {
            if (!session.is_busy()) continue;
            descriptors_.push_back({session.descriptor(), session.events(), 0});
            busy_.push_back(&session);
            until = std::min(until, session.wake());
        }
        wait_ready(descriptors_, {until, patience.stop});
        const auto now = Clock::now();
        for (std::size_t i = 0; i < busy_.size(); ++i)
            if (descriptors_[i].revents != 0 || now >= busy_[i]->wake()) busy_[i]->step();
    }

    /// Two names may lead to one server; its vote would count twice. Looked at when there is a new connection.
    bool is_any_twice() {
        unsigned connections = 0;
        for (const Session& session : sessions_) connections += session.is_greeted() ? session.connections() : 0;
        if (connections == seen_connections_) return twice_;
        seen_connections_ = connections;
        std::set<std::string> ids;
        twice_ = false;
        for (const Session& session : sessions_)
            if (!session.run_id().empty() && !ids.insert(session.run_id()).second) twice_ = true;
        return twice_;
    }

    std::deque<Session> sessions_;
    std::vector<pollfd> descriptors_;
    std::vector<Session*> busy_;
    unsigned seen_connections_ = 0;
    bool twice_ = false;
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
    std::error_code ping() {
        return use({}, Patience{}, [](detail::Session&, const Claim&) { return std::make_unique<detail::Ping>(); }).error;
    }

    static constexpr bool has_fencing = false;  // numbers that independent servers count do not grow together
    static constexpr bool has_replicas = true;  // each server's vote then counts only with its own replicas' acknowledgement

    // The operations of a LockStore.
    Clock::time_point now() const noexcept { return Clock::now(); }
    void sleep(const Patience& patience) { detail::sleep_until(patience.until, patience.stop); }

    Outcome acquire(const Claim& claim, const Patience& patience) {
        const auto make = [](detail::Session& session, const Claim& asked) -> std::unique_ptr<detail::Exchange> {
            if (session.under_way() >= most_under_way) return nullptr;
            return std::make_unique<detail::Acquire>(asked, session.dialect(), detail::Acquire::Watch::no);
        };
        return use(claim, patience, make, [&](detail::Assembly& assembly, const detail::Assembly::Result& result) {
            if (result.votes.is_granted() && !result.same_server_twice) return;
            // Whoever said yes, or may have, or may yet, is to let go again. On the same connection, so it comes after the SET.
            bool unknown = false;
            assembly.tell_release(claim, [&](std::size_t i) {
                const auto& exchange = result.round->exchanges[i];
                if (exchange == nullptr) return false;
                if (!exchange->ended) return true;
                unknown = unknown || exchange->ended->answer == Answer::unknown;
                return exchange->ended->answer == Answer::yes;
            });
            if (unknown) abandon(claim);
        });
    }

    Outcome extend(const Claim& claim, const Patience& patience) {
        return use(claim, patience, [](detail::Session& session, const Claim& asked) {
            return std::make_unique<detail::CompareAnd>(detail::CompareAnd::Do::extend, asked, session.dialect());
        });
    }

    Outcome release(const Claim& claim, const Patience& patience) {
        const auto make = [](detail::Session& session, const Claim& asked) {
            // By its SHA-1 only where it is sure to be answered and known: nobody may be there to read a NOSCRIPT.
            const bool sure = session.dialect().confirmed() && !session.is_busy();
            return std::make_unique<detail::CompareAnd>(detail::CompareAnd::Do::release, asked, session.dialect(),
                                                        sure ? detail::Naming::by_sha1 : detail::Naming::whole);
        };
        return use(claim, patience, make, [&](detail::Assembly&, const detail::Assembly::Result& result) {
            if (result.votes.failed > 0) abandon(claim);
        });
    }

    Outcome send_release(const Claim& claim, const Patience& patience) {
        State& here = state_.get();
        const auto assembly = here.lend(patience);
        if (!assembly) return here.all_lent();
        assembly->tell_release(claim, [](std::size_t) { return true; });
        return {.answer = Answer::yes, .sent = Clock::now()};
    }

    void abandon(const Claim& claim) noexcept { state_.get().caretaker.add_orphan(claim); }
    detail::Caretaker& watchdog() { return state_.get().caretaker; }
    void report(const Error& error) noexcept { detail::call(state_.get().options.on_error, error); }

private:
    static constexpr std::size_t most_under_way = 4;  // a server that has not answered so many questions gets no new one

    struct State {
        State(std::vector<Endpoint> all, RedlockOptions chosen)
            : servers(std::move(all)), options(std::move(chosen)), assemblies(options.size, [this] { return detail::Assembly{servers}; }), caretaker(servers) {}

        std::unique_ptr<State> remade() const { return std::make_unique<State>(servers, options); }
        void close_descriptors() noexcept {
            for (detail::Assembly& assembly : assemblies.all()) assembly.close_descriptors();
            caretaker.close_descriptors();
        }
        detail::Lending<detail::Assembly>::Loan lend(const Patience& patience) {
            std::chrono::milliseconds longest{};
            for (const Endpoint& server : servers) longest = std::max(longest, server.command_timeout);
            return assemblies.lend({std::min(patience.until, detail::after(Clock::now(), longest)), patience.stop});
        }
        Outcome all_lent() const {
            return {.error = Errc::timed_out, .detail = "all " + std::to_string(options.size) + " sets of connections stayed in use (RedlockOptions::size)"};
        }

        const pid_t process = detail::process_id();
        const std::vector<Endpoint> servers;
        const RedlockOptions options;
        detail::Lending<detail::Assembly> assemblies;
        detail::Caretaker caretaker;
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

    static void nothing_more(detail::Assembly&, const detail::Assembly::Result&) {}

    template <class Make, class After = decltype(&nothing_more)>
    Outcome use(const Claim& claim, const Patience& patience, Make make, After after = nothing_more) {
        State& here = state_.get();
        const auto assembly = here.lend(patience);
        if (!assembly) return here.all_lent();
        const auto result = assembly->ask(claim, patience, make);
        after(*assembly, result);
        return decide(result);
    }

    /// What the votes mean to the caller.
    static Outcome decide(const detail::Assembly::Result& result) {
        const detail::Votes& votes = result.votes;
        if (result.same_server_twice)
            return {.error = Errc::invalid_argument, .detail = "two of the servers are one and the same under two names; each must be independent"};
        if (votes.is_granted()) return {.answer = Answer::yes, .sent = result.sent};
        // Another holds it on so many servers that no majority is left; or a majority answered, and was divided.
        if (votes.is_refused() || (votes.no > 0 && votes.yes + votes.no >= votes.majority())) return {.answer = Answer::no, .sent = result.sent};
        Outcome outcome{.answer = Answer::unknown, .error = Errc::no_quorum};
        outcome.detail = std::to_string(votes.yes) + " of " + std::to_string(votes.nodes) + " servers said yes, " + std::to_string(votes.no) + " said no";
        for (const auto& reason : result.reasons) outcome.detail += "; " + reason;
        // Where waiting cannot help so many servers that no majority can come, say what has to be mended.
        const auto lasting = [](const std::error_code& error) { return !is_transient(error); };
        const auto broken = static_cast<std::size_t>(std::count_if(result.errors.begin(), result.errors.end(), lasting));
        if (votes.nodes - broken < votes.majority()) outcome.error = *std::find_if(result.errors.begin(), result.errors.end(), lasting);
        return outcome;
    }

    detail::PerProcess<State> state_;
};

}  // namespace hiredlock
