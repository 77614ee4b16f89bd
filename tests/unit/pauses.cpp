// How long a waiting guard pauses: the bounds, the spread, and the values that cannot work.
#include <hiredlock/retry.hpp>

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <limits>

using namespace std::chrono_literals;
using hiredlock::retry::Backoff;
using hiredlock::retry::Fixed;

namespace {

constexpr std::uint64_t most = std::numeric_limits<std::uint64_t>::max();

TEST(Backing, OffDoublesItsBoundUpToTheLast) {
    const Backoff backoff{.min = 4ms, .max = 100ms, .factor = 2};
    const std::chrono::milliseconds bounds[] = {4ms, 8ms, 16ms, 32ms, 64ms, 100ms, 100ms};
    for (unsigned asked = 1; asked <= 7; ++asked) {
        EXPECT_LE(backoff.pause(asked, most), bounds[asked - 1]);
        EXPECT_GE(backoff.pause(asked, most), bounds[asked - 1] - 1us);
        EXPECT_EQ(backoff.pause(asked, 0), 0ns);
        EXPECT_NEAR(static_cast<double>(backoff.pause(asked, most / 2).count()), static_cast<double>(std::chrono::nanoseconds{bounds[asked - 1]}.count()) / 2, 1000.0);
    }
    EXPECT_LE(backoff.pause(0, most), 4ms);
}

TEST(Backing, OffStaysBelowItsBoundHoweverOftenItAsked) {
    for (const Backoff backoff : {Backoff{}, Backoff{.min = 1us, .max = std::chrono::hours{24}, .factor = 1000}, Backoff{.factor = 1}, Backoff{.factor = 1.5}})
        for (const unsigned asked : {1U, 10U, 1000U, 100'000U, std::numeric_limits<unsigned>::max()})
            for (const std::uint64_t random : {std::uint64_t{0}, std::uint64_t{1}, most / 3, most - 1, most}) {
                EXPECT_GE(backoff.pause(asked, random), 0ns);
                EXPECT_LE(backoff.pause(asked, random), backoff.max);
            }
}

TEST(Backing, OffSaysWhatCannotWork) {
    EXPECT_EQ(Backoff{}.problem(), nullptr);
    EXPECT_EQ((Backoff{.min = 1us, .max = 1us, .factor = 1, .outage = 0ms}.problem()), nullptr);
    EXPECT_EQ((Backoff{.max = std::chrono::hours{24}}.problem()), nullptr);
    EXPECT_NE((Backoff{.min = 0us}.problem()), nullptr);
    EXPECT_NE((Backoff{.min = -1us}.problem()), nullptr);
    EXPECT_NE((Backoff{.min = 2ms, .max = 1ms}.problem()), nullptr);
    EXPECT_NE((Backoff{.max = std::chrono::hours{25}}.problem()), nullptr);
    EXPECT_NE((Backoff{.min = std::chrono::microseconds::max(), .max = std::chrono::microseconds::max()}.problem()), nullptr);
    EXPECT_NE((Backoff{.factor = 0.999}.problem()), nullptr);
    EXPECT_NE((Backoff{.factor = 1001}.problem()), nullptr);
    EXPECT_NE((Backoff{.factor = std::nan("")}.problem()), nullptr);
    EXPECT_NE((Backoff{.factor = HUGE_VAL}.problem()), nullptr);
    EXPECT_NE((Backoff{.outage = -1ms}.problem()), nullptr);
}

TEST(FixedPauses, AreFixed) {
    EXPECT_EQ((Fixed{.interval = 7ms}.pause(1, 0)), 7ms);
    EXPECT_EQ((Fixed{.interval = 7ms}.pause(1000, most)), 7ms);
    EXPECT_EQ((Fixed{.interval = std::chrono::hours{24}}.pause(1, most)), std::chrono::hours{24});
}

TEST(FixedPauses, SayWhatCannotWork) {
    EXPECT_EQ(Fixed{}.problem(), nullptr);
    EXPECT_NE((Fixed{.interval = 0us}.problem()), nullptr);
    EXPECT_NE((Fixed{.interval = -1us}.problem()), nullptr);
    EXPECT_NE((Fixed{.interval = std::chrono::microseconds::max()}.problem()), nullptr);
    EXPECT_NE((Fixed{.outage = -1ms}.problem()), nullptr);
}

}  // namespace
