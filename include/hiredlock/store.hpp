// The seam between a guard and everything it needs from outside: the server's answers, time, and sleep.
#pragma once

#include <chrono>
#include <concepts>
#include <cstdint>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <system_error>

#include <hiredlock/error.hpp>
#include <hiredlock/lease.hpp>

namespace hiredlock {

/// Who else must have a write before it counts. With a timeout of 0 nobody else is asked.
struct Acknowledgement {
    int local = 0;
    int replicas = 0;
    std::chrono::milliseconds timeout{};
    bool on_disk = false;  ///< WAITAOF rather than WAIT

    bool is_asked() const noexcept { return timeout > timeout.zero(); }
};

/// What a guard asks for. The views live as long as the call.
struct Claim {
    std::string_view key{};
    std::string_view token{};
    std::chrono::milliseconds ttl{};
    std::string_view stale{};      ///< an earlier token of this guard that may still be in the key: acquire deletes it first, in the same step
    std::string_view fence_key{};  ///< where acquire takes a fencing number in the same step as the grant; empty: nowhere
    Acknowledgement acknowledged{};
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
    std::uint64_t fencing = 0;   ///< the number of the grant, where a fence_key was given
    std::optional<std::chrono::milliseconds> left{};  ///< with `no`, where known: how long the other's lock lasts (-1: for ever, gone: no longer)
    static constexpr std::chrono::milliseconds gone{-2};
    bool divided = false;  ///< not granted, though some of several servers had granted it: others ask at the same time
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

/// A Store whose threads wait for one key in a line, of which only the first asks the server, and is told when the key goes:
/// - line().is_waited_for(key): whether somebody stands in that line.
/// - line().join(key): a place in it, left by its destructor. place.wait_for_turn(patience): true once it is the first. place.wait(patience): until the
///   key has gone (or may have), or the patience ends.
/// - acquire_and_watch(claim, patience): as acquire(), for the first in the line; with `no`, Outcome::left where place.wait() is sure to be
///   woken; else whoever waits also asks after pauses of its own.
template <class S>
concept NotifyingStore = LockStore<S> && requires(S& store, const std::string& key, const Claim& claim, const Patience& patience) {
    { store.line().is_waited_for(key) } -> std::same_as<bool>;
    { store.line().join(key).wait_for_turn(patience) } -> std::same_as<bool>;
    store.line().join(key).wait(patience);
    { store.acquire_and_watch(claim, patience) } -> std::same_as<Outcome>;
};

/// A Store that can take fencing numbers: it says so with `static constexpr bool has_fencing = true`.
template <class S>
concept FencingStore = LockStore<S> && S::has_fencing;

/// A Store that can wait for replicas: it says so with `static constexpr bool has_replicas = true`.
template <class S>
concept ReplicatedStore = LockStore<S> && S::has_replicas;

}  // namespace hiredlock
