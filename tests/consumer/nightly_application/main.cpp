#include <hiredis/hiredis.h>
#include <nightly.hpp>

#include <cstdio>
#include <system_error>

int main() {
    hiredlock::Pool pool{"unix:///nonexistent/socket"};
    std::error_code error;
    if (nightly::guard(pool).try_lock(error) || error != hiredlock::Errc::unreachable) return 1;
    std::printf("hiredis %d.%d\n", HIREDIS_MAJOR, HIREDIS_MINOR);
    return 0;
}
