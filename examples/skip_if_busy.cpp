// A cron job on several machines that skips its turn while another machine is at it, without exceptions.
//   skip_if_busy            one attempt: exit 0 whether it worked or skipped, 1 where the server is in trouble
//   skip_if_busy --wait     waits 2 s at most for its turn          (REDIS_URL=redis://127.0.0.1:6379)
#include <hiredlock/hiredlock.hpp>

#include <cstdlib>
#include <iostream>
#include <thread>

using namespace std::chrono_literals;

int main(int argc, char** argv) try {
    const bool wait = argc > 1 && std::string_view{argv[1]} == "--wait";
    const char* url = std::getenv("REDIS_URL");
    hiredlock::Pool redis{url ? url : "redis://127.0.0.1:6379"};

    // Policies follow in any order: ask ten times a second while waiting, and do not wait for the answer of the release.
    hiredlock::Lock lock{redis, "lock:clean-up", 30s, std::defer_lock, hiredlock::retry::Fixed{100ms}, hiredlock::unlocking::Deferred{}};

    std::error_code error;
    const bool ours = wait ? lock.try_lock_for(2s, error) : lock.try_lock(error);
    if (error) {  // not "busy": nobody knows whether it is
        std::cerr << "cannot lock " << lock.key() << ": " << error.message()
                  << (hiredlock::is_transient(error) ? "; the next run may succeed\n" : "; somebody has to look at it\n");
        return 1;
    }
    if (!ours) {
        std::cout << "busy: another one is cleaning up, skipped\n";
        return 0;
    }
    std::this_thread::sleep_for(1s);  // where the real work would be
    lock.check();                     // before the side effect
    std::cout << "cleaned up\n";
} catch (const hiredlock::Error& error) {  // what cannot work from the start, such as a bad URI, and a lock that was lost
    std::cerr << error.what() << '\n';
    return 1;
}
