// A lock that the majority of five independent servers grants: it outlives two of them, and is refused once three are gone. Starts five private
// servers on unix sockets, which end with it.
//   five_nodes [PROGRAM]          (PROGRAM: redis-server)
#include <hiredlock/hiredlock.hpp>

#include <signal.h>
#if defined(__linux__)
#include <sys/prctl.h>
#endif
#include <sys/wait.h>
#include <unistd.h>

#include <deque>
#include <filesystem>
#include <iostream>
#include <thread>

using namespace std::chrono_literals;

/// A server of our own in a folder of its own. Killed at the end of its scope, and by the kernel where this process is killed.
class Server {
public:
    Server(const std::string& program, const std::filesystem::path& folder) : socket_{folder / "redis.sock"} {
        std::filesystem::create_directory(folder);
        pid_ = ::fork();
        if (pid_ != 0) return;
#if defined(__linux__)
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
#endif
        const std::string log = folder / "log";
        ::execlp(program.c_str(), program.c_str(), "--port", "0", "--unixsocket", socket_.c_str(), "--save", "", "--dir", folder.c_str(), "--logfile",
                 log.c_str(), nullptr);
        ::_exit(127);
    }
    Server(const Server&) = delete;
    Server& operator=(const Server&) = delete;
    ~Server() { kill(); }

    void kill() {
        if (pid_ <= 0) return;
        ::kill(pid_, SIGKILL);
        ::waitpid(pid_, nullptr, 0);
        pid_ = 0;
    }
    hiredlock::Endpoint endpoint() const { return {.unix_socket = socket_}; }

private:
    std::string socket_;
    pid_t pid_ = 0;
};

struct Folder {
    ~Folder() { std::filesystem::remove_all(path); }
    std::filesystem::path path;
};

int main(int argc, char** argv) try {
    char pattern[] = "/tmp/five_nodes.XXXXXX";
    if (::mkdtemp(pattern) == nullptr) throw std::runtime_error{"no folder can be made in /tmp"};
    const Folder folder{pattern};
    std::deque<Server> servers;
    std::vector<hiredlock::Endpoint> endpoints;
    for (const char* name : {"1", "2", "3", "4", "5"}) endpoints.push_back(servers.emplace_back(argc > 1 ? argv[1] : "redis-server", folder.path / name).endpoint());

    for (const auto& endpoint : endpoints) {
        const auto limit = hiredlock::Clock::now() + 10s;
        while (hiredlock::Connection{endpoint}.ping() && hiredlock::Clock::now() < limit) std::this_thread::sleep_for(10ms);
    }
    hiredlock::Redlock quorum{endpoints};
    const auto expect = [](bool fulfilled, const char* what) {
        std::cout << (fulfilled ? "" : "NOT: ") << what << std::endl;
        if (!fulfilled) throw std::runtime_error{"this is not what Redlock promises"};
    };

    hiredlock::Lock lock{quorum, "lock:five-nodes", 10s};
    expect(lock.owns_lock(), "Five servers, and the lock is ours.");
    expect(!hiredlock::Lock{quorum, "lock:five-nodes", 10s, std::try_to_lock}, "Nobody else can have it.");

    for (const std::size_t i : {0U, 1U}) servers[i].kill();
    expect(lock.extend(10s) && !lock.unlock(), "Two servers are killed: the lock is still ours, can be extended, and is released.");
    expect(lock.try_lock() && !lock.unlock(), "Three of five are a majority: it can be locked again.");

    servers[2].kill();
    std::error_code error;
    expect(!lock.try_lock(error) && error == hiredlock::Errc::no_quorum, "A third one is killed: no majority is left, and the lock is refused.");
    std::cout << "It says: " << lock.last_error() << std::endl;
} catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
}
