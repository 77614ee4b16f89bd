#include "raw.hpp"

#include "server.hpp"

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <utility>

#include <fcntl.h>
#include <hiredis/hiredis.h>
#include <sys/socket.h>
#include <sys/time.h>

namespace support {
namespace {

constexpr timeval limit{30, 0};

Value value_of(const redisReply& reply) {
    Value value;
    switch (reply.type) {
        case REDIS_REPLY_NIL: return value;
        case REDIS_REPLY_INTEGER:
            value.kind = Value::Kind::integer;
            value.integer = reply.integer;
            return value;
        case REDIS_REPLY_STATUS: value.kind = Value::Kind::status; break;
        case REDIS_REPLY_STRING: value.kind = Value::Kind::string; break;
        case REDIS_REPLY_ERROR: value.kind = Value::Kind::error; break;
        case REDIS_REPLY_ARRAY:
            value.kind = Value::Kind::array;
            for (std::size_t i = 0; i < reply.elements; ++i) value.elements.push_back(value_of(*reply.element[i]));
            return value;
        default: throw std::runtime_error{"a reply of a type that RESP2 does not have"};
    }
    value.text.assign(reply.str, reply.len);
    return value;
}

[[noreturn]] void unexpected(const std::vector<std::string>& argv, const Value& value) {
    throw std::runtime_error{argv.at(0) + " was not answered as expected: kind " + std::to_string(static_cast<int>(value.kind)) + ' ' +
                             value.text};
}

}  // namespace

void Raw::Close::operator()(redisContext* context) const noexcept { redisFree(context); }

Raw::Raw(redisContext* context, const std::string& password) : context_{context} {
    if (context_ == nullptr) throw std::runtime_error{"Raw: out of memory"};
    if (context_->err != 0) fail("connecting");
    ::fcntl(context_->fd, F_SETFD, FD_CLOEXEC);
    redisSetTimeout(context_.get(), limit);
    if (password.empty()) return;
    if (const Value reply = (*this)({"AUTH", password}); !reply.is_ok()) throw std::runtime_error{"Raw: AUTH: " + reply.text};
}

Raw::Raw(const Server& server) : Raw{to_unix_socket(server.socket_path(), server.password())} {}

Raw::Raw(int port, const std::string& password) : Raw{redisConnectWithTimeout("127.0.0.1", port, limit), password} {}

Raw Raw::to_unix_socket(const std::string& path, const std::string& password) {
    return Raw{redisConnectUnixWithTimeout(path.c_str(), limit), password};
}

void Raw::fail(const std::string& doing) const {
    throw std::runtime_error{"Raw: " + doing + ": " + static_cast<const char*>(context_->errstr)};
}

Value Raw::operator()(const std::vector<std::string>& argv) {
    send(argv);
    return read();
}

void Raw::send(const std::vector<std::string>& argv) {
    if (context_->err != 0) fail("sending " + argv.at(0));
    std::vector<const char*> words;
    std::vector<std::size_t> lengths;
    for (const std::string& word : argv) {
        words.push_back(word.data());
        lengths.push_back(word.size());
    }
    char* formatted = nullptr;
    const auto length = redisFormatCommandArgv(&formatted, static_cast<int>(words.size()), words.data(), lengths.data());
    if (length < 0) throw std::runtime_error{"Raw: a command cannot be formatted"};
    const std::unique_ptr<char, void (*)(char*)> owner{formatted, [](char* text) { redisFreeCommand(text); }};
    // hiredis would write it with SIGPIPE in force.
    for (std::size_t sent = 0; sent < static_cast<std::size_t>(length);) {
        const ssize_t n = ::send(context_->fd, formatted + sent, static_cast<std::size_t>(length) - sent, MSG_NOSIGNAL);
        if (n >= 0) sent += static_cast<std::size_t>(n);
        else if (errno != EINTR) throw std::runtime_error{"Raw: sending " + argv.at(0) + ": " + std::strerror(errno)};
    }
}

Value Raw::read() {
    if (context_->err != 0) fail("reading");
    void* reply = nullptr;
    if (redisGetReply(context_.get(), &reply) != REDIS_OK || reply == nullptr) fail("reading");
    const std::unique_ptr<void, void (*)(void*)> owner{reply, [](void* given) { freeReplyObject(given); }};
    return value_of(*static_cast<const redisReply*>(reply));
}

std::string Raw::text(const std::vector<std::string>& argv) {
    Value reply = (*this)(argv);
    if (reply.kind != Value::Kind::status && reply.kind != Value::Kind::string) unexpected(argv, reply);
    return std::move(reply.text);
}

long long Raw::number(const std::vector<std::string>& argv) {
    const Value reply = (*this)(argv);
    if (reply.kind != Value::Kind::integer) unexpected(argv, reply);
    return reply.integer;
}

std::optional<std::string> Raw::get(const std::string& key) {
    Value reply = (*this)({"GET", key});
    if (reply.is_nil()) return {};
    if (reply.kind != Value::Kind::string) unexpected({"GET"}, reply);
    return std::move(reply.text);
}

bool Raw::exists(const std::string& key) { return number({"EXISTS", key}) == 1; }

long long Raw::pttl(const std::string& key) { return number({"PTTL", key}); }

void Raw::set(const std::string& key, const std::string& value, std::chrono::milliseconds ttl) {
    std::vector<std::string> argv{"SET", key, value};
    if (ttl.count() != 0) argv.insert(argv.end(), {"PX", std::to_string(ttl.count())});
    if (const Value reply = (*this)(argv); !reply.is_ok()) unexpected(argv, reply);
}

bool Raw::del(const std::string& key) { return number({"DEL", key}) == 1; }

void Raw::set_timeout(std::chrono::milliseconds timeout) {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(timeout);
    const auto rest = std::chrono::duration_cast<std::chrono::microseconds>(timeout - seconds);
    redisSetTimeout(context_.get(), timeval{static_cast<time_t>(seconds.count()), static_cast<suseconds_t>(rest.count())});
}

int Raw::descriptor() const noexcept { return context_->fd; }

}  // namespace support
