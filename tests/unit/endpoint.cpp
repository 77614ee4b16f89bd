// Where a server is, as a URI says it: what is read, what is refused, and that no message ever tells a user or a password.
#include <hiredlock/endpoint.hpp>

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <limits>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>

using namespace std::chrono_literals;
using hiredlock::Endpoint;
using hiredlock::Errc;
using hiredlock::Error;
using hiredlock::Uri;

namespace {

using namespace std::string_literals;

struct Good {
    std::string uri;
    std::string host;
    int port;
    int database = 0;
    std::string username{};
    std::string password{};
    std::string unix_socket{};
};

TEST(EndpointUri, SaysWhereTheServerIs) {
    const Good table[] = {
        {"redis://localhost", "localhost", 6379},
        {"redis://localhost/", "localhost", 6379},
        {"redis://localhost:7000", "localhost", 7000},
        {"redis://localhost:7000/", "localhost", 7000},
        {"redis://localhost:1/0", "localhost", 1},
        {"redis://localhost:65535/15", "localhost", 65535, 15},
        {"redis://10.1.2.3/3", "10.1.2.3", 6379, 3},
        {"redis://[::1]", "::1", 6379},
        {"redis://[::1]:7000/2", "::1", 7000, 2},
        {"redis://[fe80::1%25eth0]:7000", "fe80::1%eth0", 7000},
        {"redis://:secret@localhost", "localhost", 6379, 0, "", "secret"},
        {"redis://me:secret@localhost:7000/4", "localhost", 7000, 4, "me", "secret"},
        {"redis://me:secret@[::1]:7000/4", "::1", 7000, 4, "me", "secret"},
        {"redis://m%40e:p%3aw%2F%25%20@h", "h", 6379, 0, "m@e", "p:w/% "},
        {"redis://me:a%00b@h", "h", 6379, 0, "me", "a\0b"s},
        {"redis://me:a:b:c@h", "h", 6379, 0, "me", "a:b:c"},
        {"redis://me:p@ss@h:7000", "h", 7000, 0, "me", "p@ss"},
        {"redis://me:p/s@h:7000/1", "h", 7000, 1, "me", "p/s"},
        {"redis://:@h", "h", 6379},
        {"redis://a-b.example.org:7000", "a-b.example.org", 7000},
        {"unix:///var/run/redis.sock", "127.0.0.1", 6379, 0, "", "", "/var/run/redis.sock"},
        {"unix:///var/run/redis.sock?db=7", "127.0.0.1", 6379, 7, "", "", "/var/run/redis.sock"},
        {"unix:///with%20space%3Fmark.sock?db=0", "127.0.0.1", 6379, 0, "", "", "/with space?mark.sock"},
    };
    for (const Good& row : table) {
        SCOPED_TRACE(row.uri);
        Endpoint endpoint;
        ASSERT_NO_THROW(endpoint = Endpoint::parse(row.uri));
        EXPECT_EQ(endpoint.host, row.host);
        EXPECT_EQ(endpoint.port, row.port);
        EXPECT_EQ(endpoint.database, row.database);
        EXPECT_EQ(endpoint.username, row.username);
        EXPECT_EQ(endpoint.password, row.password);
        EXPECT_EQ(endpoint.unix_socket, row.unix_socket);
    }
}

TEST(EndpointUri, LeavesTheRestAsAnEndpointHasIt) {
    const Endpoint endpoint = Endpoint::parse("redis://h");
    EXPECT_EQ(endpoint.client_name, "hiredlock");
    EXPECT_EQ(endpoint.connect_timeout, 1000ms);
    EXPECT_EQ(endpoint.command_timeout, 1000ms);
    EXPECT_EQ(endpoint.cas, hiredlock::Cas::automatic);
}

struct Bad {
    std::string uri;
    std::string_view says;  // what the message must contain
};

std::optional<Error> refusal(const std::function<void()>& act) {
    try {
        act();
    } catch (const Error& e) {
        return e;
    }
    return std::nullopt;
}

TEST(EndpointUri, RefusesWhatItCannotReadAndSaysWhy) {
    const Bad table[] = {
        {"", "redis://"},
        {"localhost:6379", "redis://"},
        {"redis:", "redis://"},
        {"redis:/localhost", "redis://"},
        {"http://localhost", "'http'"},
        {"redis+sentinel://localhost", "'redis+sentinel'"},
        {"://localhost", "scheme"},
        {"redis://", "host"},
        {"redis:///1", "host"},
        {"redis://:7000", "host"},
        {"redis://:pw@", "host"},
        {"redis://:pw@:7000", "host"},
        {"redis://[]", "host"},
        {"redis://[::1", "']'"},
        {"redis://[::1]7000", "']'"},
        {"redis://[::1]:", "port"},
        {"redis://::1", "brackets"},
        {"redis://fe80::1:6379", "brackets"},
        {"redis://h:", "port"},
        {"redis://h:0", "port"},
        {"redis://h:65536", "port"},
        {"redis://h:-1", "port"},
        {"redis://h:+1", "port"},
        {"redis://h: 1", "port"},
        {"redis://h:1x", "port"},
        {"redis://h:0x10", "port"},
        {"redis://h:99999999999999999999", "port"},
        {"redis://h/x", "database"},
        {"redis://h/-1", "database"},
        {"redis://h/1/2", "database"},
        {"redis://h/1 ", "database"},
        {"redis://h/99999999999", "database"},
        {"redis://h?db=1", "'?'"},
        {"redis://h/1?timeout=3", "'?'"},
        {"redis://me@h", "user without a password"},
        {"redis://@h", "user without a password"},
        {"redis://me:@h", "password"},
        {"redis://me:p%@h", "'%'"},
        {"redis://me:p%4@h", "'%'"},
        {"redis://me:p%zz@h", "'%'"},
        {"redis://me:p%-1@h", "'%'"},
        {"redis://me:p%+1@h", "'%'"},
        {"redis://%h@h", "user"},
        {"redis://h%", "'%'"},
        {"redis://h%00", "NUL"},
        {"redis://h\0"s, "NUL"},
        {"unix://", "absolute path"},
        {"unix://relative.sock", "absolute path"},
        {"unix:///s?db=", "database"},
        {"unix:///s?db=x", "database"},
        {"unix:///s?db=-1", "database"},
        {"unix:///s?database=1", "?db=N"},
        {"unix:///s?", "?db=N"},
        {"unix:///s%00t", "NUL"},
        {"unix:///" + std::string(200, 's'), "100 bytes"},
    };
    for (const Bad& row : table) {
        SCOPED_TRACE(row.uri);
        const auto error = refusal([&] { Endpoint::parse(row.uri); });
        if (!error) {
            ADD_FAILURE() << "taken";
            continue;
        }
        EXPECT_EQ(error->code(), Errc::invalid_argument);
        EXPECT_NE(std::string_view{error->what()}.find(row.says), std::string_view::npos) << error->what();
    }
}

TEST(EndpointUri, SaysThatTlsIsNotThereRatherThanWrong) {
    const auto error = refusal([] { Endpoint::parse("rediss://localhost"); });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), Errc::unsupported);
}

TEST(EndpointUri, NoMessageTellsTheUserOrThePassword) {
    const std::string table[] = {
        "redis://scott:tiger@",
        "redis://scott:tiger@h:x",
        "redis://scott:tiger@h:99999",
        "redis://scott:tiger@h/x",
        "redis://scott:tiger@h?x",
        "redis://scott:tiger@[::1",
        "redis://scott:tiger@[::1]x",
        "redis://scott:tiger@::1",
        "redis://scott:tiger%@h",
        "redis://scott%:tiger@h",
        "redis://scott%00:tiger@h%",
        "rediss://scott:tiger@h",
        "http://scott:tiger@h",
        "scott:tiger@h:6379",
        "redis:scott:tiger@h",
        "redis:/scott:tiger@h",
        "unix://scott:tiger@/s",
        "unix://scott:tiger@relative",
        // What people write by mistake: no host, the '@' encoded, the user before the scheme, the password as an option.
        "redis://scott:tiger",
        "redis://:tiger",
        "redis://[scott]:tiger",
        "redis://[scott]tiger",
        "redis://scott:tiger%40h",
        "redis://scott:tiger/0",
        "redis://scott:tiger%40h:6379/0",
        "scott:tiger@redis://h",
        "redis:scott:tiger@tcp://h",
        "redis://h/0?password=tiger",
        "redis://h/0&password=tiger",
        "redis://h:6379?password=tiger",
        "unix:///s?password=tiger",
        "unix:///s?db=0&password=tiger",
    };
    for (const std::string& uri : table) {
        SCOPED_TRACE(uri);
        const auto error = refusal([&] { Endpoint::parse(uri); });
        if (!error) {
            ADD_FAILURE() << "taken";
            continue;
        }
        EXPECT_EQ(std::string_view{error->what()}.find("tiger"), std::string_view::npos) << error->what();
        EXPECT_EQ(std::string_view{error->what()}.find("scott"), std::string_view::npos) << error->what();
    }
}

TEST(EndpointUri, AnAtSignBehindThePathDoesNotTurnTheHostIntoAUser) {
    for (const char* uri : {"redis://h:6379/0?name=me@elsewhere.example", "redis://h:6379#me@elsewhere.example"}) {
        SCOPED_TRACE(uri);
        try {
            EXPECT_EQ(Endpoint::parse(uri).host, "h");
        } catch (const Error&) {  // refusing it is as well
        }
    }
}

TEST(EndpointUri, EveryPrefixAndEveryChangedByteIsReadOrRefused) {
    const std::string whole = "redis://us%40er:pass%2fword@[fe80::1%25eth0]:7000/12";
    for (std::size_t size = 0; size <= whole.size(); ++size) {
        for (const char c : {'\0', '%', '@', ':', '/', '[', ']', '?', '\xff'}) {
            std::string uri = whole.substr(0, size) + c;
            if (size < whole.size()) uri += whole.substr(size + 1);
            for (const auto& text : {uri, uri.substr(0, size + 1)}) {
                const auto error = refusal([&] { Endpoint::parse(text).validate(); });
                if (!error) continue;
                ASSERT_EQ(error->code(), Errc::invalid_argument) << text;
            }
        }
    }
}

TEST(EndpointMembers, ThatCannotWorkAreRefused) {
    const auto problem = [](const Endpoint& endpoint) -> std::string {
        const auto error = refusal([&] { endpoint.validate(); });
        if (!error) return "";
        EXPECT_EQ(error->code(), Errc::invalid_argument);
        return error->what();
    };
    EXPECT_EQ(problem({}), "");
    EXPECT_EQ(problem({.port = 7000}), "");
    EXPECT_EQ(problem({.client_name = ""}), "");
    EXPECT_EQ(problem({.host = "", .unix_socket = "/s"}), "") << "the socket wins";
    EXPECT_EQ(problem({.connect_timeout = 1ms, .command_timeout = 24h}), "");

    const auto tells = [&](const Endpoint& endpoint, std::string_view member) { return problem(endpoint).find(member) != std::string::npos; };
    EXPECT_TRUE(tells({.host = ""}, "host"));
    EXPECT_TRUE(tells({.host = "a\0b"s}, "host"));
    EXPECT_TRUE(tells({.port = 0}, "port"));
    EXPECT_TRUE(tells({.port = 65536}, "port"));
    EXPECT_TRUE(tells({.port = std::numeric_limits<int>::min()}, "port"));
    EXPECT_TRUE(tells({.unix_socket = std::string(101, 's')}, "unix_socket"));
    EXPECT_TRUE(tells({.unix_socket = "/a\0b"s}, "unix_socket"));
    EXPECT_TRUE(tells({.username = "me"}, "password"));
    EXPECT_TRUE(tells({.database = -1}, "database"));
    EXPECT_TRUE(tells({.database = std::numeric_limits<int>::max()}, "database"));
    EXPECT_TRUE(tells({.client_name = "two words"}, "client_name"));
    EXPECT_TRUE(tells({.client_name = "line\n"}, "client_name"));
    EXPECT_TRUE(tells({.client_name = "\xc3\xa4"}, "client_name"));
    EXPECT_TRUE(tells({.connect_timeout = 0ms}, "connect_timeout"));
    EXPECT_TRUE(tells({.connect_timeout = std::chrono::milliseconds::min()}, "connect_timeout"));
    EXPECT_TRUE(tells({.connect_timeout = std::chrono::milliseconds::max()}, "connect_timeout"));
    EXPECT_TRUE(tells({.command_timeout = -1ms}, "command_timeout"));
    EXPECT_TRUE(tells({.command_timeout = std::chrono::milliseconds::max()}, "command_timeout"));
    EXPECT_EQ(problem({.port = 0, .username = "scott", .password = "tiger"}).find("tiger"), std::string::npos);
}

TEST(EndpointMembers, GiveItANameForMessages) {
    EXPECT_EQ(Endpoint{}.name(), "127.0.0.1:6379");
    EXPECT_EQ((Endpoint{.host = "::1", .port = 7000}.name()), "[::1]:7000");
    EXPECT_EQ((Endpoint{.unix_socket = "/run/redis.sock"}.name()), "/run/redis.sock");
    EXPECT_EQ((Endpoint{.username = "scott", .password = "tiger"}.name()), "127.0.0.1:6379");
}

TEST(EndpointUri, IsMadeOfAnyKindOfString) {
    EXPECT_EQ(Uri{"redis://a"}.text(), "redis://a");
    EXPECT_EQ(Uri{"redis://b"s}.text(), "redis://b");
    EXPECT_EQ(Uri{std::string_view{"redis://c"}}.text(), "redis://c");
    EXPECT_EQ(Uri{static_cast<const char*>(nullptr)}.text(), "");
}

}  // namespace
