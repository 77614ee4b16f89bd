// What a lock on five servers costs that nobody else wants: acquire and release, beside a bare hiredis fan-out that sends the same commands to all
// from one thread and waits for a majority; then with one of the servers stopped.
// REDIS_URLS names the servers, with spaces between, and REDIS_STOP_PID the process of the last of them, which is stopped and continued; without the
// latter that part is left out. Without REDIS_URLS five private servers are started. Keys begin with bench:.
#include <bench/servers.hpp>

#include <hiredis/hiredis.h>
#include <hiredlock/hiredlock.hpp>

#include <poll.h>
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using namespace std::chrono_literals;
using hiredlock::Clock;
using hiredlock::Endpoint;
using hiredlock::Lock;
using hiredlock::Redlock;

[[noreturn]] void fail(const std::string& what) { throw std::runtime_error{what}; }

/// The servers that are measured on.
struct Servers {
    Servers() {
        if (const char* urls = std::getenv("REDIS_URLS")) {
            std::istringstream words{urls};
            for (std::string url; words >> url;) endpoints.push_back(Endpoint::parse(url));
            if (const char* pid = std::getenv("REDIS_STOP_PID")) last = std::atoi(pid);
        } else {
            own.emplace(5U, bench::By::unix_socket);
            endpoints = own->endpoints;
            last = own->pids.back();
        }
        for (const Endpoint& endpoint : endpoints) bench::wait_for(endpoint);
    }

    std::optional<bench::PrivateServers> own;
    std::vector<Endpoint> endpoints;
    pid_t last = 0;  // of the last server; 0: not known
};

/// hiredis as one would use it by hand: all at once, and on as soon as a majority has answered.
class Bare {
public:
    explicit Bare(const std::vector<Endpoint>& endpoints) {
        for (const Endpoint& endpoint : endpoints) {
            Node& node = nodes_.emplace_back();
            node.form = hiredlock::Pool{endpoint}.cas();
            node.context.reset(endpoint.unix_socket.empty() ? redisConnectNonBlock(endpoint.host.c_str(), endpoint.port)
                                                            : redisConnectUnixNonBlock(endpoint.unix_socket.c_str()));
            if (node.context == nullptr || node.context->err != 0) fail("the bare loop has no server at " + endpoint.name());
        }
    }

    void cycle(const std::string& token) {
        ask([&](Node& node) { say(node, "SET %s %b NX EX 10", "bench:bare", token.data(), token.size()); });
        ask([&](Node& node) {
            switch (node.form) {
                case hiredlock::Cas::delex: return say(node, "DELEX %s IFEQ %b", "bench:bare", token.data(), token.size());
                case hiredlock::Cas::delifeq: return say(node, "DELIFEQ %s %b", "bench:bare", token.data(), token.size());
                case hiredlock::Cas::tair: return say(node, "CAD %s %b", "bench:bare", token.data(), token.size());
                default: return say(node, "EVAL %s 1 %s %b", hiredlock::detail::release_script.text.data(), "bench:bare", token.data(), token.size());
            }
        });
    }

private:
    struct Free {
        void operator()(redisContext* context) const { redisFree(context); }
    };
    struct Node {
        std::unique_ptr<redisContext, Free> context;
        hiredlock::Cas form{};
        std::size_t owed = 0;  ///< answers
    };

    template <class... Arguments>
    static void say(Node& node, const char* format, Arguments... arguments) {
        redisAppendCommand(node.context.get(), format, arguments...);
        int done = 0;
        if (redisBufferWrite(node.context.get(), &done) != REDIS_OK) fail("the bare loop lost a server");
        ++node.owed;
    }

    template <class Say>
    void ask(Say what) {
        for (Node& node : nodes_) what(node);
        for (std::size_t answered = 0; answered < nodes_.size() / 2 + 1;) {
            descriptors_.clear();
            for (const Node& node : nodes_) descriptors_.push_back({node.owed > 0 ? node.context->fd : -1, POLLIN, 0});
            ::poll(descriptors_.data(), descriptors_.size(), 1000);
            for (std::size_t i = 0; i < nodes_.size(); ++i)
                if (descriptors_[i].revents != 0 && read(nodes_[i])) ++answered;
        }
    }

    /// Whether all that was asked is answered.
    static bool read(Node& node) {
        if (redisBufferRead(node.context.get()) != REDIS_OK) fail("the bare loop lost a server");
        for (void* reply = nullptr; redisGetReplyFromReader(node.context.get(), &reply) == REDIS_OK && reply != nullptr;) {
            freeReplyObject(reply);
            --node.owed;
        }
        return node.owed == 0;
    }

    std::vector<Node> nodes_;
    std::vector<pollfd> descriptors_;
};

/// The times that one thing took, again and again.
class Times {
public:
    template <class Cycle>
    void take(int count, Cycle cycle) {
        for (int i = 0; i < count; ++i) {
            const auto start = Clock::now();
            cycle();
            all_.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
        }
    }
    double percentile(double share) {
        std::sort(all_.begin(), all_.end());
        return all_[static_cast<std::size_t>(share * static_cast<double>(all_.size() - 1))];
    }
    double median() { return percentile(0.5); }
    void print(const char* name) { std::printf("%-28s p50 %7.1f us   p99 %7.1f us   of %zu\n", name, median(), percentile(0.99), all_.size()); }

private:
    std::vector<double> all_;
};

void run() {
    const Servers servers;
    Bare bare{servers.endpoints};
    Redlock quorum{servers.endpoints};
    if (const auto error = quorum.ping()) fail("no majority answers: " + error.message());
    const auto bare_cycle = [&] { bare.cycle(hiredlock::new_token()); };
    const auto cycle = [&] { const Lock lock{quorum, "bench:redlock", 10s}; };

    // In small portions by turns: a slow spell of the machine falls on all alike.
    Times unmeasured, first, again, redlock;
    unmeasured.take(500, bare_cycle);
    unmeasured.take(500, cycle);
    for (int round = 0; round < 200; ++round) {
        first.take(25, bare_cycle);
        redlock.take(50, cycle);
        again.take(25, bare_cycle);
    }
    first.print("bare fan-out");
    again.print("bare fan-out again");
    redlock.print("Redlock");
    const double apart = std::max(first.median(), again.median()) / std::min(first.median(), again.median()) - 1;
    std::printf("two bare loops differ by %.1f %%%s\n", 100 * apart, apart > 0.02 ? ": too much to judge by, run it again on a quiet machine" : "");
    std::printf("Redlock %.3f x the bare fan-out (good: at most 1.15)\n\n", 2 * redlock.median() / (first.median() + again.median()));
    if (servers.last == 0) return;

    // Longer than a server's time limits, which pass unnoticed.
    const auto spend = [&](Times& times, std::chrono::milliseconds time) {
        for (const auto end = Clock::now() + time; Clock::now() < end;) times.take(20, cycle);
    };
    Times healthy, stopped;
    for (int round = 0; round < 6; ++round) {
        spend(healthy, 1s);
        ::kill(servers.last, SIGSTOP);
        spend(stopped, 2s);
        ::kill(servers.last, SIGCONT);
        spend(unmeasured, 500ms);
    }
    healthy.print("all servers healthy");
    stopped.print("one server stopped");
    std::printf("one server stopped: %.3f x healthy (good: at most 1.30)\n", stopped.median() / healthy.median());
}

}  // namespace

int main() {
    try {
        run();
    } catch (const std::exception& e) {
        std::fprintf(stderr, "%s\n", e.what());
        return 1;
    }
}
