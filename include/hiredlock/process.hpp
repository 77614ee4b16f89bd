// Which process this is: after fork() the child must leave alone what the parent locked, connected and started.
#pragma once

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <utility>
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

/// Owns what belongs to one process. In a forked child the parent's is left as it is, descriptors excepted, and one of the child's own is made:
/// `State` has a const `process`, a `remade()` that gives a unique_ptr to a fresh one, and `close_inherited()`.
template <class State>
class PerProcess {
public:
    explicit PerProcess(std::unique_ptr<State> state) : state_(state.release()) {}
    PerProcess(const PerProcess&) = delete;
    PerProcess& operator=(const PerProcess&) = delete;

    ~PerProcess() {
        std::unique_ptr<State> state{state_.load()};
        if (state->process != process_id()) leave(std::move(state));
    }

    /// Any thread.
    State& get() {
        State* const current = state_.load(std::memory_order_acquire);
        return current->process == process_id() ? *current : after_fork(current);
    }

private:
    State& after_fork(State* inherited) {
        auto fresh = inherited->remade();
        if (!state_.compare_exchange_strong(inherited, fresh.get())) return *inherited;  // another thread of the child was first
        leave(std::unique_ptr<State>{inherited});
        return *fresh.release();
    }

    static void leave(std::unique_ptr<State> inherited) {
        inherited->close_inherited();
        leak(std::move(inherited));
    }

    std::atomic<State*> state_;
};

}  // namespace hiredlock::detail
