// Whether a grant or an extension counts only once replicas, or disks, have acknowledged it.
#pragma once

#include <chrono>

#include <hiredlock/policy.hpp>
#include <hiredlock/store.hpp>

namespace hiredlock::replication {

/// The server's own yes is enough. A failover right after it may lose the lock.
struct None {
    using kind = policy::Replication;
    const char* problem() const noexcept { return nullptr; }
    Acknowledgement asked() const noexcept { return {}; }
};

/// WAIT: at least `replicas` replicas have the write, within `timeout`; fewer are Errc::not_replicated, and the lock is not taken. It makes the
/// loss of a lock in a failover less likely, not impossible. The time counts against the lease and the caller's limit. It is never sent before a
/// release. https://redis.io/docs/latest/commands/wait/
struct Wait {
    int replicas = 1;                         ///< at least 1
    std::chrono::milliseconds timeout{1000};  ///< above 0: to the server 0 means for ever

    using kind = policy::Replication;
    const char* problem() const noexcept {
        if (replicas < 1) return "replication::Wait needs at least one replica";
        if (timeout <= timeout.zero() || timeout > std::chrono::hours{24})
            return "replication::Wait needs a timeout above 0 (to the server 0 means for ever) and at most a day";
        return nullptr;
    }
    Acknowledgement asked() const noexcept { return {.replicas = replicas, .timeout = timeout}; }
};

/// WAITAOF (Redis 7.2 and later): the write is in the append-only file of the server itself (`local` 1) and of `replicas` replicas.
/// https://redis.io/docs/latest/commands/waitaof/
struct WaitAof {
    int local = 1;                            ///< 0 or 1
    int replicas = 0;                         ///< at least 0, and not 0 together with `local`
    std::chrono::milliseconds timeout{1000};  ///< as in Wait

    using kind = policy::Replication;
    const char* problem() const noexcept {
        if (local < 0 || local > 1) return "replication::WaitAof needs local = 0 or 1";
        if (replicas < 0 || local + replicas == 0) return "replication::WaitAof needs something to wait for: local = 1 or replicas of 1 or more";
        if (timeout <= timeout.zero() || timeout > std::chrono::hours{24})
            return "replication::WaitAof needs a timeout above 0 (to the server 0 means for ever) and at most a day";
        return nullptr;
    }
    Acknowledgement asked() const noexcept { return {.local = local, .replicas = replicas, .timeout = timeout, .on_disk = true}; }
};

}  // namespace hiredlock::replication
