// The clock, durations of any kind, and the arithmetic of a lease: nothing wraps around.
#include <support/eventually.hpp>

#include <hiredlock/lease.hpp>

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <ratio>
#include <stop_token>
#include <thread>

using namespace std::chrono_literals;
using hiredlock::Clock;
using namespace hiredlock::detail;

namespace {

constexpr auto largest = Clock::duration::max();
constexpr auto smallest = Clock::duration::min();

TEST(Time, NeverGoesBack) {
    static_assert(Clock::is_steady && noexcept(Clock::now()));
    auto last = Clock::now();
    EXPECT_GT(last.time_since_epoch(), 0ns);
    for (int i = 0; i < 100'000; ++i) {
        const auto now = Clock::now();
        ASSERT_GE(now, last);
        last = now;
    }
}

TEST(Time, GoesAsFastAsASteadyClock) {
    const auto steady = std::chrono::steady_clock::now();
    const auto ours = Clock::now();
    while (Clock::now() - ours < 5ms) {
    }
    EXPECT_GE(std::chrono::steady_clock::now() - steady, 4900us);
}

TEST(Durations, OfAnyKindBecomeTheClocks) {
    EXPECT_EQ(clamped(1s), 1s);
    EXPECT_EQ(clamped(-1s), -1s);
    EXPECT_EQ(clamped(0ns), 0ns);
    EXPECT_EQ(clamped(std::chrono::duration<double>{0.5}), 500ms);
    EXPECT_EQ(clamped(std::chrono::duration<int, std::ratio<1, 3>>{3}), 1s);
    EXPECT_EQ(clamped(std::chrono::duration<std::int64_t, std::pico>{1'500}), 1ns);
    EXPECT_EQ(clamped(std::chrono::duration<std::uint64_t, std::milli>{7}), 7ms);
    EXPECT_EQ(clamped(std::chrono::hours{24 * 365 * 290}), std::chrono::hours{24 * 365 * 290}) << "292 years fit";
}

TEST(Durations, ThatDoNotFitBecomeTheLargestOrTheSmallest) {
    EXPECT_EQ(clamped(std::chrono::hours::max()), largest);
    EXPECT_EQ(clamped(std::chrono::milliseconds::max()), largest);
    EXPECT_EQ(clamped(std::chrono::nanoseconds::max()), largest);
    EXPECT_EQ(clamped(std::chrono::duration<std::uint64_t>::max()), largest);
    EXPECT_EQ(clamped(std::chrono::duration<float>{std::numeric_limits<float>::infinity()}), largest);
    EXPECT_EQ(clamped(std::chrono::duration<long double>::max()), largest);
    EXPECT_EQ(clamped(std::chrono::hours::min()), smallest);
    EXPECT_EQ(clamped(std::chrono::seconds::min()), smallest);
    EXPECT_EQ(clamped(std::chrono::nanoseconds::min()), smallest);
    EXPECT_EQ(clamped(std::chrono::duration<double>{-HUGE_VAL}), smallest);
    EXPECT_EQ(clamped(std::chrono::duration<float>{std::nanf("")}), smallest);
    EXPECT_EQ(clamped(std::chrono::duration<double>{std::nan("")}), smallest);
}

TEST(Durations, AreOrderedAsTheyWereAtEveryScale) {
    auto last = smallest;
    for (const long double seconds : {-1e30L, -9.3e9L, -1e9L, -1.0L, -1e-9L, 0.0L, 1e-9L, 1.0L, 1e9L, 9.3e9L, 1e30L}) {
        const auto now = clamped(std::chrono::duration<long double>{seconds});
        EXPECT_GE(now, last) << static_cast<double>(seconds);
        last = now;
    }
}

TEST(TimePoints, StopAtTheEndsOfTime) {
    const Clock::time_point somewhere{1h};
    EXPECT_EQ(after(somewhere, 1s), somewhere + 1s);
    EXPECT_EQ(after(somewhere, -1s), somewhere - 1s);
    EXPECT_EQ(after(somewhere, largest), Clock::time_point::max());
    EXPECT_EQ(after(Clock::time_point::max(), 1ns), Clock::time_point::max());
    EXPECT_EQ(after(Clock::time_point::max(), largest), Clock::time_point::max());
    EXPECT_EQ(after(Clock::time_point::max(), -1ns), Clock::time_point::max() - 1ns);
    EXPECT_EQ(after(Clock::time_point::min(), -1ns), Clock::time_point::min());
    EXPECT_EQ(after(Clock::time_point::min(), 1ns), Clock::time_point::min() + 1ns);
    EXPECT_EQ(after(Clock::time_point{-1h}, smallest), Clock::time_point::min());
    EXPECT_EQ(after(Clock::time_point{}, smallest), Clock::time_point::min());
    EXPECT_EQ(after(Clock::time_point::max(), 0ns), Clock::time_point::max());
    EXPECT_EQ(after(Clock::time_point::min(), 0ns), Clock::time_point::min());
}

TEST(Ttl, IsRoundedUpToWholeMilliseconds) {
    EXPECT_EQ(whole_ttl(5001us), 6ms);
    EXPECT_EQ(whole_ttl(5000us), 5ms);
    EXPECT_EQ(whole_ttl(5'000'001ns), 6ms);
    EXPECT_EQ(whole_ttl(1500ms), 1500ms);
    EXPECT_EQ(whole_ttl(10s), 10'000ms);
    EXPECT_EQ(whole_ttl(std::chrono::duration<double>{1.5}), 1500ms);
    EXPECT_EQ(whole_ttl(std::chrono::hours{24 * 3650}), std::chrono::hours{24 * 3650});
}

TEST(Ttl, BelowFiveMillisecondsOrAbsurdIsNone) {
    EXPECT_FALSE(whole_ttl(4'999'999ns));
    EXPECT_FALSE(whole_ttl(0s));
    EXPECT_FALSE(whole_ttl(-1s));
    EXPECT_FALSE(whole_ttl(std::chrono::hours{24 * 3650} + 1ns));
    EXPECT_FALSE(whole_ttl(std::chrono::hours::max()));
    EXPECT_FALSE(whole_ttl(std::chrono::hours::min()));
    EXPECT_FALSE(whole_ttl(std::chrono::nanoseconds::min()));
    EXPECT_FALSE(whole_ttl(std::chrono::duration<float>{std::nanf("")}));
    EXPECT_FALSE(whole_ttl(std::chrono::duration<double>{HUGE_VAL}));
}

TEST(LeaseArithmetic, GivesUpOnePercentAndTwoMillisecondsEarly) {
    const Clock::time_point sent{1h};
    EXPECT_EQ(lease_end(sent, 10s), sent + 10s - 100ms - 2ms);
    EXPECT_EQ(lease_end(sent, 5ms), sent + 5ms - 50us - 2ms);
    EXPECT_EQ(lease_end(Clock::time_point::max(), 10s), Clock::time_point::max());
    EXPECT_GT(lease_end(sent, longest_ttl), sent + longest_ttl - std::chrono::hours{24 * 37});
}

TEST(LeaseArithmetic, ALeaseIsHeldUntilItsEndAndNotAtIt) {
    const Clock::time_point sent{1h};
    Lease lease;
    EXPECT_FALSE(lease.holds(Clock::time_point{}));
    EXPECT_FALSE(lease.holds(Clock::time_point::min()));
    lease.granted(sent, 10s);
    EXPECT_TRUE(lease.holds(sent));
    EXPECT_TRUE(lease.holds(lease.end() - 1ns));
    EXPECT_FALSE(lease.holds(lease.end()));
    lease.clear();
    EXPECT_FALSE(lease.holds(sent));
}

TEST(LeaseArithmetic, ACopyHoldsWhatTheOriginalHolds) {
    Lease lease;
    lease.granted(Clock::time_point{1h}, 10s);
    const Lease copy{lease};
    EXPECT_EQ(copy.end(), lease.end());
    lease.clear();
    EXPECT_TRUE(copy.holds(Clock::time_point{1h})) << "and is a lease of its own";
}

TEST(Sleeping, EndsAtOnceWhereTheTimeHasCome) {
    for (const auto until : {Clock::now(), Clock::time_point{}, Clock::time_point::min()}) {
        std::atomic<bool> awake{false};
        std::jthread sleeper{[&](const std::stop_token& stop) {
            sleep_until(until, stop);
            awake = true;
        }};
        EXPECT_TRUE(support::eventually([&] { return awake.load(); }, 500ms)) << until.time_since_epoch().count();
    }
}

TEST(Sleeping, NeverEndsEarly) {
    const auto until = Clock::now() + 3ms;
    sleep_until(until, {});
    EXPECT_GE(Clock::now(), until);
}

TEST(Sleeping, EndsWithAStop) {
    std::stop_source source;
    source.request_stop();
    const auto start = Clock::now();
    sleep_until(Clock::time_point::max(), source.get_token());
    EXPECT_LT(Clock::now() - start, 500ms);
}

}  // namespace
