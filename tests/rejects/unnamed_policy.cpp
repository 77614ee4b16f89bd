// expect: hiredlock: a policy that is passed to a Lock must be named in its type
#include <hiredlock/hiredlock.hpp>

using namespace std::chrono_literals;

void guard(hiredlock::Pool& pool) {
#ifdef ACCEPT
    hiredlock::Lock<hiredlock::Pool, hiredlock::retry::Fixed> lock{pool, "k", 10s, hiredlock::retry::Fixed{}};
#else
    hiredlock::Lock<hiredlock::Pool> lock{pool, "k", 10s, hiredlock::retry::Fixed{}};
#endif
}
