// A server's answer as the protocol code sees it, free of hiredis, and what its error words mean.
#pragma once

#include <string_view>
#include <vector>

#include <hiredlock/error.hpp>

namespace hiredlock::detail {

struct Reply {
    enum class Kind { nil, integer, text, error, array, other };
    Kind kind = Kind::nil;
    long long integer = 0;
    std::string_view text{};         ///< with text and error
    std::vector<Reply> elements{};   ///< with array

    bool is_error() const noexcept { return kind == Kind::error; }
    bool is_integer(long long value) const noexcept { return kind == Kind::integer && integer == value; }
    bool is_ok() const noexcept { return kind == Kind::text && text == "OK"; }
};

/// The server does not know the command, or not this form of it (SET ... IFEQ on an older one).
inline bool is_unknown_command(std::string_view words) noexcept {
    return words.starts_with("ERR unknown command") || words.starts_with("ERR unknown subcommand") || words.starts_with("ERR syntax error");
}

/// A server's words as a message may repeat them: "unknown command" quotes the arguments, and with them a token.
inline std::string_view without_arguments(std::string_view words) noexcept { return words.substr(0, words.find(", with args beginning with")); }

/// The error code for a server's words. They begin with a code of their own; a few old ones are told apart by their text only.
inline Errc meaning(std::string_view words) noexcept {
    struct Row {
        std::string_view prefix;
        Errc code;
    };
    static constexpr Row rows[] = {
        {"NOAUTH", Errc::denied},
        {"WRONGPASS", Errc::denied},
        {"NOPERM", Errc::denied},
        {"DENIED", Errc::denied},  // protected mode
        {"ERR invalid password", Errc::denied},
        {"ERR AUTH", Errc::denied},
        {"ERR Client sent AUTH", Errc::denied},
        {"ERR operation not permitted", Errc::denied},
        {"ERR The user executing the script can't", Errc::denied},  // Redis 7.0, of a command in a script
        {"ERR ACL failure in script", Errc::denied},                // later servers
        {"READONLY", Errc::read_only},
        {"LOADING", Errc::loading},
        {"BUSY ", Errc::loading},  // a script runs
        {"MASTERDOWN", Errc::loading},
        {"CLUSTERDOWN", Errc::loading},
        {"TRYAGAIN", Errc::loading},
        {"OOM", Errc::out_of_memory},
        {"MISCONF", Errc::disk_error},
        {"WRONGTYPE", Errc::wrong_type},
        {"ERR Key should be of string type", Errc::wrong_type},  // DELEX
        {"ERR value is not an integer", Errc::wrong_type},       // a fencing key that holds something else
        {"NOREPLICAS", Errc::not_replicated},
        {"NOGOODSLAVE", Errc::not_replicated},
        {"ERR max number of clients reached", Errc::unreachable},
        {"MOVED", Errc::unsupported},
        {"ASK", Errc::unsupported},
        {"CROSSSLOT", Errc::unsupported},
        {"ERR WAITAOF cannot be used", Errc::unsupported},  // no append-only file
        {"ERR unknown command", Errc::unsupported},
        {"ERR unknown subcommand", Errc::unsupported},
        {"ERR syntax error", Errc::unsupported},
    };
    for (const Row& row : rows)
        if (words.starts_with(row.prefix)) return row.code;
    // EXEC wraps the error for which it was itself refused.
    constexpr std::string_view because = "EXECABORT Transaction discarded because of: ";
    if (words.starts_with(because)) return meaning(words.substr(because.size()));
    // A script wraps the error of the command that it called.
    if (words.find("-OOM ") != std::string_view::npos) return Errc::out_of_memory;
    if (words.find("-READONLY ") != std::string_view::npos) return Errc::read_only;
    if (words.find("WRONGTYPE ") != std::string_view::npos) return Errc::wrong_type;
    return Errc::protocol;
}

}  // namespace hiredlock::detail
