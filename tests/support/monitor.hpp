// What a server executes, seen by MONITOR: every command of every client, in order, with those that scripts call.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace support {

class Raw;
class Server;

struct MonitoredCommand {
    std::chrono::microseconds time{};  ///< by the server's wall clock, since 1970
    int database = 0;
    std::string source{};             ///< "lua", "127.0.0.1:40000" or "unix:/path"
    std::vector<std::string> argv{};  ///< the exact bytes, but for \ and " on Valkey 8.1, which does not escape them

    bool from_script() const { return source == "lua"; }
    std::string name() const;  ///< of the command, in capitals

    /// From a line of MONITOR; throws std::runtime_error when it is none.
    static MonitoredCommand parse(const std::string& line);
};

/// Collects from the moment it is constructed, in a thread of its own, and may be used by any thread. When the server ends or restarts it
/// has seen its last command. Its own commands and those it needs to find its place are left out; those of a Raw are not. A copy in a
/// forked child does nothing.
class Monitor {
public:
    using Predicate = std::function<bool(const MonitoredCommand&)>;

    explicit Monitor(const Server& server);
    explicit Monitor(int port, const std::string& password = {});
    Monitor(Monitor&&) noexcept;
    Monitor& operator=(Monitor&&) = delete;
    ~Monitor();

    /// Returns when every command that was executed before this call has been collected; false when the server did not answer in time.
    bool sync(std::chrono::milliseconds limit = std::chrono::seconds{10});

    /// All that was executed before this call; throws std::runtime_error when sync() fails.
    std::vector<MonitoredCommand> commands();
    std::size_t count(const Predicate& wanted);

    /// All that has been collected, without a question to the server: for one that is paused or gone.
    std::vector<MonitoredCommand> collected() const;

    /// Whether such a command has been or is executed within `limit`.
    bool wait_for(const Predicate& wanted, std::chrono::milliseconds limit = std::chrono::seconds{5}) const;

    /// Forgets all that was executed before this call.
    void clear();

private:
    struct State;

    Monitor(Raw marker, Raw stream);

    std::unique_ptr<State> state_;
};

}  // namespace support
