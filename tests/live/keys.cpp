// Keys of any bytes: exactly these, through the whole cycle of a lock.
#include "guards.hpp"

#include <gtest/gtest.h>

namespace {

using namespace std::chrono_literals;
using namespace std::string_literals;
using namespace guards;
using hiredlock::Cas;
using hiredlock::Lock;
using hiredlock::Pool;
using support::Raw;
using support::Server;

const std::vector<std::string> unusual_keys{
    "with spaces  in it "s,
    " "s,
    "%d %n %s %b %%"s,
    "with\0NUL\0"s,
    "\0"s,
    "line\r\nSET injected 1\r\n"s,
    "\r\n"s,
    "*3\r\n$3\r\nSET\r\n$8\r\ninjected\r\n$1\r\n1\r\n"s,
    "\"quotes\" 'and' \\backslashes\\"s,
    "\xff\xfe\x80 no UTF-8"s,
    "schl\xc3\xbcssel \xf0\x9f\x94\x92"s,
    "{tag}"s,
    "-1"s,
    "NX"s,
    std::string(1024 * 1024, 'k'),
    std::string(1024 * 1024, '\0'),
};

/// For messages: the start of a key.
std::string shown(const std::string& key) { return testing::PrintToString(key.substr(0, 40)) + " of " + std::to_string(key.size()) + " bytes"; }

void goes_through_the_whole_cycle(Pool& pool, Raw& raw, const std::string& key) {
    Lock lock{pool, key, 10s};
    EXPECT_EQ(lock.key(), key);
    EXPECT_EQ(raw.get(key), lock.token());
    EXPECT_EQ(raw.number({"DBSIZE"}), 1);
    EXPECT_FALSE(Lock(pool, key, 10s, std::try_to_lock).owns_lock());
    EXPECT_TRUE(lock.extend(100s));
    EXPECT_GT(raw.pttl(key), 50'000);
    const std::string token{lock.token()};
    const hiredlock::Ticket ticket = lock.release();
    EXPECT_EQ(ticket.key, key);
    Lock adopted{pool, ticket, 200s, std::adopt_lock};
    EXPECT_TRUE(adopted.owns_lock());
    EXPECT_EQ(raw.get(key), token);
    EXPECT_GT(raw.pttl(key), 150'000);
    EXPECT_EQ(raw.number({"DBSIZE"}), 1);
    EXPECT_EQ(adopted.unlock(), std::error_code{});
    EXPECT_EQ(raw.number({"DBSIZE"}), 0);
}

TEST(Key, OfAnyBytesGoesThroughTheWholeCycleExactly) {
    const Server server;
    Raw raw{server};
    Pool pool{endpoint_of(server)};
    for (const std::string& key : unusual_keys) {
        SCOPED_TRACE(shown(key));
        goes_through_the_whole_cycle(pool, raw, key);
    }
}

TEST(Key, OfAnyBytesGoesThroughTheWholeCycleByScript) {
    const Server server;
    Raw raw{server};
    Pool pool{with_scripts(server)};
    for (const std::string& key : unusual_keys) {
        SCOPED_TRACE(shown(key));
        raw({"SCRIPT", "FLUSH"});  // so that both forms of the script carry it
        goes_through_the_whole_cycle(pool, raw, key);
    }
}

TEST(Key, OfAnyBytesIsReleasedByADeferredReleaseToo) {
    const Server server;
    Raw raw{server};
    Pool pool{endpoint_of(server)};
    for (const std::string& key : unusual_keys) {
        SCOPED_TRACE(shown(key));
        { const Lock lock{pool, key, 10s, hiredlock::unlocking::Deferred{}}; }
        EXPECT_FALSE(pool.ping());  // the answer to it comes before that of the ping
        EXPECT_EQ(raw.number({"DBSIZE"}), 0);
    }
}

TEST(Key, ThatDoesNotPrintIsEscapedInMessages) {
    Pool nobody{hiredlock::Endpoint{.port = 1}};
    const std::string words = words_thrown_by([&] { const Lock lock{nobody, "a\r\nb\0c\xff"s, 10s, std::try_to_lock}; });
    EXPECT_NE(words.find("'a\\x0d\\x0ab\\x00c\\xff'"), std::string::npos) << words;
    const std::string long_words = words_thrown_by([&] { const Lock lock{nobody, std::string(100'000, 'k'), 10s, std::try_to_lock}; });
    EXPECT_LT(long_words.size(), 1000U);
}

}  // namespace
