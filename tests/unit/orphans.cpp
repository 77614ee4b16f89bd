// When a token that may be left in a key is to be deleted again: often at first, until its ttl has passed or it was found.
#include <hiredlock/orphans.hpp>

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

using namespace std::chrono_literals;
using hiredlock::Claim;
using hiredlock::Clock;
using hiredlock::detail::Orphans;
using Time = Clock::time_point;

namespace {

const Time start{1h};
const Claim ten_seconds{.key = "k", .token = "t", .ttl = 10s};

TEST(OrphanSchedule, IsEmptyAtFirst) {
    Orphans orphans;
    EXPECT_TRUE(orphans.empty());
    EXPECT_EQ(orphans.next_due(), Time::max());
    EXPECT_TRUE(orphans.take_due(start).empty());
}

TEST(OrphanSchedule, IsDueAtOnceAndKeepsWhatItNeeds) {
    Orphans orphans;
    {
        const std::string key(100, 'k'), token(100, 't');
        orphans.add({.key = key, .token = token, .ttl = 10s}, start);
    }
    EXPECT_EQ(orphans.next_due(), start);
    EXPECT_TRUE(orphans.take_due(start - 1ns).empty());
    const auto due = orphans.take_due(start);
    ASSERT_EQ(due.size(), 1U);
    EXPECT_EQ(due.front().claim().key, std::string(100, 'k'));
    EXPECT_EQ(due.front().claim().token, std::string(100, 't'));
    EXPECT_TRUE(orphans.empty()) << "what was taken and found is settled";
}

TEST(OrphanSchedule, TriesLessAndLessOftenUntilTheTtlHasPassed) {
    Orphans orphans;
    orphans.add(ten_seconds, start);
    std::vector<Time> tried;
    while (orphans.next_due() != Time::max() && tried.size() < 1000) {
        const auto now = orphans.next_due();
        tried.push_back(now);
        for (auto& orphan : orphans.take_due(now)) orphans.unsettled(std::move(orphan), now);
    }
    ASSERT_GT(tried.size(), 5U);
    EXPECT_LT(tried.size(), 30U);
    EXPECT_EQ(tried.front(), start);
    EXPECT_LE(tried[1] - tried[0], 50ms);
    EXPECT_EQ(tried.back(), start + 10s) << "once more when the SET can do no harm any longer";
    for (std::size_t i = 1; i < tried.size(); ++i) {
        EXPECT_GT(tried[i], tried[i - 1]) << "never without a pause";
        EXPECT_LE(tried[i] - tried[i - 1], 2s);
    }
    EXPECT_TRUE(orphans.empty());
}

TEST(OrphanSchedule, EndsHoweverLateItIsTried) {
    Orphans orphans;
    orphans.add(ten_seconds, start);
    auto due = orphans.take_due(start + 1h);
    ASSERT_EQ(due.size(), 1U) << "it may still be there where the clocks differ";
    orphans.unsettled(std::move(due.front()), start + 1h);
    EXPECT_TRUE(orphans.empty());
}

TEST(OrphanSchedule, KeepsEachApart) {
    Orphans orphans;
    for (int i = 0; i < 100; ++i) orphans.add({.key = "k", .token = std::to_string(i), .ttl = 10s}, start + i * 1ms);
    EXPECT_EQ(orphans.take_due(start + 49ms).size(), 50U);
    EXPECT_EQ(orphans.next_due(), start + 50ms);
    EXPECT_EQ(orphans.take_due(start + 1s).size(), 50U);
    EXPECT_TRUE(orphans.empty());
}

TEST(OrphanSchedule, DoesNotOverflow) {
    Orphans orphans;
    orphans.add({.key = "k", .token = "t", .ttl = hiredlock::detail::longest_ttl}, Time::max() - 1s);
    auto due = orphans.take_due(Time::max());
    ASSERT_EQ(due.size(), 1U);
    orphans.unsettled(std::move(due.front()), Time::max());
    EXPECT_TRUE(orphans.empty());
}

}  // namespace
