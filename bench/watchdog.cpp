// What many locks under one watchdog cost: they are taken, held for many ttls, and counted. Exit 1 where one was lost.
//   bench_watchdog [LOCKS] [TTL_MS] [SECONDS]          (10000, 3000, 20; REDIS_URL=redis://127.0.0.1:6379)
#include <hiredlock/hiredlock.hpp>

#include <sys/resource.h>

#include <atomic>
#include <cstdlib>
#include <iomanip>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

using namespace std::chrono_literals;
using Watched = hiredlock::Lock<hiredlock::Pool, hiredlock::renew::Watchdog>;
using Seconds = std::chrono::duration<double>;

/// The processor time of all threads but the one that calls: here, of the watchdog.
Seconds time_of_others() {
    const auto used = [](int who) {
        rusage usage{};
        ::getrusage(who, &usage);
        return std::chrono::seconds{usage.ru_utime.tv_sec + usage.ru_stime.tv_sec} + std::chrono::microseconds{usage.ru_utime.tv_usec + usage.ru_stime.tv_usec};
    };
    return used(RUSAGE_SELF) - used(RUSAGE_THREAD);
}

/// Counts renewals by the leases that have moved. Asked more often than an interval it misses none.
class Renewals {
public:
    explicit Renewals(const std::vector<Watched>& locks) : locks_(locks) {
        for (const Watched& lock : locks) ends_.push_back(lock.expires_at());
    }
    void look() {
        for (std::size_t i = 0; i < locks_.size(); ++i) {
            const auto end = locks_[i].expires_at();
            if (end > ends_[i]) ++count_;
            if (end > ends_[i]) ends_[i] = end;
        }
    }
    std::size_t count() const { return count_; }

private:
    const std::vector<Watched>& locks_;
    std::vector<hiredlock::Clock::time_point> ends_;
    std::size_t count_ = 0;
};

int main(int argc, char** argv) try {
    const int count = argc > 1 ? std::stoi(argv[1]) : 10'000;
    const std::chrono::milliseconds ttl{argc > 2 ? std::stoi(argv[2]) : 3000};
    const std::chrono::seconds time{argc > 3 ? std::stoi(argv[3]) : 20};
    const char* url = std::getenv("REDIS_URL");
    hiredlock::Pool redis{url ? url : "redis://127.0.0.1:6379"};

    std::atomic<int> lost{0};
    const hiredlock::renew::Watchdog watchdog{.on_lost = [&lost](const hiredlock::Error&) { ++lost; }};
    std::vector<Watched> locks;
    locks.reserve(static_cast<std::size_t>(count));
    const auto began = hiredlock::Clock::now();
    for (int i = 0; i < count; ++i) locks.emplace_back(redis, "bench:watchdog:" + std::to_string(i), ttl, 10s, watchdog);
    const Seconds taking = hiredlock::Clock::now() - began;

    Renewals renewals{locks};
    const auto start = hiredlock::Clock::now();
    const Seconds used = time_of_others();
    while (hiredlock::Clock::now() - start < time) {
        std::this_thread::sleep_for(ttl / 30);
        renewals.look();
    }
    const Seconds wall = hiredlock::Clock::now() - start;
    const Seconds watching = time_of_others() - used;

    long long held = 0;
    for (const Watched& lock : locks) held += lock.owns_lock() ? 1 : 0;
    std::cout << std::fixed << std::setprecision(1) << count << " locks of " << ttl.count() << " ms, taken in " << taking.count() << " s, held for "
              << wall.count() << " s\n"
              << "renewals per second   " << static_cast<double>(renewals.count()) / wall.count() << '\n'
              << "watchdog's processor  " << 100 * watching.count() / wall.count() << " % of one core, "
              << 1e6 * watching.count() / static_cast<double>(std::max<std::size_t>(renewals.count(), 1)) << " us a renewal\n"
              << "lost                  " << lost << ", held at the end " << held << '\n';
    return lost == 0 && held == count ? 0 : 1;
} catch (const std::exception& error) {  // hiredlock::Error is one
    std::cerr << error.what() << '\n';
    return 1;
}
