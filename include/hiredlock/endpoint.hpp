// Where a server is and how to log in to it: Endpoint, its URI form, and the choice of compare-and-delete command.
#pragma once

#include <charconv>
#include <chrono>
#include <string>
#include <string_view>
#include <utility>

#include <hiredlock/error.hpp>

namespace hiredlock {

/// The command that deletes or extends a key only where it holds our token.
enum class Cas {
    automatic,  ///< finds out per connection: a native command where the server has one, else the script
    script,     ///< EVALSHA and EVAL: every Redis and Valkey
    tair,       ///< CAD and CAS: Tair, and the TairString module
    delifeq,    ///< DELIFEQ and SET ... IFEQ: Valkey 9.0 and later
    delex       ///< DELEX ... IFEQ and SET ... IFEQ: Redis 8.4 and later
};

/// One server. Members are read when a Store is made from it; a value that cannot work makes that constructor throw Errc::invalid_argument.
struct Endpoint {
    std::string host = "127.0.0.1";  ///< a name or an address; looking up a name takes as long as the system's resolver takes
    int port = 6379;
    std::string unix_socket{};  ///< wins over host and port when not empty
    std::string username{};     ///< an ACL user; needs a password
    std::string password{};     ///< any bytes; never part of a message
    int database = 0;
    std::string client_name = "hiredlock";             ///< shown by CLIENT LIST; empty: none is set
    std::chrono::milliseconds connect_timeout{1000};   ///< for connecting and logging in
    std::chrono::milliseconds command_timeout{1000};   ///< from sending a command to its answer
    Cas cas = Cas::automatic;

    /// From `redis://[user[:password]@]host[:port][/db]` or `unix:///path/to.sock[?db=N]`, percent-encoded where needed, IPv6 in brackets.
    /// Throws Errc::invalid_argument saying what is wrong (never quoting user or password), Errc::unsupported for rediss://.
    static Endpoint parse(std::string_view uri);

    /// Throws Errc::invalid_argument where a member cannot work.
    void validate() const;

    /// For messages: "host:port" or the socket's path.
    std::string name() const {
        if (!unix_socket.empty()) return unix_socket;
        return (host.find(':') == std::string::npos ? host : '[' + host + ']') + ':' + std::to_string(port);
    }
};

/// A server's address as text. It exists so that a string means a URI, and braces around two strings never mean a pair of iterators.
class Uri {
public:
    Uri(const char* text) : text_(text == nullptr ? "" : text) {}
    Uri(std::string text) : text_(std::move(text)) {}
    Uri(std::string_view text) : text_(text) {}

    const std::string& text() const noexcept { return text_; }

private:
    std::string text_;
};

namespace detail {

/// Percent-decoding, as RFC 3986 has it. `part` names the text in the message, which never quotes it: it may be a password.
inline std::string percent_decoded(std::string_view text, const char* part) {
    std::string out;
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (text[i] != '%') {
            out += text[i];
            continue;
        }
        unsigned value = 0;
        const auto digits = text.substr(i + 1, 2);
        const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
        if (digits.size() != 2 || error != std::errc{} || end != digits.data() + 2)
            refuse(std::string{"in the URI's "} + part + ", '%' must be followed by two hex digits (write a literal % as %25)");
        out += static_cast<char>(value);
        i += 2;
    }
    return out;
}

inline int parsed_number(std::string_view text, int least, int most, const char* what) {
    int value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (text.empty() || error != std::errc{} || end != text.data() + text.size() || value < least || value > most)
        refuse(std::string{"the URI's "} + what + " must be a number from " + std::to_string(least) + " to " + std::to_string(most));  // unquoted: who forgets the host has a password here
    return value;
}

inline constexpr int last_database = 1'000'000;

/// `[user[:password]@]`, whose end has been cut off already.
inline void parse_user(std::string_view text, Endpoint& endpoint) {
    const auto colon = text.find(':');
    if (colon == std::string_view::npos)
        refuse("the URI names a user without a password: write redis://user:password@host, or redis://:password@host for a password alone");
    endpoint.username = percent_decoded(text.substr(0, colon), "user");
    endpoint.password = percent_decoded(text.substr(colon + 1), "password");
}

/// `host[:port]`
inline void parse_address(std::string_view text, Endpoint& endpoint) {
    std::string_view host = text;
    std::string_view port;
    bool has_port = false;
    if (text.starts_with('[')) {
        const auto close = text.find(']');
        if (close == std::string_view::npos) refuse("in the URI, the IPv6 address after '[' has no ']'");
        host = text.substr(1, close - 1);
        const auto rest = text.substr(close + 1);
        if (!rest.empty() && rest.front() != ':') refuse("in the URI, only a port may follow ']'");
        has_port = !rest.empty();
        port = has_port ? rest.substr(1) : rest;
    } else if (const auto colon = text.find(':'); colon != std::string_view::npos) {
        host = text.substr(0, colon);
        port = text.substr(colon + 1);
        has_port = true;
        if (port.find(':') != std::string_view::npos) refuse("in the URI, an IPv6 address must stand in brackets, as in redis://[::1]:6379");
    }
    endpoint.host = percent_decoded(host, "host");
    if (endpoint.host.empty()) refuse("the URI names no host: write redis://host[:port][/db]");
    if (has_port) endpoint.port = parsed_number(port, 1, 65535, "port");
}

inline Endpoint parse_unix(std::string_view rest) {
    Endpoint endpoint;
    const auto question = rest.find('?');
    endpoint.unix_socket = percent_decoded(rest.substr(0, question), "path");
    if (!endpoint.unix_socket.starts_with('/')) refuse("a unix URI needs an absolute path: unix:///path/to/redis.sock");
    if (question != std::string_view::npos) {
        const auto query = rest.substr(question + 1);
        if (!query.starts_with("db=")) refuse("a unix URI may end in ?db=N and nothing else");
        endpoint.database = parsed_number(query.substr(3), 0, last_database, "database");
    }
    return endpoint;
}

}  // namespace detail

inline Endpoint Endpoint::parse(std::string_view uri) {
    using detail::refuse;
    if (uri.find('\0') != std::string_view::npos) refuse("the URI contains a NUL byte");
    if (uri.starts_with("unix://")) {
        Endpoint endpoint = detail::parse_unix(uri.substr(7));
        endpoint.validate();
        return endpoint;
    }
    if (uri.starts_with("rediss://")) refuse("rediss:// (TLS) is not supported by this version", Errc::unsupported);
    if (!uri.starts_with("redis://")) {
        const auto scheme = uri.find("://");
        refuse(scheme == std::string_view::npos || uri.substr(0, scheme).find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+-.") != std::string_view::npos
                   ? std::string{"a URI must begin with redis:// or unix://, as in redis://127.0.0.1:6379"}
                   : "the URI's scheme " + detail::in_quotes(uri.substr(0, scheme)) + " is not known: use redis:// or unix://");
    }
    Endpoint endpoint;
    std::string_view rest = uri.substr(8);
    std::string_view database;
    // The last '@' before the path ends the user: an '@' in a password ought to be encoded, but need not be misread.
    const auto slash = rest.find('/', rest.find('@') == std::string_view::npos ? 0 : rest.rfind('@'));
    if (slash != std::string_view::npos) {
        database = rest.substr(slash + 1);
        rest = rest.substr(0, slash);
    }
    if (const auto at = rest.rfind('@'); at != std::string_view::npos) {
        if (rest.substr(0, at).find_first_of("?#") != std::string_view::npos)
            refuse("in the URI, '?' and '#' in a user or password must be written %3F and %23, and an '@' behind the host %40");
        detail::parse_user(rest.substr(0, at), endpoint);
        rest = rest.substr(at + 1);
    }
    if (rest.find('?') != std::string_view::npos || database.find('?') != std::string_view::npos)
        refuse("a redis URI takes no '?' options: set them in an Endpoint");
    detail::parse_address(rest, endpoint);
    if (!database.empty()) endpoint.database = detail::parsed_number(database, 0, detail::last_database, "database");
    endpoint.validate();
    return endpoint;
}

inline void Endpoint::validate() const {
    using detail::refuse;
    constexpr std::chrono::milliseconds longest = std::chrono::hours{24};
    if (unix_socket.empty()) {
        if (host.empty()) refuse("Endpoint::host is empty");
        if (host.find('\0') != std::string::npos) refuse("Endpoint::host contains a NUL byte");
        if (port < 1 || port > 65535) refuse("Endpoint::port must be from 1 to 65535, not " + std::to_string(port));
    } else if (unix_socket.size() > 100 || unix_socket.find('\0') != std::string::npos) {
        refuse("Endpoint::unix_socket must be at most 100 bytes long and without a NUL byte");
    }
    if (!username.empty() && password.empty()) refuse("Endpoint::username is set but Endpoint::password is empty");
    if (database < 0 || database > detail::last_database) refuse("Endpoint::database must not be negative or absurd");
    for (const char c : client_name)
        if (c < '!' || c > '~') refuse("Endpoint::client_name may hold printable ASCII without spaces only, as CLIENT SETNAME asks");
    if (connect_timeout <= connect_timeout.zero() || connect_timeout > longest)
        refuse("Endpoint::connect_timeout must be above 0 and at most a day");
    if (command_timeout <= command_timeout.zero() || command_timeout > longest)
        refuse("Endpoint::command_timeout must be above 0 and at most a day");
}

}  // namespace hiredlock
