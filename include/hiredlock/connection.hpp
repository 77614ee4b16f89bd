// Connection: the smallest Store, one connection for one thread, its own or one that the service already has.
#pragma once

#include <functional>
#include <string>
#include <system_error>
#include <utility>

#include <hiredlock/orphans.hpp>
#include <hiredlock/process.hpp>
#include <hiredlock/session.hpp>
#include <hiredlock/store.hpp>

struct redisContext;

namespace hiredlock {

/// Told of failures that no caller can be told of: a destructor's failed release, a deferred release that the server refused. It may be called
/// on any thread that uses the Store; what it throws is dropped.
using ErrorHook = std::function<void(const Error&)>;

namespace detail {

inline void call(const ErrorHook& hook, const Error& error) noexcept {
    try {
        if (hook) hook(error);
    } catch (...) {  // a hook that throws has nobody to throw to
    }
}

inline void report_ignored(const ErrorHook& hook, Session& session) noexcept {
    try {
        for (const auto& words : session.take_ignored_errors())
            call(hook, Error{meaning(words), "hiredlock: a deferred release failed: " + session.name() + ": " + words});
    } catch (...) {  // no memory for the message
    }
}

}  // namespace detail

/// One connection to one server, for one thread at a time. Connects when it is first used and again after it broke. Must not move or end while a
/// guard uses it.
class Connection {
public:
    /// Throws Errc::invalid_argument for an endpoint that cannot work; sends nothing.
    explicit Connection(Endpoint endpoint, ErrorHook on_error = {}) : session_(checked(std::move(endpoint))), on_error_(std::move(on_error)) {}
    explicit Connection(const Uri& uri, ErrorHook on_error = {}) : Connection(Endpoint::parse(uri.text()), std::move(on_error)) {}

    /// Uses a context that its owner has connected and logged in, between the owner's own commands: it is never closed nor reconnected, its
    /// socket's flags stay as they are, and no reply of ours stays in it. After a time-out its `err` is set, as hiredis does, so that its owner
    /// cannot read our late reply; from then on every operation is Errc::unreachable. Locks live in the database that the context has selected. The
    /// context must outlive the Connection, and the Connection must stay where it is while a guard uses it.
    static Connection borrow(redisContext* context, std::chrono::milliseconds command_timeout = std::chrono::milliseconds{1000},
                             ErrorHook on_error = {}) {
        if (context == nullptr) detail::refuse("Connection::borrow needs a context, not a null pointer");
        if (command_timeout <= command_timeout.zero()) detail::refuse("Connection::borrow needs a command_timeout above 0");
        return Connection{detail::Session{context, command_timeout}, std::move(on_error)};
    }

    /// {} when the server answers; otherwise why not. For a program that wants to fail fast at start-up.
    std::error_code ping() {
        return use([&] { return session_.ping(Patience{}); }).error;
    }

    /// The compare-and-delete command in use; connects if need be. Throws Error where that fails.
    Cas cas() {
        const Outcome outcome = use([&] { return session_.ping(Patience{}); });
        if (outcome.error) throw Error{outcome.error, "hiredlock: " + outcome.detail};
        return session_.dialect().current();
    }

    static constexpr bool has_fencing = true;
    static constexpr bool has_replicas = true;

    // The operations of a LockStore.
    Clock::time_point now() const noexcept { return Clock::now(); }
    void sleep(const Patience& patience) { detail::sleep_until(patience.until, patience.stop); }

    Outcome acquire(const Claim& claim, const Patience& patience) {
        Outcome outcome = use([&] { return session_.acquire(claim, patience); });
        if (outcome.answer == Answer::unknown) abandon(claim);
        return outcome;
    }
    Outcome extend(const Claim& claim, const Patience& patience) {
        return use([&] { return session_.extend(claim, patience); });
    }
    Outcome release(const Claim& claim, const Patience& patience) {
        return use([&] { return session_.release(claim, patience); });
    }
    Outcome send_release(const Claim& claim, const Patience& patience) {
        return use([&] { return session_.send_release(claim, patience); });
    }
    /// Deleted again behind a later operation that succeeds: this Store has no thread of its own.
    void abandon(const Claim& claim) noexcept {
        try {
            orphans_.add(claim, now());
        } catch (...) {  // no memory: its ttl ends it
        }
    }
    void report(const Error& error) noexcept { detail::call(on_error_, error); }

private:
    Connection(detail::Session session, ErrorHook on_error) : session_(std::move(session)), on_error_(std::move(on_error)) {}

    static Endpoint checked(Endpoint endpoint) {
        endpoint.validate();
        return endpoint;
    }

    template <class Operation>
    Outcome use(Operation operation) {
        if (process_ != detail::process_id()) {
            if (session_.is_borrowed())
                return {Answer::failed, Errc::unreachable, session_.name() + ": it belongs to the parent process, which forked this one"};
            session_.forget();
            orphans_ = {};
            process_ = detail::process_id();
        }
        Outcome outcome = operation();
        if (outcome.answer == Answer::yes || outcome.answer == Answer::no) clean_up();
        detail::report_ignored(on_error_, session_);
        return outcome;
    }

    /// Ends with the first that is not answered: what this connection is for must not wait for it again and again.
    void clean_up() {
        bool answers = true;
        for (auto& orphan : orphans_.take_due(now())) {
            const Outcome outcome = answers ? session_.release(orphan.claim(), Patience{}) : Outcome{};
            answers = answers && (outcome.answer == Answer::yes || outcome.answer == Answer::no);
            if (outcome.answer != Answer::yes) orphans_.unsettled(std::move(orphan), now());
        }
    }

    detail::Session session_;
    ErrorHook on_error_;
    detail::Orphans orphans_;
    pid_t process_ = detail::process_id();
};

}  // namespace hiredlock
