// Tokens, and what a guard does about one that may still be in the key: a token is in one SET only, and none of ours blocks us.
#include "faulty_store.hpp"

#include <hiredlock/lock.hpp>
#include <hiredlock/token.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

using namespace std::chrono_literals;
using hiredlock::Errc;
using hiredlock::Lock;

namespace {

TEST(Tokens, AreThirtyTwoHexDigits) {
    for (int i = 0; i < 1000; ++i) {
        const std::string token = hiredlock::new_token();
        ASSERT_EQ(token.size(), 32U);
        ASSERT_EQ(token.find_first_not_of("0123456789abcdef"), std::string::npos) << token;
    }
}

TEST(Tokens, OfSixteenThreadsAreAllDistinct) {
    constexpr std::size_t threads = 16, each = 100'000 / threads;
    std::vector<std::vector<std::string>> made(threads);
    std::vector<std::thread> running;
    for (auto& mine : made)
        running.emplace_back([&mine] {
            for (std::size_t i = 0; i < each; ++i) mine.push_back(hiredlock::new_token());
        });
    for (auto& thread : running) thread.join();
    std::set<std::string> all;
    for (const auto& mine : made) all.insert(mine.begin(), mine.end());
    EXPECT_EQ(all.size(), threads * each);
}

TEST(Tokens, JitterSpreadsEvenly) {
    const std::string seed = hiredlock::new_token();
    std::vector<int> buckets(16);
    for (std::uint64_t i = 0; i < 16'000; ++i) ++buckets[hiredlock::detail::jitter(seed, i) >> 60U];
    for (const int count : buckets) {
        EXPECT_GT(count, 700);
        EXPECT_LT(count, 1300);
    }
}

class TokensOfAGuard : public testing::Test {
protected:
    void TearDown() override { store.under_way = [] {}; }  // its test's variables are gone
    /// Every token that was given to an acquire(), in order.
    std::vector<std::string> used() const {
        std::vector<std::string> tokens;
        for (const auto& asked : store.acquired) tokens.push_back(asked.token);
        return tokens;
    }
    bool each_is_new() const {
        const auto tokens = used();
        return std::set<std::string>(tokens.begin(), tokens.end()).size() == tokens.size();
    }

    FaultyStore store;
    Lock<FaultyStore> lock{store, "k", 10s, std::defer_lock};
    std::error_code error;
};

TEST_F(TokensOfAGuard, EachAcquisitionHasItsOwn) {
    for (int i = 0; i < 100; ++i) {
        lock.lock();
        EXPECT_EQ(lock.token(), store.map.value("k"));
        EXPECT_FALSE(lock.unlock());
    }
    EXPECT_TRUE(each_is_new());
}

TEST_F(TokensOfAGuard, AnAttemptAfterAnUnansweredOneHasItsOwn) {
    store.acquires = {Fate::reply_lost(), Fate::request_lost(Errc::unknown_outcome), Fate::executed_later(30ms), Fate::reply_lost()};
    EXPECT_TRUE(lock.try_lock_for(10s));
    EXPECT_EQ(store.acquired.size(), 5U);
    EXPECT_TRUE(each_is_new());
}

TEST_F(TokensOfAGuard, AnAttemptAfterARefusedOneHasItsOwn) {
    // Where "no" comes of several servers, one of them may still get the SET later.
    store.map.put("k", "another", store.now() + 1s);
    store.acquires = {Fate::refused(Errc::no_quorum), Fate::refused(Errc::loading)};
    EXPECT_TRUE(lock.try_lock_for(10s));
    EXPECT_GT(store.acquired.size(), 5U);
    EXPECT_TRUE(each_is_new());
}

TEST_F(TokensOfAGuard, AnAttemptAfterALateGrantHasItsOwn) {
    store.acquires = {Fate::takes_time(11s)};
    EXPECT_TRUE(lock.try_lock_for(30s));
    EXPECT_TRUE(each_is_new());
}

TEST_F(TokensOfAGuard, AfterAnUnansweredAttemptTheNextDeletesItsTokenFirst) {
    store.acquires = {Fate::reply_lost()};
    EXPECT_TRUE(lock.try_lock_for(10s));
    ASSERT_EQ(store.acquired.size(), 2U);
    EXPECT_EQ(store.acquired[0].stale, "");
    EXPECT_EQ(store.acquired[1].stale, store.acquired[0].token);
}

TEST_F(TokensOfAGuard, AnAnsweredAttemptNeedsNothingDeleted) {
    store.map.put("k", "another", store.now() + 1s);
    store.acquires = {Fate::reply_lost()};
    EXPECT_TRUE(lock.try_lock_for(10s));
    EXPECT_EQ(store.acquired[1].stale, store.acquired[0].token);
    EXPECT_EQ(store.acquired[2].stale, "");
}

TEST_F(TokensOfAGuard, ASetThatLandsAfterItsCleanUpDoesNotBlockTheRetry) {
    store.acquires = {Fate::executed_later(1us)};
    EXPECT_TRUE(lock.try_lock_for(1s));
    EXPECT_EQ(store.map.value("k"), lock.token());
}

TEST_F(TokensOfAGuard, AnUnansweredReleaseDoesNotBlockTheNextAcquisition) {
    lock.lock();
    const std::string first{lock.token()};
    store.releases = {Fate::request_lost()};
    EXPECT_EQ(lock.unlock(), Errc::timed_out);
    EXPECT_TRUE(lock.try_lock());
    EXPECT_EQ(store.acquired.back().stale, first);
    EXPECT_NE(lock.token(), first);
}

TEST_F(TokensOfAGuard, ALockThatRanOutDoesNotBlockTheNextAcquisition) {
    lock.lock();
    store.pass(lock.remaining());
    ASSERT_NE(store.map.value("k"), "") << "the server has it still";
    EXPECT_TRUE(lock.try_lock());
}

TEST_F(TokensOfAGuard, TwoUnansweredOperationsInARowDoNotBlockTheNextAcquisition) {
    lock.lock();
    store.releases = {Fate::request_lost()};
    EXPECT_EQ(lock.unlock(), Errc::timed_out);
    store.acquires = {Fate::request_lost()};
    EXPECT_TRUE(lock.try_lock_for(1s)) << "the first token is in the key, and nobody else knows it";
}

TEST_F(TokensOfAGuard, AnUnansweredReleaseIsCleanedUpAfterWhereTheNextAcquisitionFails) {
    lock.lock();
    const std::string token{lock.token()};
    store.releases = {Fate::request_lost()};
    EXPECT_EQ(lock.unlock(), Errc::timed_out);
    store.acquires = {Fate::refused(Errc::unreachable)};
    EXPECT_FALSE(lock.try_lock(error));
    EXPECT_EQ(error, Errc::unreachable);
    // Either the guard still knows it, or the Store has been told to see to it.
    const bool known = lock.token() == token;
    const bool abandoned = std::any_of(store.abandoned.begin(), store.abandoned.end(), [&](const auto& asked) { return asked.token == token; });
    EXPECT_TRUE(known || abandoned);
    EXPECT_TRUE(lock.try_lock()) << "nobody else has it";
}

TEST_F(TokensOfAGuard, AStopDoesNotForgetAnUnansweredRelease) {
    lock.lock();
    store.releases = {Fate::request_lost()};
    EXPECT_EQ(lock.unlock(), Errc::timed_out);
    std::stop_source source;
    store.under_way = [&] { source.request_stop(); };
    store.acquires = {Fate::refused(Errc::unreachable)};
    EXPECT_FALSE(lock.lock(source.get_token()));
    store.under_way = [] {};
    EXPECT_TRUE(lock.try_lock());
}

TEST_F(TokensOfAGuard, NoOrderOfFatesBlocksTheGuardByATokenOfItsOwn) {
    const std::vector<Fate> fates = {{}, Fate::reply_lost(), Fate::request_lost(), Fate::executed_later(1us), Fate::refused(Errc::loading)};
    for (std::size_t n = 0; n < 5 * 5 * 5; ++n) {
        FaultyStore fresh;
        Lock guard{fresh, "k", 1h, std::defer_lock};
        fresh.acquires = {fates[n % 5]};
        ASSERT_TRUE(guard.try_lock_for(1s, error)) << n;
        ASSERT_EQ(fresh.map.value("k"), guard.token()) << n;
        fresh.releases = {fates[n / 5 % 5]};
        fresh.acquires = {fates[n / 25]};
        guard.unlock();
        ASSERT_TRUE(guard.try_lock_for(1s, error)) << n;
        ASSERT_EQ(fresh.map.value("k"), guard.token()) << n;
    }
}

}  // namespace
