// The value that a lock's key holds: who owns it. Unpredictable, and unique across threads, processes and machines.
#pragma once

#include <unistd.h>
#if defined(__APPLE__)
#include <sys/random.h>
#endif

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <string>
#include <system_error>

#include <hiredlock/error.hpp>

namespace hiredlock {

/// 32 hex digits of the operating system's entropy. Read from the system at each call (about half a microsecond) and never buffered: a buffer
/// would be copied by fork(). Safe from any thread. Throws Error where the system has no entropy to give.
inline std::string new_token() {
    std::array<unsigned char, 16> bytes{};
    if (::getentropy(bytes.data(), bytes.size()) != 0)
        throw Error{std::error_code{errno, std::generic_category()}, "hiredlock: getentropy() gave no random bytes for a token"};
    static constexpr char digits[] = "0123456789abcdef";
    std::string token;
    token.reserve(2 * bytes.size());
    for (const unsigned byte : bytes) {
        token += digits[byte >> 4U];
        token += digits[byte & 15U];
    }
    return token;
}

namespace detail {

/// 64 well-mixed bits for jitter, from a token and a count: no state, so nothing that a fork() could duplicate. (SplitMix64's finalizer.)
inline std::uint64_t jitter(const std::string& token, std::uint64_t count) noexcept {
    std::uint64_t bits = count * 0x9e3779b97f4a7c15U;
    for (const char c : token) bits = bits * 31 + static_cast<unsigned char>(c);
    bits = (bits ^ (bits >> 30U)) * 0xbf58476d1ce4e5b9U;
    bits = (bits ^ (bits >> 27U)) * 0x94d049bb133111ebU;
    return bits ^ (bits >> 31U);
}

/// The next of this program's, for what many threads share.
inline std::uint64_t next_jitter() {
    static std::atomic<std::uint64_t> count{0};
    static const std::string seed = new_token();
    return jitter(seed, count.fetch_add(1, std::memory_order_relaxed));
}

}  // namespace detail

}  // namespace hiredlock
