// expect: hiredlock: a Lock takes one policy of each kind, and two of these are of one kind
#include <hiredlock/hiredlock.hpp>

using namespace std::chrono_literals;

void guard(hiredlock::Pool& pool) {
#ifdef ACCEPT
    hiredlock::Lock lock{pool, "k", 10s, hiredlock::retry::Fixed{}, hiredlock::unlocking::Deferred{}};
#else
    hiredlock::Lock lock{pool, "k", 10s, hiredlock::retry::Fixed{}, hiredlock::retry::Backoff{}};
#endif
}
