// What many guards leave behind in memory and descriptors: nothing.
#include "guards.hpp"

#include <support/eventually.hpp>
#include <support/process.hpp>

#include <gtest/gtest.h>

namespace {

using namespace std::chrono_literals;
using namespace guards;
using hiredlock::Lock;
using hiredlock::Pool;
using support::eventually;
using support::open_descriptors;
using support::Raw;
using support::resident_bytes;
using support::Server;

/// A sanitizer keeps freed memory for a while, so that nothing can be said about what a test left.
void expect_no_more_memory_than(std::size_t before, std::size_t tolerance = 2 * 1024 * 1024) {
    if (is_sanitized) return;
    EXPECT_LT(resident_bytes(), before + tolerance);
}

TEST(HundredThousandGuards, OfAsManyKeysLeaveMemoryAndDescriptorsFlat) {
    const Server server;
    Pool pool{server.unix_uri()};
    const auto use = [&](int from, int to) {
        for (int i = from; i < to; ++i) const Lock lock{pool, "key:" + std::to_string(i), 60s, hiredlock::unlocking::Deferred{}};
    };
    const int count = scaled(100'000);
    use(0, count / 10);
    const std::size_t memory = resident_bytes();
    const std::size_t descriptors = open_descriptors();
    use(count / 10, count);
    EXPECT_EQ(open_descriptors(), descriptors);
    expect_no_more_memory_than(memory);
    EXPECT_FALSE(pool.ping());
    EXPECT_EQ(Raw{server}.number({"DBSIZE"}), 0);
}

TEST(ManyPools, LeaveMemoryAndDescriptorsFlat) {
    const Server server;
    const auto use = [&](int times) {
        for (int i = 0; i < times; ++i) {
            Pool pool{endpoint_of(server)};
            const Lock lock{pool, "k", 60s};
        }
    };
    use(50);
    const std::size_t memory = resident_bytes();
    const std::size_t descriptors = open_descriptors();
    use(scaled(1000));
    EXPECT_EQ(open_descriptors(), descriptors);
    expect_no_more_memory_than(memory);
}

TEST(BigKeys, LeaveMemoryFlat) {
    const Server server;
    Pool pool{server.unix_uri()};
    const auto use = [&](int times) {
        const std::string key(1024 * 1024, 'k');
        for (int i = 0; i < times; ++i) {
            const Lock lock{pool, key, 60s};
        }
        const Lock small{pool, "small", 60s};
    };
    use(4);
    const std::size_t memory = resident_bytes();
    use(40);
    expect_no_more_memory_than(memory, 8 * 1024 * 1024);
}

}  // namespace
