// A lock that counts only once a replica has it, so that a failover right after the grant is unlikely to lose it. Where no replica is there it says so.
//   replicated [REPLICAS]          exit 0: the lock was ours; 3: too few replicas; 1: other trouble          (REDIS_URL=redis://127.0.0.1:6379)
#include <hiredlock/hiredlock.hpp>

#include <cstdlib>
#include <iostream>
#include <string>

using namespace std::chrono_literals;

int main(int argc, char** argv) try {
    const int replicas = argc > 1 ? std::stoi(argv[1]) : 1;
    const char* url = std::getenv("REDIS_URL");
    hiredlock::Pool redis{url ? url : "redis://127.0.0.1:6379"};

    const hiredlock::replication::Wait wait{.replicas = replicas, .timeout = 500ms};
    hiredlock::Lock lock{redis, "lock:replicated", 10s, std::defer_lock, wait};
    std::error_code error;
    if (!lock.try_lock_for(2s, error)) {
        if (error == hiredlock::Errc::not_replicated) {
            std::cout << "not locked: fewer than " << replicas << " replicas have the lock, and it was taken back\n";
            return 3;  // go on without a replica? That is for this program to decide, and it has decided not to
        }
        std::cerr << "not locked: " << (error ? error.message() : "another one holds it") << '\n';
        return 1;
    }
    std::cout << "locked, and " << replicas << " replicas have it\n";
    if (!lock.extend(20s, error)) {  // confirmed in the same way
        std::cerr << "not extended: " << (error ? error.message() : "it is not ours any more") << '\n';
        return 1;
    }
    std::cout << "extended, and " << replicas << " replicas know\n";
    return lock.unlock() ? 1 : 0;  // a release does not wait for replicas
} catch (const std::exception& error) {  // hiredlock::Error is one
    std::cerr << error.what() << '\n';
    return 1;
}
