// What a lock costs that nobody else wants: acquire and release, confirmed and deferred, beside a bare hiredis loop that sends the same commands.
// REDIS_URL names the server (redis://127.0.0.1:6379); keys begin with bench:.
#include <bench/ratios.hpp>

#include <benchmark/benchmark.h>
#include <hiredis/hiredis.h>
#include <hiredlock/hiredlock.hpp>

#include <cstdlib>
#include <memory>
#include <string>

namespace {

using namespace std::chrono_literals;
using hiredlock::Cas;
using hiredlock::Endpoint;
using hiredlock::Lock;
using hiredlock::Pool;

const std::string token(32, 'b');

Endpoint endpoint() {
    const char* url = std::getenv("REDIS_URL");
    return Endpoint::parse(url != nullptr ? url : "redis://127.0.0.1:6379");
}

/// The Pool that is measured. Its form of compare-and-delete is the bare loop's, too.
Pool& pool() {
    static Pool instance{endpoint()};
    return instance;
}

/// hiredis as one would use it by hand.
class Bare {
public:
    Bare() {
        const Endpoint where = endpoint();
        context_.reset(where.unix_socket.empty() ? redisConnect(where.host.c_str(), where.port) : redisConnectUnix(where.unix_socket.c_str()));
        if (!where.username.empty())
            say("AUTH %s %s", where.username.c_str(), where.password.c_str());
        else if (!where.password.empty())
            say("AUTH %s", where.password.c_str());
        say("SELECT %d", where.database);
        say("SCRIPT LOAD %s", hiredlock::detail::release_script.text.data());
    }

    void cycle(Cas form) {
        say("SET %s %b NX EX 10", "bench:bare", token.data(), token.size());
        switch (form) {
            case Cas::delex: return say("DELEX %s IFEQ %b", "bench:bare", token.data(), token.size());
            case Cas::delifeq: return say("DELIFEQ %s %b", "bench:bare", token.data(), token.size());
            case Cas::tair: return say("CAD %s %b", "bench:bare", token.data(), token.size());
            default: return say("EVALSHA %s 1 %s %b", hiredlock::detail::release_script.sha1.data(), "bench:bare", token.data(), token.size());
        }
    }

private:
    template <class... Arguments>
    void say(const char* format, Arguments... arguments) {
        auto* reply = static_cast<redisReply*>(redisCommand(context_.get(), format, arguments...));
        if (reply == nullptr) {
            std::fprintf(stderr, "the bare loop lost its server: %s\n", context_->errstr);
            std::exit(1);
        }
        freeReplyObject(reply);
    }

    struct Free {
        void operator()(redisContext* context) const { redisFree(context); }
    };
    std::unique_ptr<redisContext, Free> context_;
};

void bare_loop(benchmark::State& state) {
    static Bare bare;
    const Cas form = pool().cas();  // drains, with its PING, what a deferred release may have left
    for (auto _ : state) bare.cycle(form);
}
void bare(benchmark::State& state) { bare_loop(state); }
void bare_again(benchmark::State& state) { bare_loop(state); }

void confirmed(benchmark::State& state) {
    for (auto _ : state) Lock lock{pool(), "bench:confirmed", 10s};
}

void deferred(benchmark::State& state) {
    for (auto _ : state) Lock lock{pool(), "bench:deferred", 10s, hiredlock::unlocking::Deferred{}};
    if (pool().ping()) state.SkipWithError("the server is gone");
}

BENCHMARK(bare)->UseRealTime();
BENCHMARK(confirmed)->UseRealTime();
BENCHMARK(deferred)->UseRealTime();
BENCHMARK(bare_again)->UseRealTime();

}  // namespace

int main(int argc, char** argv) {
    // Short runs in random order, many times: a slow spell of the machine then falls on all alike.
    std::vector<char*> arguments{argv, argv + argc};
    std::string defaults[] = {"--benchmark_repetitions=40", "--benchmark_min_time=0.05", "--benchmark_enable_random_interleaving=true",
                              "--benchmark_report_aggregates_only=true"};
    for (auto& one : defaults) arguments.insert(arguments.begin() + 1, one.data());
    int count = static_cast<int>(arguments.size());
    benchmark::Initialize(&count, arguments.data());
    if (const auto error = pool().ping()) {
        std::fprintf(stderr, "no server at %s: %s\n", endpoint().name().c_str(), error.message().c_str());
        return 1;
    }
    bench::Ratios reporter{"bare", "bare_again", {{"confirmed", 1.05}, {"deferred", 0.65}}};
    benchmark::RunSpecifiedBenchmarks(&reporter);
}
