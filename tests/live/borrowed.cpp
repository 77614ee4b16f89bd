// A context that a service has already: used between its own commands and left as it was.
#include "guards.hpp"

#include <support/process.hpp>

#include <hiredis/hiredis.h>

#include <gtest/gtest.h>

#include <memory>
#include <optional>

#include <fcntl.h>
#include <sys/socket.h>

namespace {

using namespace std::chrono_literals;
using namespace guards;
using hiredlock::Connection;
using hiredlock::Errc;
using hiredlock::Lock;
using hiredlock::unlocking::Deferred;
using support::Monitor;
using support::Raw;
using support::Server;

struct Freed {
    void operator()(redisContext* context) const noexcept { redisFree(context); }
    void operator()(redisReply* reply) const noexcept { freeReplyObject(reply); }
};
using Context = std::unique_ptr<redisContext, Freed>;
using Reply = std::unique_ptr<redisReply, Freed>;

/// A service's own context, connected as services do it.
Context connected(const Server& server) {
    Context context{redisConnect("127.0.0.1", server.port())};
    if (context == nullptr || context->err != 0) throw std::runtime_error{"cannot connect"};
    redisSetTimeout(context.get(), timeval{5, 0});
    return context;
}

/// The text of the reply to the service's own command.
template <class... Arguments>
std::optional<std::string> said(const Context& context, const char* format, Arguments... arguments) {
    const Reply reply{static_cast<redisReply*>(redisCommand(context.get(), format, arguments...))};
    if (reply == nullptr || reply->str == nullptr) return std::nullopt;
    return std::string{reply->str, reply->len};
}

TEST(BorrowedContext, ServesGuardsBetweenItsOwnersCommands) {
    const Server server;
    Raw raw{server};
    const Context context = connected(server);
    Connection connection = Connection::borrow(context.get());
    for (int i = 0; i < 10; ++i) {
        EXPECT_EQ(said(context, "ECHO %d", i), std::to_string(i));
        Lock lock{connection, "k", 60s};
        EXPECT_EQ(said(context, "GET k"), lock.token());
        EXPECT_TRUE(lock.extend(90s));
        EXPECT_EQ(said(context, "ECHO %s", "between"), "between");
        EXPECT_FALSE(Lock(connection, "k", 60s, std::try_to_lock).owns_lock());
        EXPECT_FALSE(lock.unlock());
        EXPECT_FALSE(raw.exists("k"));
    }
}

TEST(BorrowedContext, KeepsItsFlagsItsNameItsDatabaseAndItsProtocol) {
    const Server server;
    const Context context = connected(server);
    said(context, "SELECT 5");
    said(context, "CLIENT SETNAME service");
    const int descriptor = context->fd;
    const int status = ::fcntl(descriptor, F_GETFL);
    const int own = ::fcntl(descriptor, F_GETFD);
    const int flags = context->flags;
    Monitor monitor{server};
    {
        Connection connection = Connection::borrow(context.get());
        const Lock lock{connection, "k", 60s};
        EXPECT_EQ(said(context, "GET k"), lock.token());  // of its own database
    }
    for (const auto& words : said_by_clients(monitor)) {
        EXPECT_NE(words[0], "HELLO");
        EXPECT_NE(words[0], "SELECT");
        EXPECT_NE(words[0], "CLIENT");
        EXPECT_NE(words[0], "AUTH");
    }
    EXPECT_EQ(context->fd, descriptor);
    EXPECT_EQ(context->flags, flags);
    EXPECT_EQ(context->err, 0);
    EXPECT_EQ(::fcntl(descriptor, F_GETFL), status);
    EXPECT_EQ(::fcntl(descriptor, F_GETFD), own);
    EXPECT_EQ(said(context, "CLIENT GETNAME"), "service");
    const std::string info = said(context, "CLIENT INFO").value_or("");
    EXPECT_NE(info.find(" db=5 "), std::string::npos) << info;
    EXPECT_NE(info.find(" resp=2"), std::string::npos) << info;
}

TEST(BorrowedContext, KeepsItsTimeLimits) {
    const Server server;
    const Context context = connected(server);
    redisSetTimeout(context.get(), timeval{7, 0});
    const auto limit = [&](int option) {
        timeval value{};
        socklen_t size = sizeof value;
        ::getsockopt(context->fd, SOL_SOCKET, option, &value, &size);
        return value.tv_sec;
    };
    {
        Connection connection = Connection::borrow(context.get(), 500ms);
        const Lock lock{connection, "k", 60s};
    }
    EXPECT_EQ(limit(SO_RCVTIMEO), 7);
    EXPECT_EQ(limit(SO_SNDTIMEO), 7);
}

TEST(BorrowedContext, IsLeftOpenByTheEndOfTheConnection) {
    const Server server;
    const Context context = connected(server);
    { Connection connection = Connection::borrow(context.get()); }
    {
        Connection first = Connection::borrow(context.get());
        Connection second = std::move(first);
        const Lock lock{second, "k", 60s};
    }
    EXPECT_EQ(said(context, "ECHO %s", "open"), "open");
}

TEST(BorrowedContext, HoldsNoReplyOfOursAfterADeferredRelease) {
    const Server server;
    Raw raw{server};
    const Context context = connected(server);
    Connection connection = Connection::borrow(context.get());
    for (int i = 0; i < 5; ++i) {
        { const Lock lock{connection, "k", 60s, Deferred{}}; }
        EXPECT_EQ(said(context, "ECHO %s", "own"), "own");
        EXPECT_FALSE(raw.exists("k"));
    }
}

TEST(BorrowedContext, HoldsNoReplyOfOursAfterErrors) {
    const Server server;
    Raw raw{server};
    const Context context = connected(server);
    Connection connection = Connection::borrow(context.get());
    raw({"SCRIPT", "FLUSH"});
    { const Lock lock{connection, "k", 60s}; }
    EXPECT_EQ(said(context, "ECHO %s", "own"), "own");
    {
        const Lock lock{connection, "k", 60s};
        raw.del("k");
        raw({"LPUSH", "k", "a"});
    }
    EXPECT_EQ(said(context, "ECHO %s", "own"), "own");
    raw({"CONFIG", "SET", "maxmemory", "1"});
    EXPECT_EQ(thrown_by([&] { const Lock lock{connection, "l", 60s}; }), Errc::out_of_memory);
    EXPECT_EQ(said(context, "ECHO %s", "own"), "own");
    EXPECT_EQ(context->err, 0);
}

TEST(BorrowedContext, WithCommandsNotSentIsRefusedAndLeftAsItWas) {
    const Server server;
    const Context context = connected(server);
    Connection connection = Connection::borrow(context.get());
    redisAppendCommand(context.get(), "ECHO one");
    EXPECT_EQ(thrown_by([&] { const Lock lock{connection, "k", 60s}; }), Errc::invalid_argument);
    EXPECT_EQ(connection.ping(), Errc::invalid_argument);
    void* reply = nullptr;
    ASSERT_EQ(redisGetReply(context.get(), &reply), REDIS_OK);
    EXPECT_STREQ(Reply{static_cast<redisReply*>(reply)}->str, "one");
    EXPECT_TRUE(Lock(connection, "k", 60s).owns_lock());
    EXPECT_EQ(context->err, 0);
}

TEST(BorrowedContext, WithRepliesNotReadIsRefusedAndLeftAsItWas) {
    const Server server;
    const Context context = connected(server);
    Connection connection = Connection::borrow(context.get());
    for (const bool read_one : {true, false}) {
        SCOPED_TRACE(read_one ? "one of two was read" : "they wait in the socket");
        redisAppendCommand(context.get(), "ECHO one");
        redisAppendCommand(context.get(), "ECHO two");
        int all_written = 0;
        while (all_written == 0) ASSERT_EQ(redisBufferWrite(context.get(), &all_written), REDIS_OK);
        char both[18];  // "$3\r\none\r\n$3\r\ntwo\r\n"
        ASSERT_EQ(::recv(context->fd, both, sizeof both, MSG_PEEK | MSG_WAITALL), 18);
        void* reply = nullptr;
        if (read_one) {
            ASSERT_EQ(redisGetReply(context.get(), &reply), REDIS_OK);
            EXPECT_STREQ(Reply{static_cast<redisReply*>(reply)}->str, "one");
        }
        EXPECT_EQ(thrown_by([&] { const Lock lock{connection, "k", 60s}; }), Errc::invalid_argument);
        if (!read_one) {
            ASSERT_EQ(redisGetReply(context.get(), &reply), REDIS_OK);
            EXPECT_STREQ(Reply{static_cast<redisReply*>(reply)}->str, "one");
        }
        ASSERT_EQ(redisGetReply(context.get(), &reply), REDIS_OK);
        EXPECT_STREQ(Reply{static_cast<redisReply*>(reply)}->str, "two");
        EXPECT_EQ(said(context, "ECHO %s", "own"), "own");
        EXPECT_EQ(context->err, 0);
        EXPECT_TRUE(Lock(connection, "k", 60s).owns_lock());
    }
}

TEST(BorrowedContext, ThatSubscribesIsRefused) {
    const Server server;
    const Context context = connected(server);
    Connection connection = Connection::borrow(context.get());
    said(context, "SUBSCRIBE channel");
    context->flags |= REDIS_SUBSCRIBED;  // as the asynchronous API marks it
    EXPECT_EQ(connection.ping(), Errc::invalid_argument);
}

TEST(BorrowedContext, ThatDoesNotExistOrIsBrokenIsRefused) {
    EXPECT_EQ(thrown_by([] { Connection::borrow(nullptr); }), Errc::invalid_argument);
    const Context nobody{redisConnect("127.0.0.1", 1)};
    Connection connection = Connection::borrow(nobody.get());
    EXPECT_EQ(connection.ping(), Errc::unreachable);
    const Server server;
    const Context context = connected(server);
    EXPECT_EQ(thrown_by([&] { Connection::borrow(context.get(), 0ms); }), Errc::invalid_argument);
}

TEST(BorrowedContext, AfterATimeOutIsMarkedAndNeverUsedAgain) {
    Server server;
    const Context context = connected(server);
    Connection connection = Connection::borrow(context.get(), 250ms);
    ASSERT_FALSE(connection.ping());
    server.pause();
    const auto start = std::chrono::steady_clock::now();
    Lock lock{connection, "k", 60s, std::defer_lock};
    std::error_code error;
    EXPECT_FALSE(lock.try_lock(error));
    EXPECT_EQ(error, Errc::timed_out);
    EXPECT_LT(since(start), 3s);
    EXPECT_EQ(context->err, REDIS_ERR_IO);
    EXPECT_NE(context->errstr[0], '\0');
    server.resume();
    EXPECT_EQ(said(context, "ECHO %s", "own"), std::nullopt);  // not our late reply
    EXPECT_EQ(connection.ping(), Errc::unreachable);
    EXPECT_FALSE(lock.try_lock(error));
    EXPECT_EQ(error, Errc::unreachable);
    EXPECT_GE(context->fd, 0);
}

TEST(BorrowedContext, WhoseServerHasGoneIsAnErrorAndNotReconnected) {
    Server server;
    const Context context = connected(server);
    Connection connection = Connection::borrow(context.get());
    ASSERT_FALSE(connection.ping());
    server.kill();
    EXPECT_TRUE(connection.ping());
    server.start();
    EXPECT_TRUE(connection.ping());
    EXPECT_NE(context->err, 0);
}

}  // namespace
