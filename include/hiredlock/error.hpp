// What can go wrong, by name: Errc, its std::error_category, and the exception that carries them.
#pragma once

#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>

namespace hiredlock {

/// Why an operation failed. "Busy", a lock that another holds, is not among them: that is `false`.
/// `is_transient` says which of these may go away by themselves.
enum class Errc {
    /// A key, ttl, URI, option or policy value that cannot work. Nothing was sent. Trying again does not help: change the value.
    invalid_argument = 1,
    /// No answer within the command timeout or the caller's limit; whether the server executed the command is not known.
    /// An acquire that ended so has been cleaned up after. Trying again may help.
    timed_out,
    /// The lock was held and no longer is: its lease ran out, or the server said that it belongs to someone else. Stop the work.
    lost,
    /// unlock() found the lock expired, deleted or someone else's; nothing was deleted. Trying again does not help.
    not_held,
    /// No connection: refused, reset, no route, unknown host, too many clients, or a borrowed context that is broken. May help.
    unreachable,
    /// The connection broke after the command was sent and before it was answered. Trying again may help.
    unknown_outcome,
    /// Wrong or missing password, or missing ACL rights (NOAUTH, WRONGPASS, NOPERM, DENIED). Needs a change of configuration.
    denied,
    /// The server is a replica (READONLY), as during a failover. Trying again may help.
    read_only,
    /// The server is up but not ready: loading its data, busy with a script, without its master. Trying again may help.
    loading,
    /// The server refuses writes because it has reached maxmemory (OOM). Somebody has to make room.
    out_of_memory,
    /// The server refuses writes because it could not save to disk (MISCONF). Somebody has to look at the server.
    disk_error,
    /// The key holds another type than a string: it belongs to something else. Choose another key.
    wrong_type,
    /// Fewer replicas acknowledged the write than were asked for. The lock was not taken, or not confirmed as extended.
    not_replicated,
    /// Fewer servers than a majority agreed. May help.
    no_quorum,
    /// The server, or this build, lacks what was asked for, or the key lives on another cluster node (MOVED, ASK).
    unsupported,
    /// The server answered something that makes no sense here. The message holds its words.
    protocol,
};

namespace detail {

class Category final : public std::error_category {
public:
    const char* name() const noexcept override { return "hiredlock"; }

    std::string message(int value) const override {
        switch (static_cast<Errc>(value)) {
            case Errc::invalid_argument: return "invalid argument";
            case Errc::timed_out: return "no answer in time";
            case Errc::lost: return "the lock was lost";
            case Errc::not_held: return "the lock is not held";
            case Errc::unreachable: return "the server cannot be reached";
            case Errc::unknown_outcome: return "the connection broke before the answer came";
            case Errc::denied: return "the server denies access";
            case Errc::read_only: return "the server is a read-only replica";
            case Errc::loading: return "the server is not ready";
            case Errc::out_of_memory: return "the server is out of memory";
            case Errc::disk_error: return "the server cannot save to disk";
            case Errc::wrong_type: return "the key holds another type";
            case Errc::not_replicated: return "too few replicas acknowledged";
            case Errc::no_quorum: return "no majority of servers";
            case Errc::unsupported: return "not supported";
            case Errc::protocol: return "unexpected answer";
        }
        return "unknown hiredlock error";
    }
};

}  // namespace detail

inline const std::error_category& category() noexcept {
    static const detail::Category instance;
    return instance;
}

inline std::error_code make_error_code(Errc code) noexcept { return {static_cast<int>(code), category()}; }

}  // namespace hiredlock

template <>
struct std::is_error_code_enum<hiredlock::Errc> : std::true_type {};

namespace hiredlock {

/// What every throwing operation throws: a std::system_error whose code() compares with Errc and whose what() says what happened, on which
/// server and in the server's own words. A password is never part of it, nor a token.
class Error : public std::system_error {
public:
    /// what() is then "<text> (<the code's message>)".
    Error(std::error_code code, const std::string& text)
        : std::system_error(code), what_(std::make_shared<const std::string>(text + " (" + code.message() + ')')) {}

    const char* what() const noexcept override { return what_->c_str(); }

private:
    std::shared_ptr<const std::string> what_;  // shared, so that copying an exception cannot throw
};

/// True where the same call may succeed later without anybody changing anything. Waiting operations retry these by themselves.
inline bool is_transient(std::error_code code) noexcept {
    return code == Errc::timed_out || code == Errc::unreachable || code == Errc::unknown_outcome || code == Errc::read_only ||
           code == Errc::loading || code == Errc::no_quorum;
}

namespace detail {

[[noreturn]] inline void refuse(const std::string& what, Errc code = Errc::invalid_argument) { throw Error{code, "hiredlock: " + what}; }

/// The text in quotes for a message: bytes that do not print are escaped, long text is cut.
inline std::string in_quotes(std::string_view text) {
    constexpr std::size_t longest = 80;
    std::string out = "'";
    for (const char c : text.substr(0, longest)) {
        if (c >= 0x20 && c < 0x7f && c != '\\') {
            out += c;
        } else {
            char escaped[5];
            std::snprintf(escaped, sizeof escaped, "\\x%02x", static_cast<unsigned>(static_cast<unsigned char>(c)));
            out += escaped;
        }
    }
    return out + (text.size() > longest ? "...'" : "'");
}

}  // namespace detail

}  // namespace hiredlock
