// Which process this is: after fork() the child must leave alone what the parent locked, connected and started.
#pragma once

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

namespace hiredlock::detail {

inline std::atomic<pid_t> known_process_id{0};

/// The id of this process. Kept, since guards ask often, and renewed in a forked child before fork() returns there.
inline pid_t process_id() noexcept {
    static const bool renewed_by_fork =
        ::pthread_atfork(nullptr, nullptr, [] { known_process_id.store(::getpid(), std::memory_order_relaxed); }) == 0;
    pid_t id = known_process_id.load(std::memory_order_relaxed);
    if (id == 0 || !renewed_by_fork) {
        id = ::getpid();
        known_process_id.store(id, std::memory_order_relaxed);
    }
    return id;
}

/// Keeps an object alive for the rest of the process. For what a forked child inherited and must not destroy: joining its parent's threads or
/// destroying their mutexes hangs. It stays reachable, so leak checkers do not complain.
template <class T>
void leak(std::unique_ptr<T> object) {
    static auto& kept = *new std::vector<std::unique_ptr<T>>;
    static auto& guard = *new std::mutex;
    const std::scoped_lock lock{guard};
    kept.push_back(std::move(object));
}

}  // namespace hiredlock::detail
