// A job that takes longer than anyone would want a dead holder to keep its lock: the lock lasts one second and is renewed while the job runs. Where
// it is lost all the same, the job stops.
//   long_job [SECONDS]          exit 0: done, or another one is at it; 1: stopped, or no lock to be had          (REDIS_URL=redis://127.0.0.1:6379)
#include <hiredlock/hiredlock.hpp>

#include <condition_variable>
#include <cstdlib>
#include <iostream>
#include <mutex>
#include <string>

using namespace std::chrono_literals;

/// One step of the work, which ends at once when a stop is requested.
void work_for(std::chrono::milliseconds time, const std::stop_token& stop) {
    std::mutex mutex;
    std::condition_variable_any stopped;
    std::unique_lock lock{mutex};
    stopped.wait_for(lock, stop, time, [] { return false; });
}

int main(int argc, char** argv) try {
    const int seconds = argc > 1 ? std::stoi(argv[1]) : 3;
    const char* url = std::getenv("REDIS_URL");
    hiredlock::Pool redis{url ? url : "redis://127.0.0.1:6379"};

    // If this process is killed the lock is free a second later. If it hangs for ever, an hour later.
    hiredlock::renew::Watchdog watchdog{.max_hold = 1h};
    watchdog.on_lost = [](const hiredlock::Error& error) { std::cerr << error.what() << '\n'; };  // on the Pool's thread
    hiredlock::Lock lock{redis, "lock:long-job", 1s, std::try_to_lock, watchdog};
    if (!lock) {
        std::cout << "busy: another one is at it\n";
        return 0;
    }
    std::cout << "started" << std::endl;

    const std::stop_token stop = lock.stop_token();
    for (int step = 0; step < seconds * 10 && !stop.stop_requested(); ++step) {
        work_for(100ms, stop);
        if (stop.stop_requested()) break;
        lock.check();  // before each side effect; here it could as well be the only thing to ask
    }
    if (stop.stop_requested()) {
        std::cout << "stopped: the lock is lost, and another one may be at it by now\n";
        return 1;
    }
    const std::error_code error = lock.unlock();
    std::cout << (error ? "done, but the lock was not ours to the end\n" : "done, and the lock was ours all the time\n");
    return error ? 1 : 0;
} catch (const std::exception& error) {  // hiredlock::Error is one
    std::cerr << error.what() << '\n';
    return 1;
}
