// Private servers without persistence, in a folder of their own; killed, and the folder deleted, with the program.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#if defined(__linux__)
#include <sched.h>
#include <sys/prctl.h>
#endif
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <hiredlock/hiredlock.hpp>

namespace bench {

/// Waits for a server that is being started; throws after ten seconds.
inline void wait_for(const hiredlock::Endpoint& endpoint) {
    using namespace std::chrono_literals;
    const auto limit = hiredlock::Clock::now() + 10s;
    while (const auto error = hiredlock::Connection{endpoint}.ping()) {
        if (hiredlock::Clock::now() > limit) throw std::runtime_error{"no server at " + endpoint.name() + ": " + error.message()};
        std::this_thread::sleep_for(10ms);
    }
}

enum class By { tcp, unix_socket };

class PrivateServers {
public:
    PrivateServers(std::size_t count, By by) {
        std::string pattern = std::filesystem::temp_directory_path() / "bench.XXXXXX";
        if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error{"no folder can be made for servers"};
        folder_ = pattern;
        for (std::size_t i = 0; i < count; ++i) {
            if (by == By::tcp)
                endpoints.push_back({.host = "127.0.0.1", .port = free_port()});
            else
                endpoints.push_back({.unix_socket = folder_ / (std::to_string(i) + ".sock")});
            start(endpoints.back());
        }
    }
    PrivateServers(const PrivateServers&) = delete;
    PrivateServers& operator=(const PrivateServers&) = delete;
    ~PrivateServers() {
        for (const pid_t pid : pids) {
            ::kill(pid, SIGKILL);
            ::waitpid(pid, nullptr, 0);
        }
        std::filesystem::remove_all(folder_);
    }

    std::vector<hiredlock::Endpoint> endpoints;
    std::vector<pid_t> pids;

private:
    static std::uint16_t free_port() {
        const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
        sockaddr_in address{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
        socklen_t size = sizeof address;
        const bool known = ::bind(socket, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                           ::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) == 0;
        ::close(socket);
        if (!known) throw std::runtime_error{"no free port"};
        return ntohs(address.sin_port);
    }

    void start(const hiredlock::Endpoint& endpoint) {
        const bool by_tcp = endpoint.unix_socket.empty();
        const std::string where = by_tcp ? std::to_string(endpoint.port) : endpoint.unix_socket;
        const pid_t pid = ::fork();
        if (pid == 0) {
#if defined(__linux__)
            ::prctl(PR_SET_PDEATHSIG, SIGKILL);
#endif
            ::execlp("redis-server", "redis-server", "--bind", "127.0.0.1", "--port", by_tcp ? where.c_str() : "0", "--save", "", "--dir", folder_.c_str(),
                     "--logfile", "log", by_tcp ? nullptr : "--unixsocket", where.c_str(), nullptr);
            ::_exit(127);
        }
        pids.push_back(pid);
    }

    std::filesystem::path folder_;
};

/// As if they were other machines: the servers have the first CPU to themselves, this program the others. Does nothing where that cannot be done.
inline void keep_apart([[maybe_unused]] const PrivateServers& servers) {
#if defined(__linux__)
    cpu_set_t all, first;
    if (::sched_getaffinity(0, sizeof all, &all) != 0 || CPU_COUNT(&all) < 2) return;
    CPU_ZERO(&first);
    for (int cpu = 0; CPU_COUNT(&first) == 0; ++cpu)
        if (CPU_ISSET(cpu, &all)) {
            CPU_SET(cpu, &first);
            CPU_CLR(cpu, &all);
        }
    for (const pid_t pid : servers.pids) ::sched_setaffinity(pid, sizeof first, &first);
    ::sched_setaffinity(0, sizeof all, &all);
#endif
}

}  // namespace bench
