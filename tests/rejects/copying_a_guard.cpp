// expect: deleted
#include <hiredlock/hiredlock.hpp>

void hand_on(hiredlock::Lock<hiredlock::Pool>& lock) {
#ifdef ACCEPT
    hiredlock::Lock<hiredlock::Pool> other = std::move(lock);
#else
    hiredlock::Lock<hiredlock::Pool> other = lock;
#endif
}
