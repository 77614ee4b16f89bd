// Letting go, extending, and finding out that the lock is no longer ours.
#include "guards.hpp"

#include <support/eventually.hpp>

#include <gtest/gtest.h>

#include <mutex>
#include <thread>

namespace {

using namespace std::chrono_literals;
using namespace guards;
using hiredlock::Errc;
using hiredlock::Lock;
using hiredlock::Pool;
using hiredlock::PoolOptions;
using support::eventually;
using support::Monitor;
using support::Raw;
using support::Server;

/// The codes that an on_error hook heard.
struct Heard {
    std::mutex mutex{};
    std::vector<std::error_code> codes{};
    std::vector<std::string> words{};

    PoolOptions options() {
        return {.on_error = [this](const hiredlock::Error& error) {
            const std::scoped_lock lock{mutex};
            codes.push_back(error.code());
            words.emplace_back(error.what());
        }};
    }
};

TEST(Release, AfterOwnExpiryIsNotHeldInOneRoundTrip) {
    const Server server;
    Raw raw{server};
    Pool pool{endpoint_of(server)};
    { const Lock first{pool, "first", 10s}; }
    Lock lock{pool, "k", 100ms};
    ASSERT_TRUE(eventually([&] { return !raw.exists("k") && !lock.owns_lock(); }));
    Monitor monitor{server};
    const auto start = std::chrono::steady_clock::now();
    EXPECT_EQ(lock.unlock(), Errc::not_held);
    EXPECT_LT(since(start), 5s);
    EXPECT_EQ(said_by_clients(monitor).size(), 1U);
    EXPECT_EQ(monitor.count(releases("k")), 1U);
}

TEST(Release, AfterOwnExpiryLeavesTheNewHolderAlone) {
    const Server server;
    Raw raw{server};
    Pool pool{endpoint_of(server)};
    Lock lock{pool, "k", 100ms};
    ASSERT_TRUE(eventually([&] { return !raw.exists("k") && !lock.owns_lock(); }));
    const Lock other{pool, "k", 10s};
    EXPECT_EQ(lock.unlock(), Errc::not_held);
    EXPECT_EQ(raw.get("k"), other.token());
    EXPECT_TRUE(other.owns_lock());
}

TEST(Release, OfAStolenKeyLeavesTheThiefAlone) {
    const Server server;
    Raw raw{server};
    Pool pool{endpoint_of(server)};
    Lock lock{pool, "k", 10s};
    raw.set("k", "thief", 10s);
    EXPECT_EQ(lock.unlock(), Errc::not_held);
    EXPECT_EQ(raw.get("k"), "thief");
    EXPECT_GT(raw.pttl("k"), 0);
}

TEST(Release, ASecondTimeOrWithoutALockIsNotHeldAndSendsNothing) {
    const Server server;
    Pool pool{endpoint_of(server)};
    Lock lock{pool, "k", 10s};
    EXPECT_FALSE(lock.unlock());
    Lock never{pool, "other", 10s, std::defer_lock};
    Lock moved{pool, "third", 10s, std::defer_lock};
    const Lock taken = std::move(moved);
    Monitor monitor{server};
    EXPECT_EQ(lock.unlock(), Errc::not_held);
    EXPECT_EQ(never.unlock(), Errc::not_held);
    EXPECT_EQ(moved.unlock(), Errc::not_held);
    EXPECT_TRUE(monitor.commands().empty());
}

TEST(Release, LetsTheSameGuardLockAgain) {
    const Server server;
    Raw raw{server};
    Pool pool{endpoint_of(server)};
    Lock lock{pool, "k", 10s, std::defer_lock};
    for (int i = 0; i < 20; ++i) {
        ASSERT_TRUE(lock.try_lock());
        EXPECT_EQ(raw.get("k"), lock.token());
        ASSERT_FALSE(lock.unlock());
        EXPECT_FALSE(raw.exists("k"));
    }
}

TEST(Guard, LostToItsTtlLocksAgain) {
    const Server server;
    Pool pool{endpoint_of(server)};
    Lock lock{pool, "k", 200ms};
    const std::string token{lock.token()};
    ASSERT_TRUE(eventually([&] { return !lock.owns_lock(); }));
    ASSERT_TRUE(lock.try_lock_for(30s));
    EXPECT_NE(lock.token(), token);
}

TEST(Guard, KnowsThatItsLeaseHasEndedBeforeTheServerGivesTheKeyAway) {
    const Server server;
    Raw raw{server};
    Pool pool{endpoint_of(server)};
    for (int i = 0; i < 5; ++i) {
        const Lock lock{pool, "k", 100ms};
        EXPECT_LE(lock.remaining(), 97ms);
        EXPECT_LE(lock.expires_at(), hiredlock::Clock::now() + 97ms);
        while (raw.exists("k")) {}
        EXPECT_FALSE(lock.owns_lock());
        EXPECT_FALSE(static_cast<bool>(lock));
        EXPECT_EQ(lock.remaining(), 0s);
        EXPECT_EQ(thrown_by([&] { lock.check(); }), Errc::lost);
    }
}

TEST(Guard, ThatIsHeldChecksOut) {
    const Server server;
    Pool pool{endpoint_of(server)};
    Lock lock{pool, "k", 10s};
    EXPECT_NO_THROW(lock.check());
    EXPECT_GT(lock.remaining(), 5s);
    EXPECT_LT(lock.remaining(), 10s - 100ms);
    EXPECT_FALSE(lock.unlock());
    EXPECT_EQ(thrown_by([&] { lock.check(); }), Errc::lost);
    EXPECT_EQ(lock.remaining(), 0s);
    EXPECT_EQ(lock.expires_at(), hiredlock::Clock::time_point::min());
}

TEST(Extend, MakesTheLockExpireAsLongFromNow) {
    const Server server;
    Raw raw{server};
    Pool pool{endpoint_of(server)};
    Lock lock{pool, "k", 10s};
    EXPECT_TRUE(lock.extend(1000s));
    EXPECT_GT(raw.pttl("k"), 900'000);
    EXPECT_GT(lock.remaining(), 900s);
    EXPECT_LT(lock.remaining(), 990s);
    EXPECT_TRUE(lock.extend(20s));
    EXPECT_LE(raw.pttl("k"), 20'000);
    EXPECT_LT(lock.remaining(), 20s);
    EXPECT_GT(lock.remaining(), 10s);
    EXPECT_EQ(raw.get("k"), lock.token());
    Monitor monitor{server};
    lock.extend(5001us);  // whose answer may come too late to be believed
    const auto said = said_by_clients(monitor);
    ASSERT_EQ(said.size(), 1U);
    EXPECT_EQ(said[0].back(), "6");
}

TEST(Extend, AfterOwnExpiryIsFalseAndLeavesTheNewHolderAlone) {
    const Server server;
    Raw raw{server};
    Pool pool{endpoint_of(server)};
    Lock lock{pool, "k", 50ms};
    ASSERT_TRUE(eventually([&] { return !raw.exists("k") && !lock.owns_lock(); }));
    raw.set("k", "somebody", 20s);
    Monitor monitor{server};
    EXPECT_FALSE(lock.extend(1000s));
    EXPECT_TRUE(monitor.commands().empty());
    EXPECT_EQ(raw.get("k"), "somebody");
    EXPECT_LE(raw.pttl("k"), 20'000);
}

TEST(Extend, OfAStolenKeyIsFalseAndTheGuardHasLostIt) {
    const Server server;
    Raw raw{server};
    Pool pool{endpoint_of(server)};
    Lock lock{pool, "k", 100s};
    raw.set("k", "thief", 20s);
    EXPECT_FALSE(lock.extend(1000s));
    EXPECT_FALSE(lock.owns_lock());
    EXPECT_EQ(raw.get("k"), "thief");
    EXPECT_LE(raw.pttl("k"), 20'000);
    EXPECT_EQ(lock.unlock(), Errc::not_held);
}

TEST(Extend, OfAVanishedKeyIsFalseAndDoesNotBringItBack) {
    const Server server;
    Raw raw{server};
    Pool pool{endpoint_of(server)};
    Lock lock{pool, "k", 100s};
    raw({"FLUSHALL"});
    EXPECT_FALSE(lock.extend(1000s));
    EXPECT_FALSE(raw.exists("k"));
    EXPECT_FALSE(lock.owns_lock());
}

TEST(Extend, WithoutALockIsFalse) {
    const Server server;
    Pool pool{endpoint_of(server)};
    Lock lock{pool, "k", 10s, std::defer_lock};
    EXPECT_FALSE(lock.extend(10s));
    lock.lock();
    lock.unlock();
    std::error_code error;
    EXPECT_FALSE(lock.extend(10s, error));
    EXPECT_FALSE(error);
}

TEST(Hook, HearsThatADestructorFoundTheLockGone) {
    const Server server;
    Heard heard;
    Pool pool{endpoint_of(server), heard.options()};
    {
        const Lock lock{pool, "report", 10s};
        Raw{server}.set("report", "thief", 10s);
    }
    ASSERT_EQ(heard.codes, std::vector<std::error_code>{Errc::not_held});
    EXPECT_NE(heard.words[0].find("'report'"), std::string::npos) << heard.words[0];
    EXPECT_EQ(Raw{server}.get("report"), "thief");
}

TEST(Hook, HearsNothingOfWhatACallerIsTold) {
    const Server server;
    Heard heard;
    Pool pool{endpoint_of(server), heard.options()};
    {
        Lock lock{pool, "k", 10s};
        Raw{server}.set("k", "thief", 10s);
        EXPECT_EQ(lock.unlock(), Errc::not_held);
        Lock busy{pool, "k", 10s, std::try_to_lock};
        EXPECT_FALSE(busy.owns_lock());
        const Lock other{pool, "other", 10s};
    }
    EXPECT_TRUE(heard.codes.empty());
}

TEST(Hook, ThatThrowsIsNoHarm) {
    const Server server;
    int heard = 0;
    Pool pool{endpoint_of(server), {.on_error = [&heard](const hiredlock::Error& error) {
                  ++heard;
                  throw error;
              }}};
    {
        const Lock lock{pool, "k", 10s};
        Raw{server}.del("k");
    }
    EXPECT_EQ(heard, 1);
    EXPECT_TRUE(Lock(pool, "k", 10s, std::try_to_lock).owns_lock());
}

TEST(KeyOfAnotherType, IsBusyAndLeftAsItWas) {
    const Server server;
    Raw raw{server};
    raw({"LPUSH", "k", "a", "b"});
    Pool pool{endpoint_of(server)};
    Lock lock{pool, "k", 10s, std::try_to_lock};
    EXPECT_FALSE(lock.owns_lock());
    const auto start = std::chrono::steady_clock::now();
    std::error_code error;
    EXPECT_FALSE(lock.try_lock_for(200ms, error));
    EXPECT_TRUE(!error || error == Errc::wrong_type) << error;
    EXPECT_LT(since(start), 3s);
    EXPECT_EQ(raw.number({"LLEN", "k"}), 2);
    EXPECT_EQ(raw.pttl("k"), -1);
}

TEST(KeyOfAnotherType, UnderAHeldLockIsAnErrorOfItsOwnAndLeftAsItWas) {
    const Server server;
    Raw raw{server};
    for (const auto& endpoint : {endpoint_of(server), with_scripts(server)}) {
        Heard heard;
        Pool pool{endpoint, heard.options()};
        {
            Lock lock{pool, "k", 100s};
            raw.del("k");
            raw({"LPUSH", "k", "a", "b"});
            std::error_code error;
            EXPECT_FALSE(lock.extend(1000s, error));
            EXPECT_EQ(error, Errc::wrong_type);
            EXPECT_EQ(lock.unlock(), Errc::wrong_type);
            EXPECT_EQ(raw.number({"LLEN", "k"}), 2);
        }
        EXPECT_EQ(heard.codes, std::vector<std::error_code>{Errc::wrong_type});
        EXPECT_EQ(raw.number({"LLEN", "k"}), 2);
        EXPECT_EQ(raw.pttl("k"), -1);
        raw.del("k");
    }
}

}  // namespace
