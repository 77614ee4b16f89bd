// What is said to a server, as argument vectors and Lua text. No I/O here.
#pragma once

#include <charconv>
#include <chrono>
#include <initializer_list>
#include <string_view>

#include <hiredlock/endpoint.hpp>
#include <hiredlock/store.hpp>

namespace hiredlock::detail {

/// Takes commands in the order in which they are to be sent. The arguments are copied before command() returns.
class CommandSink {
public:
    virtual void command(std::initializer_list<std::string_view> arguments) = 0;

protected:
    ~CommandSink() = default;
};

/// A number as text, without an allocation.
class Digits {
public:
    explicit Digits(long long value) noexcept : end_(std::to_chars(text_, text_ + sizeof text_, value).ptr) {}
    operator std::string_view() const noexcept { return {text_, static_cast<std::size_t>(end_ - text_)}; }

private:
    char text_[24];
    char* end_;
};

/// A script and the SHA-1 by which EVALSHA names it (a test compares it with what a server computes).
struct Script {
    std::string_view text;
    std::string_view sha1;
};

// Compare and delete as the Redis manual's page on SET gives it; compare and extend alike.
inline constexpr Script release_script{
    "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end",
    "b998f9dfb154cdbea8cda65ad5177aadf0e945a2"};
inline constexpr Script extend_script{
    "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('pexpire',KEYS[1],ARGV[2]) else return 0 end",
    "53f2c61c14d7b92a6f44852b306cc8ed3636d4db"};

// SET NX and INCR in one step: a number, or nil where another holds the lock. If the number cannot be had the lock is not kept.
inline constexpr Script fenced_acquire_script{
    "if not redis.call('set',KEYS[1],ARGV[1],'NX',ARGV[2],ARGV[3]) then return false end "
    "local n=redis.pcall('incr',KEYS[2]) "
    "if type(n)=='table' and n.err then redis.call('del',KEYS[1]) end "
    "return n",
    "484fc45bd730f8c16472c0e43955ec5f0cff0bda"};

/// How long a ttl is as SET says it: EX with whole seconds, PX with milliseconds.
class Expiry {
public:
    explicit Expiry(std::chrono::milliseconds ttl) noexcept : seconds_(ttl.count() % 1000 == 0), number_(seconds_ ? ttl.count() / 1000 : ttl.count()) {}
    std::string_view unit() const noexcept { return seconds_ ? "EX" : "PX"; }
    const Digits& number() const noexcept { return number_; }

private:
    bool seconds_;
    Digits number_;
};

/// SET key token NX EX seconds, or PX milliseconds where the ttl is not whole seconds: https://redis.io/docs/latest/commands/set/
inline void write_acquire(CommandSink& sink, const Claim& claim) {
    const Expiry expiry{claim.ttl};
    sink.command({"SET", claim.key, claim.token, "NX", expiry.unit(), expiry.number()});
}

/// How a script is named: by its SHA-1, which the server may not know, or by its whole text, which always works.
enum class Naming { by_sha1, whole };

inline void write_fenced_acquire(CommandSink& sink, Naming naming, const Claim& claim) {
    const Expiry expiry{claim.ttl};
    if (naming == Naming::by_sha1)
        sink.command({"EVALSHA", fenced_acquire_script.sha1, "2", claim.key, claim.fence_key, claim.token, expiry.unit(), expiry.number()});
    else
        sink.command({"EVAL", fenced_acquire_script.text, "2", claim.key, claim.fence_key, claim.token, expiry.unit(), expiry.number()});
}

/// The same without a script: four answers, of which the last counts. A refused attempt takes a number too, which skips one.
inline void write_fenced_transaction(CommandSink& sink, const Claim& claim) {
    sink.command({"MULTI"});
    write_acquire(sink, claim);
    sink.command({"INCR", claim.fence_key});
    sink.command({"EXEC"});
}

inline void write_wait(CommandSink& sink, const Acknowledgement& asked) {
    const Digits replicas{asked.replicas}, timeout{asked.timeout.count()};
    if (asked.on_disk)
        sink.command({"WAITAOF", Digits{asked.local}, replicas, timeout});
    else
        sink.command({"WAIT", replicas, timeout});
}

inline void write_release(CommandSink& sink, Cas form, Naming naming, std::string_view key, std::string_view token) {
    switch (form) {
        case Cas::tair: return sink.command({"CAD", key, token});
        case Cas::delifeq: return sink.command({"DELIFEQ", key, token});
        case Cas::delex: return sink.command({"DELEX", key, "IFEQ", token});
        case Cas::script:
        case Cas::automatic: break;
    }
    if (naming == Naming::by_sha1)
        sink.command({"EVALSHA", release_script.sha1, "1", key, token});
    else
        sink.command({"EVAL", release_script.text, "1", key, token});
}

inline void write_extend(CommandSink& sink, Cas form, Naming naming, const Claim& claim) {
    const Digits ms{claim.ttl.count()};
    switch (form) {
        case Cas::tair: return sink.command({"CAS", claim.key, claim.token, claim.token, "PX", ms});
        case Cas::delifeq:
        case Cas::delex: return sink.command({"SET", claim.key, claim.token, "IFEQ", claim.token, "PX", ms});
        case Cas::script:
        case Cas::automatic: break;
    }
    if (naming == Naming::by_sha1)
        sink.command({"EVALSHA", extend_script.sha1, "1", claim.key, claim.token, ms});
    else
        sink.command({"EVAL", extend_script.text, "1", claim.key, claim.token, ms});
}

}  // namespace hiredlock::detail
