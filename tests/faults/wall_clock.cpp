// The wall clock may be set at any time: nothing of a lock depends on it.
#include <live/guards.hpp>

#include <support/eventually.hpp>

#include <gtest/gtest.h>

#include <atomic>
#include <ctime>
#include <future>

#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

namespace {

std::atomic<long> wall_clock_is_ahead{0};  // seconds
std::atomic<long> wall_clock_was_read{0};  // times

long ahead() noexcept {
    ++wall_clock_was_read;
    return wall_clock_is_ahead;
}

}  // namespace

// In this program and the libraries that it has loaded, these stand before the C library's own.
extern "C" {

int clock_gettime(clockid_t clock, timespec* time) noexcept {
    const long result = ::syscall(SYS_clock_gettime, clock, time);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI)) time->tv_sec += ahead();
    return static_cast<int>(result);
}

int gettimeofday(timeval* time, void*) noexcept {
    timespec now{};
    ::clock_gettime(CLOCK_REALTIME, &now);
    *time = {now.tv_sec, static_cast<suseconds_t>(now.tv_nsec / 1000)};
    return 0;
}

std::time_t time(std::time_t* time) noexcept {
    timespec now{};
    ::clock_gettime(CLOCK_REALTIME, &now);
    if (time != nullptr) *time = now.tv_sec;
    return now.tv_sec;
}

}  // extern "C"

namespace {

using namespace std::chrono_literals;
using namespace guards;
using hiredlock::Connection;
using hiredlock::Lock;
using hiredlock::Pool;
using hiredlock::renew::Watchdog;
using support::eventually;
using support::Raw;
using support::Server;

/// The wall clock as somebody has set it, until this ends.
class WallClockSet {
public:
    explicit WallClockSet(std::chrono::seconds by) { wall_clock_is_ahead = by.count(); }
    WallClockSet(const WallClockSet&) = delete;
    WallClockSet& operator=(const WallClockSet&) = delete;
    ~WallClockSet() { wall_clock_is_ahead = 0; }
};

constexpr std::chrono::seconds jumps[] = {300s, -300s, 24h * 365, -24h * 365};

TEST(WallClock, IsSetByTheseTests) {
    const auto before = std::chrono::system_clock::now();
    const auto steady = std::chrono::steady_clock::now();
    const WallClockSet set{300s};
    EXPECT_GT(std::chrono::system_clock::now(), before + 299s);
    EXPECT_GT(std::time(nullptr), std::chrono::system_clock::to_time_t(before) + 298);
    EXPECT_LT(std::chrono::steady_clock::now(), steady + 100s);
}

TEST(WallClock, IsNeverReadByAGuard) {
    const Server server;
    Raw raw{server};
    raw.set("busy", "somebody");
    const auto use = [](auto& store) {
        Lock lock{store, "k", 60s};
        EXPECT_TRUE(lock.extend(90s));
        EXPECT_GT(lock.remaining(), 60s);
        EXPECT_FALSE(lock.unlock());
        std::error_code ignored;
        EXPECT_FALSE(Lock(store, "busy", 60s, std::defer_lock).try_lock_for(30ms, ignored));
        const Lock deferred{store, "k", 60s, hiredlock::unlocking::Deferred{}};
    };
    const long before = wall_clock_was_read;
    {
        Pool pool{endpoint_of(server)};
        Connection connection{endpoint_of(server)};
        use(pool);
        use(connection);
        const Lock watched{pool, "w", 60s, Watchdog{.interval = 1ms}};
        Pool nobody{hiredlock::Endpoint{.port = 1}};
        EXPECT_TRUE(nobody.ping());
    }
    EXPECT_EQ(wall_clock_was_read, before);
}

TEST(WallClock, ThatIsSetWhileALockIsHeldNeitherLosesNorProlongsIt) {
    const Server server;
    Raw raw{server};
    Pool pool{endpoint_of(server)};
    for (const auto jump : jumps) {
        Lock lock{pool, "k", 60s};
        Lock brief{pool, "b", 150ms};
        const auto end = lock.expires_at();
        const WallClockSet set{jump};
        EXPECT_TRUE(lock.owns_lock());
        EXPECT_EQ(lock.expires_at(), end);
        EXPECT_GT(lock.remaining(), 30s);
        EXPECT_LT(lock.remaining(), 60s);
        EXPECT_TRUE(lock.extend(80s));
        EXPECT_LE(lock.remaining(), 80s);
        EXPECT_TRUE(eventually([&] { return !brief.owns_lock(); }));
        EXPECT_TRUE(lock.owns_lock());
        EXPECT_EQ(lock.unlock(), std::error_code{});
    }
}

TEST(WallClock, ThatIsSetWhileALockIsWaitedForNeitherEndsNorProlongsTheWait) {
    const Server server;
    Raw raw{server};
    raw.set("k", "somebody");
    Pool pool{endpoint_of(server)};
    for (const auto jump : {300s, -300s}) {
        const auto start = std::chrono::steady_clock::now();
        auto waiting = std::async(std::launch::async, [&] { return Lock{pool, "k", 60s, 300ms}.owns_lock(); });
        auto by_wall_clock = std::async(std::launch::async, [&] { return Lock{pool, "k", 60s, std::chrono::system_clock::now() + 300ms}.owns_lock(); });
        EXPECT_EQ(waiting.wait_for(100ms), std::future_status::timeout);
        const WallClockSet set{jump};
        EXPECT_FALSE(waiting.get());
        EXPECT_FALSE(by_wall_clock.get());
        EXPECT_GE(since(start), 280ms);
        EXPECT_LT(since(start), 5s);
    }
}

TEST(WallClock, ThatIsSetDoesNotKeepAWaiterFromItsLock) {
    const Server server;
    Raw raw{server};
    Pool pool{endpoint_of(server)};
    Connection connection{endpoint_of(server)};
    for (const auto jump : jumps) {
        raw.set("k", "somebody");
        raw.set("l", "somebody");
        auto waiting = std::async(std::launch::async, [&] { return Lock{pool, "k", 60s, 30s}.owns_lock(); });
        auto other = std::async(std::launch::async, [&] { return Lock{connection, "l", 60s, 30s}.owns_lock(); });
        EXPECT_EQ(waiting.wait_for(20ms), std::future_status::timeout);
        const WallClockSet set{jump};
        const auto start = std::chrono::steady_clock::now();
        raw.del("k");
        raw.del("l");
        EXPECT_TRUE(waiting.get());
        EXPECT_TRUE(other.get());
        EXPECT_LT(since(start), 5s);
    }
}

}  // namespace
