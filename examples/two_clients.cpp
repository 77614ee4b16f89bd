// Two clients and one key: only the one that holds the lock can release it, and only once.
//   two_clients [KEY]          (REDIS_URL=redis://127.0.0.1:6379)
#include <hiredlock/hiredlock.hpp>

#include <cstdlib>
#include <iostream>

using namespace std::chrono_literals;

int main(int argc, char** argv) try {
    const char* url = std::getenv("REDIS_URL");
    hiredlock::Pool redis{url ? url : "redis://127.0.0.1:6379"};
    const std::string key = argc > 1 ? argv[1] : "lock:two-clients";

    hiredlock::Lock a{redis, key, 10s, std::try_to_lock};
    hiredlock::Lock b{redis, key, 10s, std::try_to_lock};
    const auto released = [](auto& lock) {
        const std::error_code error = lock.unlock();  // {}: deleted, by its token; not_held: nothing was deleted
        if (error && error != hiredlock::Errc::not_held) throw hiredlock::Error{error, "the release of " + lock.key() + " failed"};
        return !error;
    };
    std::cout << std::boolalpha;
    std::cout << "A locks: " << a.owns_lock() << '\n';
    std::cout << "B locks: " << b.owns_lock() << '\n';
    std::cout << "B releases: " << released(b) << '\n';
    std::cout << "A releases: " << released(a) << '\n';
    std::cout << "A releases again: " << released(a) << '\n';
} catch (const hiredlock::Error& error) {
    std::cerr << error.what() << '\n';
    return 1;
}
