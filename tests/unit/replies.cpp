// What a server's error words mean, and what of them may be repeated.
#include <hiredlock/reply.hpp>

#include <gtest/gtest.h>

#include <string_view>

using hiredlock::Errc;
using namespace hiredlock::detail;

namespace {

TEST(Replies, ErrorWordsHaveAMeaning) {
    const struct {
        std::string_view words;
        Errc code;
    } table[] = {
        {"NOAUTH Authentication required.", Errc::denied},
        {"WRONGPASS invalid username-password pair or user is disabled.", Errc::denied},
        {"NOPERM this user has no permissions to run the 'set' command", Errc::denied},
        {"NOPERM User me has no permissions to access the 'k' key", Errc::denied},
        {"DENIED Redis is running in protected mode because protected mode is enabled", Errc::denied},
        {"ERR invalid password", Errc::denied},
        {"ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?", Errc::denied},
        {"ERR Client sent AUTH, but no password is set", Errc::denied},
        {"ERR The user executing the script can't run this command or subcommand script: f, on @user_script:1.", Errc::denied},
        {"ERR ACL failure in script: User me has no permissions to run the 'get' command script: f, on @user_script:1.", Errc::denied},
        {"READONLY You can't write against a read only replica.", Errc::read_only},
        {"READONLY You can't write against a read only replica. script: f, on @user_script:1.", Errc::read_only},
        {"ERR Error running script (call to f): @user_script:1: -READONLY You can't write against a read only replica.", Errc::read_only},
        {"LOADING Redis is loading the dataset in memory", Errc::loading},
        {"BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.", Errc::loading},
        {"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", Errc::loading},
        {"CLUSTERDOWN Hash slot not served", Errc::loading},
        {"TRYAGAIN Multiple keys request during rehashing of slot", Errc::loading},
        {"OOM command not allowed when used memory > 'maxmemory'.", Errc::out_of_memory},
        {"ERR Error running script (call to f): @user_script:1: -OOM command not allowed", Errc::out_of_memory},
        {"MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.", Errc::disk_error},
        {"WRONGTYPE Operation against a key holding the wrong kind of value", Errc::wrong_type},
        {"ERR Error running script (call to f): @user_script:1: WRONGTYPE Operation against a key", Errc::wrong_type},
        {"ERR Key should be of string type if conditions are specified", Errc::wrong_type},
        {"ERR value is not an integer or out of range", Errc::wrong_type},
        {"NOREPLICAS Not enough good replicas to write.", Errc::not_replicated},
        {"ERR max number of clients reached", Errc::unreachable},
        {"MOVED 3999 127.0.0.1:6381", Errc::unsupported},
        {"ASK 3999 127.0.0.1:6381", Errc::unsupported},
        {"CROSSSLOT Keys in request don't hash to the same slot", Errc::unsupported},
        {"ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.", Errc::unsupported},
        {"ERR unknown command 'DELEX', with args beginning with: 'k' 't' ", Errc::unsupported},
        {"ERR syntax error", Errc::unsupported},
        {"ERR wrong number of arguments for 'set' command", Errc::protocol},
        {"NOSCRIPT No matching script. Please use EVAL.", Errc::protocol},
        {"EXECABORT Transaction discarded because of previous errors.", Errc::protocol},
        {"BUSYKEY Target key name already exists.", Errc::protocol},
        {"", Errc::protocol},
        {"-", Errc::protocol},
    };
    for (const auto& [words, code] : table) EXPECT_EQ(meaning(words), code) << words;
}

TEST(Replies, AnUnknownFormIsToldFromAFailingOne) {
    EXPECT_TRUE(is_unknown_command("ERR unknown command 'DELEX', with args beginning with: 'k' 't' "));
    EXPECT_TRUE(is_unknown_command("ERR unknown subcommand 'X'. Try CLIENT HELP."));
    EXPECT_TRUE(is_unknown_command("ERR syntax error"));
    EXPECT_FALSE(is_unknown_command("ERR wrong number of arguments for 'set' command"));
    EXPECT_FALSE(is_unknown_command("NOPERM"));
    EXPECT_FALSE(is_unknown_command(""));
}

TEST(Replies, ArgumentsThatAServerQuotesAreNotRepeated) {
    EXPECT_EQ(without_arguments("ERR unknown command 'CAD', with args beginning with: 'key' 'token' "), "ERR unknown command 'CAD'");
    EXPECT_EQ(without_arguments("ERR unknown command `CAD`, with args beginning with: `key`, `token`, "), "ERR unknown command `CAD`");
    EXPECT_EQ(without_arguments("WRONGTYPE Operation"), "WRONGTYPE Operation");
    EXPECT_EQ(without_arguments(""), "");
}

}  // namespace
