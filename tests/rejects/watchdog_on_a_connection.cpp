// expect: hiredlock: renew::Watchdog needs a Store with a thread of its own, such as a Pool; a Connection has none
#include <hiredlock/hiredlock.hpp>

using namespace std::chrono_literals;

#ifdef ACCEPT
using Store = hiredlock::Pool;
#else
using Store = hiredlock::Connection;
#endif

void guard(Store& store) { hiredlock::Lock lock{store, "k", 10s, hiredlock::renew::Watchdog{}}; }
