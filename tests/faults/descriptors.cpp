// Descriptors do not leak into the programs that the host program starts.
#include <live/guards.hpp>

#include <support/eventually.hpp>
#include <support/process.hpp>

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <set>

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace {

std::atomic<int> made{0};      // descriptors that this program asked the C library for
std::atomic<int> inherited{0};  // of these, such as a program would inherit that is started at this very moment

}  // namespace

// In this program these stand before the C library's own.
extern "C" {

int socket(int family, int type, int protocol) noexcept {
    ++made;
    if ((type & SOCK_CLOEXEC) == 0) ++inherited;
    return static_cast<int>(::syscall(SYS_socket, family, type, protocol));
}

int pipe(int ends[2]) noexcept {
    ++made;
    ++inherited;
    return static_cast<int>(::syscall(SYS_pipe2, ends, 0));
}

}  // extern "C"

namespace {

using namespace std::chrono_literals;
using namespace guards;
using hiredlock::Connection;
using hiredlock::Lock;
using hiredlock::Pool;
using hiredlock::renew::Watchdog;
using support::open_now;
using support::Server;

TEST(Descriptors, AreCloseOnExecFromBirth) {
    const Server server;
    support::Raw raw{server};
    raw.set("busy", "somebody");
    const auto before = open_now();
    const int made_before = made, inherited_before = inherited;
    Pool pool{endpoint_of(server)};
    Pool by_unix_socket{server.unix_uri()};
    Connection connection{endpoint_of(server)};
    const Lock lock{pool, "k", 60s};
    const Lock other{by_unix_socket, "l", 60s};
    const Lock third{connection, "m", 60s};
    const Lock watched{pool, "w", 60s, Watchdog{.interval = 1ms}};
    std::stop_source stop;
    std::error_code ignored;
    EXPECT_FALSE(Lock(pool, "busy", 60s, std::defer_lock).try_lock_for(20ms, ignored));
    auto waiting = std::async(std::launch::async, [&] { return Lock{connection, "busy", 60s, std::defer_lock}.lock(stop.get_token()); });
    ASSERT_TRUE(support::eventually([&] { return raw.pttl("w") > 0; }));
    waiting.wait_for(20ms);
    int seen = 0;
    for (const int descriptor : open_now()) {
        if (before.count(descriptor) != 0) continue;
        const int flags = ::fcntl(descriptor, F_GETFD);
        if (flags < 0) continue;  // of the listing itself, or closed since
        ++seen;
        EXPECT_NE(flags & FD_CLOEXEC, 0) << descriptor;
    }
    stop.request_stop();
    EXPECT_FALSE(waiting.get());
    EXPECT_GE(seen, 4);
    EXPECT_GE(made - made_before, 4);
    if (!guards::is_sanitized) EXPECT_EQ(inherited - inherited_before, 0);  // a sanitizer's runtime makes pipes, too
}

}  // namespace
