// What it costs to pass a lock on. Two processes hand it to each other: from the call of unlock() in one until lock() has returned in the other.
// Beside each hand-over, two bare round trips of hiredis after the same pause. Then many threads of two processes want it at once.
//
//   REDIS_URL=redis://127.0.0.1:6379 bench_hand_over [hand-overs] [microseconds of pause before each] [seconds of contention]
#include <hiredlock/hiredlock.hpp>

#include <hiredis/hiredis.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

namespace {

using namespace std::chrono_literals;
using Time = std::chrono::steady_clock;
using Microseconds = std::chrono::duration<double, std::micro>;

struct Plan {
    hiredlock::Endpoint endpoint;
    std::size_t hand_overs = 1000;
    std::chrono::microseconds pause{2000};
    std::chrono::seconds contention{5};
    int threads = 8;  // in each of two processes
};

/// An array that both processes see.
template <class T>
class Shared {
public:
    explicit Shared(std::size_t size)
        : size_(size), at_(::mmap(nullptr, sizeof(T) * size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
        if (at_ == MAP_FAILED) throw std::bad_alloc{};
        for (T& element : *this) new (const_cast<void*>(static_cast<const volatile void*>(&element))) T{};
    }
    Shared(const Shared&) = delete;
    Shared& operator=(const Shared&) = delete;
    ~Shared() { ::munmap(at_, sizeof(T) * size_); }

    T* begin() const { return static_cast<T*>(at_); }
    T* end() const { return begin() + size_; }
    T& operator[](std::size_t i) const { return begin()[i]; }

private:
    std::size_t size_;
    void* at_;
};

/// One end of a line between the two processes, so that one sleeps until the other has come so far.
class Signal {
public:
    explicit Signal(int descriptor) : descriptor_(descriptor) {}
    void send() const {
        if (::send(descriptor_, "", 1, MSG_NOSIGNAL) != 1) throw std::runtime_error{"the other process is gone"};
    }
    void wait() const {
        char byte = 0;
        if (::recv(descriptor_, &byte, 1, 0) != 1) throw std::runtime_error{"the other process is gone"};
    }

private:
    int descriptor_;
};

/// hiredis and nothing else: SET NX EX and the release by EVALSHA, one after the other.
class BareLoop {
public:
    explicit BareLoop(const hiredlock::Endpoint& endpoint)
        : context_(endpoint.unix_socket.empty() ? redisConnect(endpoint.host.c_str(), endpoint.port) : redisConnectUnix(endpoint.unix_socket.c_str()),
                   redisFree) {
        if (context_ == nullptr || context_->err != 0) throw std::runtime_error{"hiredis cannot connect"};
        const std::string user = endpoint.username.empty() ? "default" : endpoint.username;
        if (!endpoint.password.empty()) say("AUTH %s %s", user.c_str(), endpoint.password.c_str());
        say("SELECT %d", endpoint.database);
        say("SCRIPT LOAD %s", std::string{hiredlock::detail::release_script.text}.c_str());
    }

    Microseconds cycle() {
        const auto start = Time::now();
        say("SET %s %s NX EX 30", key, token);
        say("EVALSHA %s 1 %s %s", sha1_.c_str(), key, token);
        return Time::now() - start;
    }

private:
    static constexpr const char* key = "bench:bare";
    static constexpr const char* token = "0123456789abcdef0123456789abcdef";

    template <class... Arguments>
    void say(const char* format, Arguments... arguments) {
        const std::unique_ptr<void, void (*)(void*)> reply{redisCommand(context_.get(), format, arguments...), freeReplyObject};
        if (reply == nullptr) throw std::runtime_error{context_->errstr};
        if (const auto* const said = static_cast<redisReply*>(reply.get()); said->type == REDIS_REPLY_ERROR) throw std::runtime_error{said->str};
    }

    std::unique_ptr<redisContext, void (*)(redisContext*)> context_;
    const std::string sha1_{hiredlock::detail::release_script.sha1};
};

struct Samples {
    Shared<Time::time_point> began;
    Shared<double> hand_over, bare;
    explicit Samples(std::size_t size) : began(size), hand_over(size), bare(size) {}
};

/// One of two processes. `me` is 0 for the one that holds the lock first.
void ping_pong(const Plan& plan, std::size_t me, const Signal& other, const Samples& samples) {
    hiredlock::Pool pool{plan.endpoint};
    hiredlock::Lock lock{pool, "bench:hand-over", 30s, std::defer_lock};
    BareLoop bare{plan.endpoint};
    if (me == 0) {
        lock.lock();
        other.send();
    } else {
        other.wait();
    }
    for (std::size_t i = 0; i < plan.hand_overs; ++i) {
        if (i % 2 == me) {
            other.wait();
            std::this_thread::sleep_for(plan.pause);
            samples.began[i] = Time::now();
            if (lock.unlock()) throw std::runtime_error{"the lock was lost"};
            other.wait();
        } else {
            other.send();
            lock.lock();
            samples.hand_over[i] = Microseconds{Time::now() - samples.began[i]}.count();
            std::this_thread::sleep_for(plan.pause);
            samples.bare[i] = bare.cycle().count();
            other.send();
        }
    }
}

/// Counts with a lock around it, in memory that is not atomic.
void contend(const Plan& plan, const Shared<volatile long>& counter, const Shared<long>& counted, std::size_t me, Time::time_point until) {
    hiredlock::Pool pool{plan.endpoint};
    std::vector<long> of_thread(static_cast<std::size_t>(plan.threads));
    {
        std::vector<std::jthread> running;
        for (long& count : of_thread)
            running.emplace_back([&] {
                hiredlock::Lock lock{pool, "bench:contention", 30s, std::defer_lock};
                while (Time::now() < until) {
                    lock.lock();
                    counter[0] = counter[0] + 1;
                    if (lock.unlock()) std::terminate();
                    ++count;
                }
            });
    }
    for (const long count : of_thread) counted[me] += count;
}

/// Runs `body(0)` here and `body(1)` in a child.
template <class Body>
void in_two_processes(Body body) {
    const pid_t child = ::fork();
    if (child == 0) {
        try {
            body(1);
            ::_exit(0);
        } catch (const std::exception& e) {
            std::fprintf(stderr, "%s\n", e.what());
            ::_exit(1);
        }
    }
    body(0);
    int status = 0;
    if (::waitpid(child, &status, 0) != child || status != 0) throw std::runtime_error{"the other process failed"};
}

struct Percentiles {
    double p50, p99;
    explicit Percentiles(const Shared<double>& of) {
        std::vector<double> sorted(of.begin(), of.end());
        std::sort(sorted.begin(), sorted.end());
        p50 = sorted[sorted.size() / 2];
        p99 = sorted[sorted.size() * 99 / 100];
    }
};

void run(const Plan& plan) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) throw std::runtime_error{"no socket pair"};
    const Samples samples{plan.hand_overs};
    in_two_processes([&](std::size_t me) { ping_pong(plan, me, Signal{ends[me]}, samples); });
    const Percentiles hand_over{samples.hand_over}, bare{samples.bare};
    std::printf("hand-over             p50 %7.1f us   p99 %7.1f us\n", hand_over.p50, hand_over.p99);
    std::printf("two bare round trips  p50 %7.1f us   p99 %7.1f us\n", bare.p50, bare.p99);
    std::printf("ratio                 p50 %7.2f      p99 to bare p50 %.2f, to bare p99 %.2f\n", hand_over.p50 / bare.p50, hand_over.p99 / bare.p50,
                hand_over.p99 / bare.p99);

    const Shared<volatile long> counter{1};
    const Shared<long> counted{2};
    const auto start = Time::now();
    in_two_processes([&](std::size_t me) { contend(plan, counter, counted, me, start + plan.contention); });
    const double seconds = std::chrono::duration<double>(Time::now() - start).count();
    const long sections = counted[0] + counted[1];
    const double rate = static_cast<double>(sections) / seconds;
    const double bar = 0.8e6 / (hand_over.p50 + bare.p50);
    std::printf("2 processes x %d threads: %.0f critical sections/s, %.2f of 0.8 / (hand-over p50 + bare cycle) = %.0f/s; shares %ld and %ld; %ld lost\n",
                plan.threads, rate, rate / bar, bar, counted[0], counted[1], sections - counter[0]);
    if (sections != counter[0]) throw std::runtime_error{"updates were lost"};
}

}  // namespace

int main(int argc, char** argv) {
    try {
        const char* const url = std::getenv("REDIS_URL");
        Plan plan{.endpoint = hiredlock::Endpoint::parse(url != nullptr ? url : "redis://127.0.0.1:6379")};
        plan.endpoint.cas = hiredlock::Cas::script;  // as the bare loop does
        const auto argument = [&](int i, long otherwise) { return argc > i ? std::max(1L, std::strtol(argv[i], nullptr, 10)) : otherwise; };
        plan.hand_overs = static_cast<std::size_t>(argument(1, 1000));
        plan.pause = std::chrono::microseconds{argument(2, 2000)};
        plan.contention = std::chrono::seconds{argument(3, 5)};
        run(plan);
    } catch (const std::exception& e) {
        std::fprintf(stderr, "%s\n", e.what());
        return 1;
    }
}
