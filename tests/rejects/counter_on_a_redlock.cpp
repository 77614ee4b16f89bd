// expect: hiredlock: fence::Counter needs a Store of one server, such as a Pool; numbers of independent servers do not grow together
#include <hiredlock/hiredlock.hpp>

using namespace std::chrono_literals;

#ifdef ACCEPT
using Store = hiredlock::Pool;
#else
using Store = hiredlock::Redlock;
#endif

void guard(Store& store) { hiredlock::Lock lock{store, "k", 10s, hiredlock::fence::Counter{}}; }
