// Processes that fight for one lock of a quorum, while its servers fail: never are two inside.
#include <live/servers.hpp>

#include <support/process.hpp>

#include <gtest/gtest.h>

#include <atomic>
#include <new>
#include <thread>

#include <sys/mman.h>

namespace {

using namespace std::chrono_literals;
using namespace guards;
using hiredlock::Clock;
using hiredlock::Endpoint;
using hiredlock::Lock;
using hiredlock::Redlock;
using hiredlock::renew::Watchdog;
using support::eventually;
using support::Raw;

/// What all processes write down while they hold the lock.
struct Section {
    std::atomic<Clock::rep> held_until{0};  ///< the lease of whoever is inside; 0: nobody
    std::atomic<int> entered{0};
    std::atomic<int> overlapped{0};
    std::atomic<int> entered_by[8]{};
    std::atomic<bool> over{false};
};

class SharedSection {
public:
    SharedSection() : at_{::mmap(nullptr, sizeof(Section), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)} {
        if (at_ == MAP_FAILED) throw std::bad_alloc{};
        new (at_) Section{};
    }
    SharedSection(const SharedSection&) = delete;
    SharedSection& operator=(const SharedSection&) = delete;
    ~SharedSection() { ::munmap(at_, sizeof(Section)); }
    Section& operator*() const noexcept { return *static_cast<Section*>(at_); }
    Section* operator->() const noexcept { return static_cast<Section*>(at_); }

private:
    void* at_;
};

/// Enters again and again, and finds out whether the one before is inside still and has the right to be.
int fight(const std::vector<Endpoint>& endpoints, Section& section, std::size_t number, std::chrono::milliseconds ttl) {
    Redlock quorum{endpoints};
    while (!section.over) {
        Lock lock{quorum, "section", ttl, std::defer_lock};
        std::error_code error;
        if (!lock.try_lock_for(500ms, error)) continue;
        const auto mine = lock.expires_at().time_since_epoch().count();
        const auto now = Clock::now();
        if (now >= lock.expires_at()) continue;
        if (now.time_since_epoch().count() < section.held_until.exchange(mine)) ++section.overlapped;
        ++section.entered;
        ++section.entered_by[number];
        std::this_thread::sleep_for(500us);
        auto expected = mine;
        section.held_until.compare_exchange_strong(expected, 0);
    }
    return 0;
}

support::Child start_fighter(Servers& servers, Section& section, std::size_t number, std::chrono::milliseconds ttl = 2s) {
    return support::Child::fork([&servers, &section, number, ttl](support::Lines&) { return fight(servers.endpoints(), section, number, ttl); });
}

TEST(QuorumUnderContention, OfEightProcessesLetsOneInAtATimeAndAllInTheEnd) {
    Servers servers{5};
    const SharedSection section;
    std::vector<support::Child> fighters;
    for (std::size_t i = 0; i < 8; ++i) fighters.push_back(start_fighter(servers, *section, i));
    EXPECT_TRUE(eventually(
        [&] { return section->entered >= 200 && std::all_of(std::begin(section->entered_by), std::end(section->entered_by), [](int n) { return n > 0; }); }, 60s));
    section->over = true;
    for (auto& fighter : fighters) EXPECT_EQ(fighter.wait(20s), 0);
    EXPECT_EQ(section->overlapped, 0);
    EXPECT_TRUE(servers.is_gone("section"));
}

TEST(QuorumUnderContention, OfTwoThatStartTogetherDoesNotGoRoundForEver) {
    for (const std::size_t count : {2U, 3U, 4U}) {
        Servers servers{count};
        const SharedSection section;
        std::vector<support::Child> fighters;
        for (std::size_t i = 0; i < 2; ++i) fighters.push_back(start_fighter(servers, *section, i));
        EXPECT_TRUE(eventually([&] { return section->entered_by[0] >= 20 && section->entered_by[1] >= 20; }, 60s)) << count;
        section->over = true;
        for (auto& fighter : fighters) EXPECT_EQ(fighter.wait(20s), 0);
        EXPECT_EQ(section->overlapped, 0);
        EXPECT_TRUE(servers.is_gone("section"));
    }
}

TEST(QuorumUnderContention, NeverLetsTwoInThoughServersStopAndHoldersDie) {
    Servers servers{5};
    const SharedSection section;
    constexpr auto ttl = 300ms;
    std::vector<support::Child> fighters;
    for (std::size_t i = 0; i < 8; ++i) fighters.push_back(start_fighter(servers, *section, i, ttl));
    for (std::size_t round = 0; round < 10; ++round) {
        servers[round % 5].pause();
        servers[(round + 2) % 5].pause();
        const int before = section->entered;
        ASSERT_TRUE(eventually([&] { return section->entered > before + 5; }, 30s)) << round;
        fighters[round % 8].kill();
        fighters[round % 8] = start_fighter(servers, *section, round % 8, ttl);
        servers[round % 5].resume();
        servers[(round + 2) % 5].resume();
    }
    section->over = true;
    for (auto& fighter : fighters) EXPECT_EQ(fighter.wait(20s), 0);
    EXPECT_EQ(section->overlapped, 0);
    EXPECT_TRUE(servers.is_gone("section"));
}

}  // namespace
