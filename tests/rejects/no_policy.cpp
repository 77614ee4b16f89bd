// expect: hiredlock: what follows the ttl of a Lock must be
#include <hiredlock/hiredlock.hpp>

using namespace std::chrono_literals;

void guard(hiredlock::Pool& pool) {
#ifdef ACCEPT
    hiredlock::Lock lock{pool, "k", 10s, 5s};
#else
    hiredlock::Lock lock{pool, "k", 10s, 5};
#endif
}
