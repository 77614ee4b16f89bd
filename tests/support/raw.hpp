// A plain blocking client for a look from outside at what is on a server.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

struct redisContext;

namespace support {

class Server;

/// A reply as it came. An error is a value too.
struct Value {
    enum class Kind { nil, integer, status, string, error, array };

    Kind kind = Kind::nil;
    long long integer = 0;
    std::string text{};             ///< of a status, string or error; may hold any byte
    std::vector<Value> elements{};  ///< of an array

    bool is_nil() const noexcept { return kind == Kind::nil; }
    bool is_error() const noexcept { return kind == Kind::error; }
    bool is_ok() const noexcept { return kind == Kind::status && text == "OK"; }
};

/// One connection, one thread at a time. Whatever waits ends after 30 s. Throws std::runtime_error when the connection fails or has failed.
class Raw {
public:
    /// Over the unix socket of `server`, with its password.
    explicit Raw(const Server& server);

    /// To `port` of 127.0.0.1; a password, if any, is that of the default user.
    explicit Raw(int port, const std::string& password = {});

    static Raw to_unix_socket(const std::string& path, const std::string& password = {});

    Raw(Raw&&) noexcept = default;
    Raw& operator=(Raw&&) noexcept = default;
    ~Raw() = default;

    /// Sends one command, each word as its exact bytes, and returns the reply: `raw({"SET", key, value})`.
    Value operator()(const std::vector<std::string>& argv);

    /// Sends one command and does not wait for the reply, which read() returns.
    void send(const std::vector<std::string>& argv);
    Value read();

    /// The text of a status or string; throws on any other reply.
    std::string text(const std::vector<std::string>& argv);

    /// An integer; throws on any other reply.
    long long number(const std::vector<std::string>& argv);

    std::optional<std::string> get(const std::string& key);
    bool exists(const std::string& key);

    /// Milliseconds until the key expires; −1: never, −2: no such key.
    long long pttl(const std::string& key);

    /// Without an expiry when `ttl` is 0. Throws unless the server says OK.
    void set(const std::string& key, const std::string& value, std::chrono::milliseconds ttl = {});

    /// Whether the key was there.
    bool del(const std::string& key);

    /// How long a reply is waited for; 0: for ever.
    void set_timeout(std::chrono::milliseconds limit);

    int descriptor() const noexcept;

private:
    struct Close {
        void operator()(redisContext* context) const noexcept;
    };

    Raw(redisContext* context, const std::string& password);
    [[noreturn]] void fail(const std::string& doing) const;

    std::unique_ptr<redisContext, Close> context_;
};

}  // namespace support
