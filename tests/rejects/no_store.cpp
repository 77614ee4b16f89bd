// expect: LockStore
#include <hiredlock/hiredlock.hpp>

using namespace std::chrono_literals;

#ifdef ACCEPT
using Store = hiredlock::Pool;
#else
using Store = std::string;
#endif

void guard(Store& store) { hiredlock::Lock<Store> lock{store, "k", 10s}; }
