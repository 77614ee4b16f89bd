// One process that we started: signalled, stopped, continued and reaped by its id.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

namespace support {

/// Ends with its owner: the destructor kills and reaps it, and when the THREAD that started it ends, by whatever cause, the kernel kills it
/// (PR_SET_PDEATHSIG is tied to the thread, not the process). So start what shall outlive a helper thread from the main thread. A copy in a
/// forked child owns nothing. Used by one thread at a time.
class Subprocess {
public:
    enum class Leave {
        at_once,  ///< by _exit(): no destructor of a static object, no atexit handler
        by_exit   ///< by exit(), as a program does that returns from main
    };

    /// Descriptors that become 0, 1 and 2 of the program; −1: /dev/null for input, ours for the others. It gets no other of ours.
    struct Streams {
        int input = -1;
        int output = -1;
        int error = -1;
    };

    /// Owns no process.
    Subprocess() = default;
    Subprocess(Subprocess&& other) noexcept;
    Subprocess& operator=(Subprocess&& other) noexcept;
    ~Subprocess();

    /// Runs a program, found on PATH, with default signal handling; throws std::system_error when it cannot be executed.
    static Subprocess exec(const std::vector<std::string>& argv, Streams streams);

    /// Runs `body` in a fork of this process, which keeps every descriptor; its result is the exit status, 70 when it throws.
    static Subprocess fork(const std::function<int()>& body, Leave leave = Leave::at_once);

    /// −1 when it owns no process; that of a process that has ended already means nothing any more.
    pid_t pid() const noexcept { return pid_; }

    /// Runs or is stopped. Reaps it when it has ended.
    bool is_running();

    /// Sends a signal, unless it has ended.
    void signal(int number);

    /// SIGKILL, and reaps it.
    void kill();

    /// SIGTERM, and SIGKILL when it has not ended within `limit`; reaps it. A stopped one is continued.
    void terminate(std::chrono::milliseconds limit);

    /// SIGSTOP, and returns when every thread of it is stopped.
    void pause();

    /// SIGCONT.
    void resume();

    /// Its exit status, 128 + signal when a signal ended it; nothing when it still runs after `limit`.
    std::optional<int> wait(std::chrono::milliseconds limit);

private:
    explicit Subprocess(pid_t pid) noexcept;
    void note(int wait_status) noexcept;
    void reap(int options) noexcept;

    pid_t pid_ = -1;
    pid_t owner_ = -1;
    bool paused_ = false;
    std::optional<int> status_{};
};

}  // namespace support
