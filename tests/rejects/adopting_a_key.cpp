// expect: hiredlock: what follows the ttl of a Lock must be a mode, a limit to wait, or policies
#include <hiredlock/hiredlock.hpp>

using namespace std::chrono_literals;

void guard(hiredlock::Pool& pool) {
#ifdef ACCEPT
    hiredlock::Lock lock{pool, hiredlock::Ticket{"k", "token"}, 10s, std::adopt_lock};
#else
    hiredlock::Lock lock{pool, "k", 10s, std::adopt_lock};
#endif
}
