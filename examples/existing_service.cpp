// A service with a redisContext and threads of its own begins to lock across machines: with a guard on that context, and with guards as
// members, which std::unique_lock and std::scoped_lock take like any mutex.
//   existing_service          (REDIS_URL=redis://127.0.0.1:6379)
#include <hiredlock/hiredlock.hpp>

#include <hiredis/hiredis.h>

#include <cstdlib>
#include <future>
#include <iostream>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

using namespace std::chrono_literals;

struct Free {
    void operator()(redisContext* context) const { redisFree(context); }
    void operator()(redisReply* reply) const { freeReplyObject(reply); }
};
using Context = std::unique_ptr<redisContext, Free>;

template <class... Args>
std::string ask(const Context& redis, const char* format, Args... args) {
    const std::unique_ptr<redisReply, Free> reply{static_cast<redisReply*>(redisCommand(redis.get(), format, args...))};
    if (!reply) throw std::runtime_error{redis->errstr};
    if (reply->type == REDIS_REPLY_ERROR) throw std::runtime_error{reply->str};
    return reply->type == REDIS_REPLY_INTEGER ? std::to_string(reply->integer) : std::string{reply->str, reply->len};
}

Context connect(const hiredlock::Endpoint& at) {
    Context redis{at.unix_socket.empty() ? redisConnect(at.host.c_str(), at.port) : redisConnectUnix(at.unix_socket.c_str())};
    if (!redis || redis->err != 0) throw std::runtime_error{at.name() + ": " + (redis ? redis->errstr : "no memory")};
    if (!at.password.empty()) ask(redis, "AUTH %s %s", at.username.empty() ? "default" : at.username.c_str(), at.password.c_str());
    ask(redis, "SELECT %d", at.database);
    return redis;
}

/// Moves goods from one shelf to another. One per thread, for a guard is used by one thread at a time.
class Clerk {
public:
    Clerk(hiredlock::Pool& pool, const hiredlock::Endpoint& at)
        : redis_{connect(at)}, from_{pool, "lock:shelf:a", 10s, std::defer_lock}, to_{pool, "lock:shelf:b", 10s, std::defer_lock} {}

    void move_one() {
        const std::scoped_lock both{from_, to_};
        const int a = std::stoi(ask(redis_, "GET shelf:a"));
        const int b = std::stoi(ask(redis_, "GET shelf:b"));
        from_.check(), to_.check();
        ask(redis_, "MSET shelf:a %d shelf:b %d", a - 1, b + 1);  // lost updates, were it not for the locks
    }

private:
    Context redis_;
    hiredlock::Lock<hiredlock::Pool> from_, to_;
};

int main() try {
    const char* url = std::getenv("REDIS_URL");
    const auto endpoint = hiredlock::Endpoint::parse(url ? url : "redis://127.0.0.1:6379");

    const Context service = connect(endpoint);
    auto borrowed = hiredlock::Connection::borrow(service.get());
    hiredlock::Lock move{borrowed, "lock:move", 10s, std::defer_lock};
    const std::unique_lock held{move, 2s};  // from here on the guard's commands and the service's own take turns on one context
    if (!held) throw std::runtime_error{"another service is moving goods"};
    ask(service, "MSET shelf:a 20 shelf:b 0");

    hiredlock::Pool pool{endpoint};
    std::vector<std::future<void>> threads;
    for (int i = 0; i < 4; ++i)
        threads.push_back(std::async(std::launch::async, [&pool, &endpoint] {
            Clerk clerk{pool, endpoint};
            for (int n = 0; n < 5; ++n) clerk.move_one();
        }));
    for (auto& thread : threads) thread.get();

    const std::string a = ask(service, "GET shelf:a"), b = ask(service, "GET shelf:b");
    move.check();
    ask(service, "DEL shelf:a shelf:b");
    std::cout << "four threads moved 20 goods, none was lost: a has " << a << ", b has " << b << '\n';
    std::cout << "the service's own context still works: " << ask(service, "PING") << '\n';
    return a == "0" && b == "20" ? 0 : 1;
} catch (const std::exception& error) {  // hiredlock::Error is one
    std::cerr << error.what() << '\n';
    return 1;
}
