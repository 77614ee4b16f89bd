// A stranger's program: it needs no server to show that the library is found, compiles and links.
#include <hiredis/hiredis.h>
#include <hiredlock/hiredlock.hpp>

#include <chrono>
#include <cstdio>
#include <system_error>

int main() {
    using namespace std::chrono_literals;
    hiredlock::Pool pool{"unix:///nonexistent/socket"};
    hiredlock::Lock lock{pool, "lock:nightly-report", 10s, std::defer_lock};
    std::error_code error;
    if (lock.try_lock(error) || error != hiredlock::Errc::unreachable) return 1;
    std::printf("hiredis %d.%d\n", HIREDIS_MAJOR, HIREDIS_MINOR);
    return 0;
}
