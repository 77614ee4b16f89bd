// The smallest program that locks: one at a time, among all that use this Redis, does the work. Start it twice at once to see it wait.
//   quickstart          (REDIS_URL=redis://127.0.0.1:6379)

// [quickstart]
#include <hiredlock/hiredlock.hpp>

#include <cstdlib>
#include <iostream>

using namespace std::chrono_literals;

int main() try {
    const char* url = std::getenv("REDIS_URL");
    hiredlock::Pool redis{url ? url : "redis://127.0.0.1:6379"};

    hiredlock::Lock lock{redis, "lock:nightly-report", 30s};  // waits until it is ours; ours for 30 s at most
    std::cout << "The lock is ours, nobody else writes the report.\n";
    lock.check();  // before a side effect: throws where the lock was lost meanwhile
    std::cout << "The report is written.\n";
} catch (const hiredlock::Error& error) {  // the lock was released at the end of its scope
    std::cerr << error.what() << '\n';
    return 1;
}
// [/quickstart]
