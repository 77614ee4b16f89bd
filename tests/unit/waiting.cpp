// How long a guard waits, what it repeats meanwhile, and what ends the waiting.
#include "faulty_store.hpp"

#include <hiredlock/lock.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <mutex>
#include <set>
#include <stop_token>
#include <string>
#include <system_error>
#include <thread>

using namespace std::chrono_literals;
using hiredlock::Errc;
using hiredlock::Lock;

namespace {

constexpr Errc transient[] = {Errc::timed_out, Errc::unreachable, Errc::unknown_outcome, Errc::read_only, Errc::loading, Errc::no_quorum};
constexpr Errc permanent[] = {Errc::invalid_argument, Errc::denied, Errc::out_of_memory, Errc::disk_error,
                              Errc::wrong_type, Errc::not_replicated, Errc::unsupported, Errc::protocol};

class Waiting : public testing::Test {
protected:
    void TearDown() override { store.under_way = [] {}; }  // its test's variables are gone
    void hold_by_another() { store.map.put("k", "another"); }
    hiredlock::Clock::duration waited() const { return store.now() - start; }

    FaultyStore store;
    Lock<FaultyStore> lock{store, "k", 10s, std::defer_lock};
    const MapStore::Time start = store.now();
    std::error_code error = std::make_error_code(std::errc::interrupted);
};

TEST_F(Waiting, UsesTheWholeLimitAndAsksOnceMoreAtItsEnd) {
    hold_by_another();
    EXPECT_FALSE(lock.try_lock_for(2s));
    EXPECT_GE(waited(), 1999ms);
    EXPECT_LE(waited(), 2010ms);
    EXPECT_GE(store.acquired.back().at - start, 1990ms);
}

TEST_F(Waiting, TakesTheLockThatIsReleasedInTheLastMoment) {
    store.map.put("k", "another", start + 1990ms);
    EXPECT_TRUE(lock.try_lock_for(2s));
    EXPECT_LE(waited(), 2005ms);
}

TEST_F(Waiting, NeverAsksFarPastTheLimit) {
    hold_by_another();
    for (const auto limit : {1us, 1000us, 5000us, 123'456us, 10'000'000us}) {
        const auto begin = store.now();
        EXPECT_FALSE(lock.try_lock_for(limit));
        EXPECT_LE(store.now() - begin, limit + 5ms);
    }
}

TEST_F(Waiting, AsksOftenEnoughAndNotTooOften) {
    hold_by_another();
    EXPECT_FALSE(lock.try_lock_for(60s));
    EXPECT_GT(store.acquired.size(), 60s / 128ms);
    EXPECT_LT(store.acquired.size(), 3000U);
}

TEST_F(Waiting, WithAFixedPauseAsksAtThatInterval) {
    hold_by_another();
    Lock fixed{store, "k", 10s, std::defer_lock, hiredlock::retry::Fixed{.interval = 100ms}};
    EXPECT_FALSE(fixed.try_lock_for(1s));
    EXPECT_GE(store.acquired.size(), 10U);
    EXPECT_LE(store.acquired.size(), 12U);
}

TEST_F(Waiting, ALimitOfZeroOrLessIsExactlyOneAttempt) {
    hold_by_another();
    const auto attempts = [&](auto limit) {
        store.acquired.clear();
        EXPECT_FALSE(lock.try_lock_for(limit));
        return store.acquired.size();
    };
    EXPECT_EQ(attempts(0s), 1U);
    EXPECT_EQ(attempts(-1ns), 1U);
    EXPECT_EQ(attempts(std::chrono::nanoseconds::min()), 1U);
    EXPECT_EQ(attempts(std::chrono::hours::min()), 1U);
    EXPECT_EQ(attempts(std::chrono::duration<float>{std::nanf("")}), 1U);
    EXPECT_EQ(attempts(std::chrono::duration<double>{-INFINITY}), 1U);
    EXPECT_TRUE(store.slept_until.empty());
}

TEST_F(Waiting, AVeryLongLimitIsALimitAllTheSame) {
    const auto gets_it = [&](auto limit) {
        store.map.put("k", "another", store.now() + 30s);
        const bool got = lock.try_lock_for(limit);
        EXPECT_FALSE(lock.unlock());
        return got;
    };
    EXPECT_TRUE(gets_it(std::chrono::hours::max()));
    EXPECT_TRUE(gets_it(std::chrono::milliseconds::max()));
    EXPECT_TRUE(gets_it(std::chrono::nanoseconds::max()));
    EXPECT_TRUE(gets_it(std::chrono::duration<double>{INFINITY}));
    EXPECT_TRUE(gets_it(std::chrono::duration<float, std::ratio<86400>>{1e30F}));
}

TEST_F(Waiting, ATimePointOfAnyClockIsALimit) {
    hold_by_another();
    const auto attempts = [&](auto until) {
        store.acquired.clear();
        EXPECT_FALSE(lock.try_lock_until(until));
        return store.acquired.size();
    };
    EXPECT_EQ(attempts(std::chrono::steady_clock::time_point::min()), 1U);
    EXPECT_EQ(attempts(std::chrono::system_clock::time_point::min()), 1U);
    EXPECT_EQ(attempts(MapStore::Time::min()), 1U);
    EXPECT_EQ(attempts(std::chrono::steady_clock::now() - 1s), 1U);
    EXPECT_EQ(attempts(std::chrono::time_point<std::chrono::steady_clock, std::chrono::duration<double>>{std::chrono::duration<double>{std::nan("")}}), 1U);
    EXPECT_EQ(attempts(store.now()), 1U);
    EXPECT_GT(attempts(std::chrono::steady_clock::now() + 1h), 100U);
    EXPECT_GT(attempts(std::chrono::system_clock::now() + 1h), 100U);
    EXPECT_GT(attempts(store.now() + 1h), 100U);

    const auto gets_it = [&](auto until) {
        store.map.put("k", "another", store.now() + 30s);
        const bool got = lock.try_lock_until(until);
        EXPECT_FALSE(lock.unlock());
        return got;
    };
    EXPECT_TRUE(gets_it(std::chrono::steady_clock::time_point::max()));
    EXPECT_TRUE(gets_it(std::chrono::system_clock::time_point::max()));
    EXPECT_TRUE(gets_it(MapStore::Time::max()));
    EXPECT_TRUE(gets_it(std::chrono::time_point<std::chrono::system_clock, std::chrono::hours>::max()));
}

TEST_F(Waiting, WhatFailsTransientlyIsRepeatedInsideTheLimit) {
    for (const Errc code : transient) {
        store.acquires = {Fate::refused(code), Fate::refused(code), Fate::refused(code)};
        EXPECT_TRUE(lock.try_lock_for(5s, error)) << error.message();
        EXPECT_FALSE(error);
        EXPECT_FALSE(lock.unlock());
    }
}

TEST_F(Waiting, WhatFailsTransientlyToTheEndOfTheLimitIsThatError) {
    store.usual = Fate::refused(Errc::loading);
    EXPECT_FALSE(lock.try_lock_for(3s, error));
    EXPECT_EQ(error, Errc::loading);
    EXPECT_GE(waited(), 2990ms);
    EXPECT_LE(waited(), 3010ms);
}

TEST_F(Waiting, WhatFailsForGoodEndsItAtOnce) {
    for (const Errc code : permanent) {
        store.acquired.clear();
        store.acquires = {Fate::refused(code)};
        EXPECT_FALSE(lock.try_lock_for(1h, error));
        EXPECT_EQ(error, code);
        EXPECT_EQ(store.acquired.size(), 1U);
        store.acquires = {Fate::refused(code)};
        EXPECT_THROW(lock.lock(), hiredlock::Error);
    }
    EXPECT_TRUE(store.slept_until.empty());
}

TEST_F(Waiting, WithoutALimitGivesUpAfterTenSecondsOfOutage) {
    store.usual = Fate::refused(Errc::unreachable);
    try {
        lock.lock();
        FAIL();
    } catch (const hiredlock::Error& e) {
        EXPECT_EQ(e.code(), Errc::unreachable);
        EXPECT_NE(std::string{e.what()}.find("'k'"), std::string::npos) << e.what();
    }
    EXPECT_GE(waited(), 10s);
    EXPECT_LE(waited(), 10'300ms);
}

TEST_F(Waiting, AnOutageCountsFromItsBeginningAndAnAnswerEndsIt) {
    hold_by_another();
    int answers = 0;
    // Four seconds of outage, an answer, four seconds of outage, and so on: never ten without a break.
    store.under_way = [&] {
        const auto phase = (store.now() - start) / 4s % 2;
        store.usual = phase == 0 ? Fate::refused(Errc::unreachable) : Fate{};
        answers += phase == 0 ? 0 : 1;
        if (store.now() - start > 60s) store.map.remove("k");
    };
    store.usual = Fate::refused(Errc::unreachable);
    EXPECT_NO_THROW(lock.lock());
    EXPECT_GT(answers, 10);
    EXPECT_GT(waited(), 60s);
}

TEST_F(Waiting, ThePolicySaysHowLongAnOutageMayBe) {
    store.usual = Fate::refused(Errc::unreachable);
    Lock brief{store, "k", 10s, std::defer_lock, hiredlock::retry::Backoff{.outage = 0ms}};
    EXPECT_THROW(brief.lock(), hiredlock::Error);
    EXPECT_LT(waited(), 10ms);
    Lock fixed{store, "k", 10s, std::defer_lock, hiredlock::retry::Fixed{.outage = 60s}};
    EXPECT_THROW(fixed.lock(), hiredlock::Error);
    EXPECT_GE(waited(), 60s);
}

TEST_F(Waiting, AnOutageOfAnyLengthMayBeAllowed) {
    // As long as possible: for ever.
    store.usual = Fate::refused(Errc::unreachable);
    store.under_way = [&] {
        if (store.now() - start > 1h) store.usual = Fate{};
    };
    Lock patient{store, "k", 10s, std::defer_lock, hiredlock::retry::Backoff{.outage = std::chrono::milliseconds::max()}};
    EXPECT_NO_THROW(patient.lock());
    EXPECT_GT(waited(), 1h);
}

TEST_F(Waiting, ATryIsRepeatedAtOnceWhereTheConnectionBrokeUnderIt) {
    store.acquires = {Fate::request_lost(Errc::unknown_outcome)};
    EXPECT_TRUE(lock.try_lock());
    EXPECT_EQ(store.acquired.size(), 2U);
    EXPECT_TRUE(store.slept_until.empty());
}

TEST_F(Waiting, ATryThatTimesOutIsNotRepeated) {
    store.acquires = {Fate::request_lost(Errc::timed_out)};
    EXPECT_FALSE(lock.try_lock(error));
    EXPECT_EQ(error, Errc::timed_out);
    EXPECT_EQ(store.acquired.size(), 1U);
}

TEST_F(Waiting, AnAttemptIsNotGivenMoreTimeThanTheLimitHas) {
    store.usual = Fate::takes_time(1ms);
    EXPECT_TRUE(lock.try_lock_for(2s));
    EXPECT_GE(store.acquired.front().until, start + 2s);
    EXPECT_LE(store.acquired.front().until, start + 2s + 10ms);
}

TEST_F(Waiting, BusyToTheEndIsFalseAlsoWhereTheLastAnswerIsLate) {
    hold_by_another();
    // Each round trip takes 20 ms, and the last one 30 ms, so that the limit cuts it off.
    store.under_way = [&] { store.usual.takes = store.now() - start < 950ms ? 20ms : 30ms; };
    store.usual = Fate{.takes = 20ms};
    Lock fixed{store, "k", 10s, std::defer_lock, hiredlock::retry::Fixed{.interval = 100ms}};
    EXPECT_NO_THROW({ EXPECT_FALSE(fixed.try_lock_for(1s)); });
    EXPECT_LE(waited(), 1010ms);
}

TEST_F(Waiting, BusyToTheEndIsFalseAlsoWhereTheLastAnswerDoesNotCome) {
    for (const Errc silence : {Errc::timed_out, Errc::no_quorum}) {
        hold_by_another();
        const auto began = store.now();
        store.usual = Fate{.takes = 20ms};
        store.under_way = [&] { store.usual = store.now() - began < 950ms ? Fate{.takes = 20ms} : Fate{.what = Fate::Of::request_lost, .takes = 1h, .error = silence}; };
        Lock fixed{store, "k", 10s, std::defer_lock, hiredlock::retry::Fixed{.interval = 100ms}};
        EXPECT_NO_THROW({ EXPECT_FALSE(fixed.try_lock_for(1s)); }) << make_error_code(silence).message();
        EXPECT_LE(store.now() - began, 1010ms);
    }
}

TEST_F(Waiting, AStopFromAnotherThreadEndsIt) {
    hold_by_another();
    std::stop_source source;
    std::atomic<bool> asking{false};
    store.under_way = [&] { asking = true; };
    std::thread other{[&] {
        while (!asking) std::this_thread::yield();
        source.request_stop();
    }};
    EXPECT_FALSE(lock.lock(source.get_token()));
    other.join();
    EXPECT_FALSE(lock.owns_lock());
    EXPECT_EQ(store.map.value("k"), "another");
    EXPECT_FALSE(lock.lock(source.get_token(), error));
    EXPECT_FALSE(error);
}

TEST_F(Waiting, AStopThatWasRequestedBeforeMeansThatNothingIsTaken) {
    std::stop_source source;
    source.request_stop();
    EXPECT_FALSE(lock.lock(source.get_token()));
    EXPECT_FALSE(lock.owns_lock());
    EXPECT_EQ(store.map.value("k"), "");
    EXPECT_TRUE(store.acquired.empty());
}

TEST_F(Waiting, AStopDuringAnAttemptThatFailsLeavesNothingBehind) {
    std::stop_source source;
    store.acquires = {Fate::reply_lost()};
    store.under_way = [&] { source.request_stop(); };
    EXPECT_FALSE(lock.lock(source.get_token()));
    EXPECT_EQ(store.acquired.size(), 1U);
    EXPECT_EQ(store.map.value("k"), "");
}

TEST_F(Waiting, AGuardThatHoldsTheLockRefusesToTakeItAgain) {
    lock.lock();
    const auto sent = store.acquired.size();
    EXPECT_FALSE(lock.try_lock(error));
    EXPECT_EQ(error, std::errc::resource_deadlock_would_occur);
    EXPECT_FALSE(lock.try_lock_for(1s, error));
    EXPECT_EQ(error, std::errc::resource_deadlock_would_occur);
    EXPECT_FALSE(lock.try_lock_until(store.now() + 1s, error));
    EXPECT_EQ(error, std::errc::resource_deadlock_would_occur);
    EXPECT_FALSE(lock.lock(std::stop_token{}, error));
    EXPECT_EQ(error, std::errc::resource_deadlock_would_occur);
    EXPECT_THROW(lock.lock(), hiredlock::Error);
    EXPECT_EQ(store.acquired.size(), sent);
    EXPECT_TRUE(lock.owns_lock()) << "the refusal costs nothing";
}

TEST_F(Waiting, AGuardWhoseLeaseRanOutMayTakeItAgain) {
    lock.lock();
    store.pass(10s);
    EXPECT_TRUE(lock.try_lock());
    EXPECT_TRUE(lock.owns_lock());
}

TEST_F(Waiting, AnErrorCodeIsClearedOnSuccessAndOnBusy) {
    EXPECT_TRUE(lock.try_lock(error));
    EXPECT_FALSE(error);
    error = Errc::protocol;
    EXPECT_TRUE(lock.extend(5s, error));
    EXPECT_FALSE(error);
    EXPECT_FALSE(lock.unlock());
    hold_by_another();
    error = Errc::protocol;
    EXPECT_FALSE(lock.try_lock(error));
    EXPECT_FALSE(error);
    error = Errc::protocol;
    EXPECT_FALSE(lock.try_lock_for(10ms, error));
    EXPECT_FALSE(error);
    error = Errc::protocol;
    EXPECT_FALSE(lock.try_lock_until(store.now() + 10ms, error));
    EXPECT_FALSE(error);
    error = Errc::protocol;
    EXPECT_FALSE(lock.extend(5s, error));
    EXPECT_FALSE(error);
}

TEST_F(Waiting, AFailureIsThrownWithTheStoresWords) {
    store.acquires = {Fate::refused(Errc::denied)};
    try {
        lock.try_lock();
        FAIL();
    } catch (const std::system_error& e) {
        EXPECT_EQ(e.code(), Errc::denied);
        EXPECT_NE(std::string{e.what()}.find("as the test says"), std::string::npos) << e.what();
    }
}

TEST_F(Waiting, TwoGuardsAreTakenTogetherByTheStandardLibrary) {
    Lock other{store, "l", 10s, std::defer_lock};
    std::lock(lock, other);
    EXPECT_TRUE(lock && other);
    EXPECT_FALSE(lock.unlock());
    EXPECT_FALSE(other.unlock());
    {
        const std::scoped_lock both{lock, other};
        EXPECT_TRUE(lock && other);
    }
    EXPECT_FALSE(lock || other);
    EXPECT_EQ(store.map.value("k") + store.map.value("l"), "");
    {
        std::unique_lock unique{lock, std::chrono::steady_clock::now() + 1s};
        EXPECT_TRUE(unique.owns_lock());
        hold_by_another();
    }
    EXPECT_EQ(std::try_lock(other, lock), 1) << "the index of the one that is busy";
    EXPECT_FALSE(other);
    EXPECT_EQ(store.map.value("l"), "");
    std::unique_lock late{lock, 20ms};
    EXPECT_FALSE(late.owns_lock());
}

}  // namespace
