// The seam between a guard and everything it needs from outside: the server's answers, time, and sleep.
#pragma once

#include <chrono>
#include <concepts>
#include <stop_token>
#include <string>
#include <string_view>
#include <system_error>

#include <hiredlock/error.hpp>
#include <hiredlock/lease.hpp>

namespace hiredlock {

/// What a guard asks for. The views live as long as the call.
struct Claim {
    std::string_view key{};
    std::string_view token{};
    std::chrono::milliseconds ttl{};
    std::string_view stale{};  ///< an earlier token of this guard that may still be in the key: acquire deletes it first, in the same step
};

/// How long the caller will wait. A Store has time limits of its own as well; whichever comes first ends the wait.
struct Patience {
    Clock::time_point until = Clock::time_point::max();
    std::stop_token stop{};
};

enum class Answer {
    yes,     ///< the server did it
    no,      ///< the server did not, because the lock is another's, or nobody's
    failed,  ///< an error, and certainly not done
    unknown  ///< sent and never answered: done or not
};

/// How an operation ended.
struct Outcome {
    Answer answer = Answer::failed;
    std::error_code error{};     ///< set with failed and unknown
    std::string detail{};        ///< for people: which server, its own words
    Clock::time_point sent{};    ///< just before the command that was answered was sent
};

/// A place where locks live. A guard does all its I/O, and reads all its time, through these:
/// - now(): the time by which leases are judged.
/// - sleep(patience): returns at `until`, or earlier when a stop is requested.
/// - acquire(claim, patience): puts the token into the key if the key is empty, for ttl. A token is given to acquire() once at most; after
///   `unknown` the Store itself sees to it that the token does not stay in the key, and the guard never uses that token again.
/// - extend(claim, patience): makes the key expire ttl from now if it holds the token.
/// - release(claim, patience): deletes the key if it holds the token, and waits for the answer. (No ttl in this claim.)
/// - send_release(claim, patience): the same without waiting for the answer; `yes` means sent.
/// - abandon(claim): sees to it, without waiting, that the token does not stay in the key; tries for ttl at most.
/// - report(error): what no caller can be told: a destructor's failed release.
/// An operation reports failures in its Outcome; exceptions are for what has no outcome (memory).
template <class S>
concept LockStore = requires(S& store, const Claim& claim, const Patience& patience, const Error& error) {
    { store.now() } noexcept -> std::same_as<Clock::time_point>;
    store.sleep(patience);
    { store.acquire(claim, patience) } -> std::same_as<Outcome>;
    { store.extend(claim, patience) } -> std::same_as<Outcome>;
    { store.release(claim, patience) } -> std::same_as<Outcome>;
    { store.send_release(claim, patience) } -> std::same_as<Outcome>;
    { store.abandon(claim) } noexcept;
    { store.report(error) } noexcept;
};

}  // namespace hiredlock
