// What it costs to pass a lock on. Two processes hand it to each other: from the call of unlock() in one, which has worked under the lock for a while,
// until lock() has returned in the other. Beside each hand-over two bare round trips after the same work; and the same hand-overs done with bare
// hiredis, which is what the server and the scheduler cost. Then many threads of two processes want the lock at once.
// Without REDIS_URL a private server is started and has a CPU to itself, as if it were another machine: where a client and its server share one, as they
// may with REDIS_URL, a round trip takes a fraction of the time, and three processes that hand something over cannot all have the same CPU.
//
//   [REDIS_URL=redis://127.0.0.1:6379] bench_hand_over [hand-overs] [microseconds of work before each] [seconds of contention]
#include <bench/servers.hpp>

#include <hiredlock/hiredlock.hpp>

#include <hiredis/hiredis.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <new>
#include <optional>
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
    static constexpr std::size_t portion = 20;  // of hand-overs in a row; an even number

    hiredlock::Endpoint endpoint;
    std::size_t hand_overs = 1000;  // full portions
    std::chrono::microseconds work{500};
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

/// A connection of hiredis and nothing else.
class Bare {
public:
    explicit Bare(const hiredlock::Endpoint& endpoint)
        : context_(endpoint.unix_socket.empty() ? redisConnect(endpoint.host.c_str(), endpoint.port) : redisConnectUnix(endpoint.unix_socket.c_str()),
                   redisFree) {
        if (context_ == nullptr || context_->err != 0) throw std::runtime_error{"hiredis cannot connect"};
        const std::string user = endpoint.username.empty() ? "default" : endpoint.username;
        if (!endpoint.password.empty()) say("AUTH %s %s", user.c_str(), endpoint.password.c_str());
        say("SELECT %d", endpoint.database);
    }

    using Reply = std::unique_ptr<redisReply, void (*)(void*)>;

    template <class... Arguments>
    Reply say(const char* format, Arguments... arguments) {
        append(format, arguments...);
        return next();
    }
    template <class... Arguments>
    void append(const char* format, Arguments... arguments) {
        redisAppendCommand(context_.get(), format, arguments...);
    }
    Reply next() {
        void* reply = nullptr;
        if (redisGetReply(context_.get(), &reply) != REDIS_OK) throw std::runtime_error{context_->errstr};
        Reply said{static_cast<redisReply*>(reply), freeReplyObject};
        if (said->type == REDIS_REPLY_ERROR) throw std::runtime_error{said->str};
        return said;
    }

private:
    std::unique_ptr<redisContext, void (*)(redisContext*)> context_;
};

/// The least that a lock can be whose waiter is told: SET NX EX, the release by EVALSHA, and invalidation messages.
class BareLock {
public:
    BareLock(const hiredlock::Endpoint& endpoint, const char* key) : key_(key), pool_(endpoint), tracker_(endpoint), subscriber_(endpoint) {
        pool_.say("SCRIPT LOAD %s", std::string{hiredlock::detail::release_script.text}.c_str());
        const long long id = subscriber_.say("CLIENT ID")->integer;
        subscriber_.say("SUBSCRIBE __redis__:invalidate");
        tracker_.say("CLIENT TRACKING ON REDIRECT %lld NOLOOP", id);
    }

    void lock() {
        for (;;) {
            tracker_.append("SET %s %s NX EX 30", key_, token);
            tracker_.append("PTTL %s", key_);
            const Bare::Reply grant = tracker_.next(), rest = tracker_.next();
            if (grant->type != REDIS_REPLY_NIL) return;
            subscriber_.next();
        }
    }
    bool unlock() { return release()->integer != 1; }

    /// Two round trips.
    Microseconds cycle() {
        const auto start = Time::now();
        pool_.say("SET %s %s NX EX 30", key_, token);
        release();
        return Time::now() - start;
    }

private:
    static constexpr const char* token = "0123456789abcdef0123456789abcdef";

    Bare::Reply release() { return pool_.say("EVALSHA %s 1 %s %s", sha1_.c_str(), key_, token); }

    const char* key_;
    Bare pool_, tracker_, subscriber_;
    const std::string sha1_{hiredlock::detail::release_script.sha1};
};

struct Percentiles {
    double p50 = 0, p99 = 0;

    template <class Range>
    explicit Percentiles(const Range& of) {
        std::vector<double> sorted(of.begin(), of.end());
        std::sort(sorted.begin(), sorted.end());
        p50 = sorted[sorted.size() / 2];
        p99 = sorted[sorted.size() * 99 / 100];
    }

    void print(const char* what) const { std::printf("%-44s p50 %7.1f us   p99 %7.1f us\n", what, p50, p99); }
};

/// What two processes have measured of one kind of lock.
struct Samples {
    Shared<Time::time_point> began;
    Shared<double> hand_over, bare;
    explicit Samples(std::size_t size) : began(size), hand_over(size), bare(size) {}
};

/// One of two processes, number 0 or 1.
class Player {
public:
    Player(const Plan& plan, std::size_t me, Signal other) : plan_(plan), me_(me), other_(other), bare_{plan.endpoint, "bench:bare"} {}

    /// Process 0 holds the lock before the first hand-over.
    template <class AnyLock>
    void begin(AnyLock& lock) {
        if (me_ == 0) {
            lock.lock();
            other_.send();
        } else {
            other_.wait();
        }
    }

    /// Hand-over number i of a lock: from process 0 where i is even.
    template <class AnyLock>
    void hand_over(AnyLock& lock, const Samples& samples, std::size_t i) {
        if (i % 2 == me_) {
            other_.wait();
            work();
            samples.began[i] = Time::now();
            if (lock.unlock()) throw std::runtime_error{"the lock was lost"};
            other_.wait();
        } else {
            other_.send();
            lock.lock();
            samples.hand_over[i] = Microseconds{Time::now() - samples.began[i]}.count();
            work();
            samples.bare[i] = bare_.cycle().count();
            other_.send();
        }
    }

private:
    void work() const {
        for (const auto end = Time::now() + plan_.work; Time::now() < end;) {
        }
    }

    const Plan& plan_;
    std::size_t me_;
    Signal other_;
    BareLock bare_;
};

/// In small portions by turns: a slow spell of the machine falls on both alike.
void measure(const Plan& plan, std::size_t me, const Signal& other, const Samples& ours, const Samples& theirs) {
    constexpr std::size_t portion = Plan::portion;
    hiredlock::Pool pool{plan.endpoint};
    hiredlock::Lock lock{pool, "bench:hand-over", 30s, std::defer_lock};
    BareLock by_hiredis{plan.endpoint, "bench:bare-hand-over"};
    Player player{plan, me, other};
    player.begin(lock);
    player.begin(by_hiredis);
    const Samples unmeasured{portion};
    for (std::size_t i = 0; i < portion; ++i) player.hand_over(lock, unmeasured, i);
    for (std::size_t i = 0; i < portion; ++i) player.hand_over(by_hiredis, unmeasured, i);
    for (std::size_t first = 0; first < plan.hand_overs; first += portion) {
        for (std::size_t i = first; i < first + portion; ++i) player.hand_over(lock, ours, i);
        for (std::size_t i = first; i < first + portion; ++i) player.hand_over(by_hiredis, theirs, i);
    }
    if (me == 0) by_hiredis.unlock();
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

void run(const Plan& plan) {
    const Samples ours{plan.hand_overs}, theirs{plan.hand_overs};
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) throw std::runtime_error{"no socket pair"};
    in_two_processes([&](std::size_t me) { measure(plan, me, Signal{ends[me]}, ours, theirs); });
    const Percentiles bare{theirs.bare}, again{ours.bare}, by_hiredis{theirs.hand_over}, hand_over{ours.hand_over};
    bare.print("two bare round trips");
    by_hiredis.print("hand-over by bare hiredis");
    again.print("two bare round trips, again");
    hand_over.print("hand-over");
    const double apart = std::max(bare.p50, again.p50) / std::min(bare.p50, again.p50) - 1;
    std::printf("two bare loops differ by %.1f %%%s\n", 100 * apart, apart > 0.02 ? ": too much to judge by, run it again on a quiet machine" : "");
    std::printf("p50 %.2f x two bare round trips (good: at most 1.00), %.2f x the hand-over by bare hiredis; p99 %.2f x (good: at most 3.00)\n",
                hand_over.p50 / again.p50, hand_over.p50 / by_hiredis.p50, hand_over.p99 / again.p50);

    const Shared<volatile long> counter{1};
    const Shared<long> counted{2};
    const auto start = Time::now();
    in_two_processes([&](std::size_t me) { contend(plan, counter, counted, me, start + plan.contention); });
    const double seconds = std::chrono::duration<double>(Time::now() - start).count();
    const long sections = counted[0] + counted[1];
    const double rate = static_cast<double>(sections) / seconds;
    std::printf("2 processes x %d threads: %.0f critical sections/s, %.2f / (hand-over p50 + bare p50) (good: at least 0.80); shares %ld and %ld; %ld lost\n",
                plan.threads, rate, rate * (hand_over.p50 + again.p50) / 1e6, counted[0], counted[1], sections - counter[0]);
    if (sections != counter[0]) throw std::runtime_error{"updates were lost"};
}

}  // namespace

int main(int argc, char** argv) {
    try {
        std::optional<bench::PrivateServers> own;
        Plan plan;
        if (const char* const url = std::getenv("REDIS_URL")) {
            plan.endpoint = hiredlock::Endpoint::parse(url);
        } else {
            own.emplace(1U, bench::By::tcp);
            bench::keep_apart(*own);
            plan.endpoint = own->endpoints.front();
        }
        bench::wait_for(plan.endpoint);
        plan.endpoint.cas = hiredlock::Cas::script;  // as the bare loop does
        const auto argument = [&](int i, long otherwise) { return argc > i ? std::max(1L, std::strtol(argv[i], nullptr, 10)) : otherwise; };
        plan.hand_overs = (static_cast<std::size_t>(argument(1, 1000)) + Plan::portion - 1) / Plan::portion * Plan::portion;
        plan.work = std::chrono::microseconds{argument(2, 500)};
        plan.contention = std::chrono::seconds{argument(3, 5)};
        run(plan);
    } catch (const std::exception& e) {
        std::fprintf(stderr, "%s\n", e.what());
        return 1;
    }
}
