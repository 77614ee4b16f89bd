// A private server: started for a test, paused, killed and started again by it, gone with it.
#pragma once

#include "directory.hpp"
#include "subprocess.hpp"

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace support {

enum class Kind { redis, valkey };

struct ServerVersion {
    Kind kind = Kind::redis;
    int major = 0;
    int minor = 0;
    int patch = 0;

    /// Whether it is of this kind, and this version or a later one: `at_least(Kind::valkey, 8, 1)`.
    bool at_least(Kind wanted, int wanted_major, int wanted_minor = 0) const noexcept;

    std::string text() const;  ///< "valkey 8.1.3"

    /// From the reply of INFO server.
    static ServerVersion parse(const std::string& info);
};

struct ServerOptions {
    std::string password{};                ///< of the default user; empty: none
    std::vector<std::string> config{};     ///< more lines of configuration, "maxmemory 1" or "user bob on >pw ~* +@all"
    std::vector<std::string> acl_users{};  ///< lines of an aclfile, "bob on >pw ~* +@all"; not with "user …" in config
    bool tcp = true;                       ///< false: on the unix socket only
    int port = 0;                          ///< 0: a free one
    std::optional<int> replica_of_port{};  ///< of a master on 127.0.0.1 with the same password
    std::string module{};                  ///< path of a module to load
    std::string program{};                 ///< empty: HIREDLOCK_TEST_SERVER, or else redis-server on PATH
    bool append_only = false;              ///< keeps its data over a restart
    bool sentinel = false;                 ///< runs as a Sentinel; config says what it monitors
};

/// A server on a unix socket and a port of 127.0.0.1, with a directory of its own and nothing saved unless asked for.
///
/// The program may be a script, which must exec the server, so that pid() is the server and signals reach it. Every way to start it returns
/// when it answers PING, and throws std::runtime_error with the server's log when it does not within 10 s. It ends with the thread that
/// started it, see Subprocess. Addresses may be read by any thread; start, stop and the like are called by one thread at a time.
class Server {
public:
    explicit Server(ServerOptions options = {});
    Server(Server&&) noexcept = default;
    ~Server() = default;

    int port() const noexcept { return port_; }  ///< 0 without tcp; the same for its whole life
    std::string socket_path() const { return directory_.file("s"); }
    std::string uri() const;       ///< redis://127.0.0.1:port, without a password
    std::string unix_uri() const;  ///< unix:///…, without a password
    const std::string& password() const noexcept { return options_.password; }
    pid_t pid() const noexcept { return process_.pid(); }
    bool is_running() { return process_.is_running(); }

    /// SIGTERM, and SIGKILL 5 s later; returns when it has ended.
    void stop();

    /// SIGKILL; returns when it has ended.
    void kill();

    /// SIGSTOP; returns when it is stopped. Its kernel still accepts connections and bytes.
    void pause();
    void resume();

    /// Starts it again with the same addresses; does nothing when it runs.
    void start();
    void restart();

    /// Of a replica: whether it is connected to its master and in step within `limit`.
    bool wait_until_linked(std::chrono::milliseconds limit = std::chrono::seconds{10}) const;

    ServerVersion server_version() const;

    /// What the server has written since its last start.
    std::string log() const;

private:
    void write_config() const;
    bool wait_until_ready(std::chrono::steady_clock::time_point deadline);

    ServerOptions options_;
    Directory directory_{};
    int port_ = 0;
    Subprocess process_{};
};

}  // namespace support
