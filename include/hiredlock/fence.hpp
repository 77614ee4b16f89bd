// Fencing numbers: a number that grows with every grant of a lock, by which a storage can refuse a holder whose lock has passed on.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include <hiredlock/policy.hpp>

namespace hiredlock {

namespace detail {

/// The cluster slot of a key: CRC-16 (XMODEM) of the key, or of its hash tag where it has one.
/// https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/
constexpr std::string_view hash_tag(std::string_view key) noexcept {
    const auto open = key.find('{');
    if (open == std::string_view::npos) return {};
    const auto close = key.find('}', open + 1);
    if (close == std::string_view::npos) return {};
    return key.substr(open + 1, close - open - 1);
}

constexpr unsigned cluster_slot(std::string_view key) noexcept {
    const std::string_view tag = hash_tag(key);
    unsigned crc = 0;
    for (const char c : tag.empty() ? key : tag) {
        crc ^= static_cast<unsigned>(static_cast<unsigned char>(c)) << 8U;
        for (int bit = 0; bit < 8; ++bit) crc = ((crc & 0x8000U) != 0 ? (crc << 1U) ^ 0x1021U : crc << 1U) & 0xffffU;
    }
    return crc % 16384;
}

/// A key beside `key`, in the same cluster slot.
inline std::string fence_key_beside(const std::string& key) {
    if (!hash_tag(key).empty()) return key + ":fence";
    if (key.find('}') == std::string::npos) return '{' + key + "}:fence";
    // The key cannot be its own hash tag. Some number hashes to the same slot, and a short one is found soon.
    const unsigned slot = cluster_slot(key);
    unsigned n = 0;
    while (cluster_slot(std::to_string(n)) != slot) ++n;
    return '{' + std::to_string(n) + "}:fence:" + key;
}

}  // namespace detail

namespace fence {

struct None {
    using kind = policy::Fence;
    const char* problem() const noexcept { return nullptr; }
    std::string key_for(const std::string&) const { return {}; }
};

/// Lock::fencing_token(): a number taken with the grant in one step, larger than that of every earlier grant of the lock. Give it to the storage
/// with each write; a storage that refuses numbers below the largest it has seen is safe from a holder that was paused past its lease.
///
/// The number is kept in a key of its own that never expires, in the cluster slot of the lock's key. If that key is evicted, flushed, or lost
/// in a failover, counting begins anew: give it a server whose maxmemory-policy does not evict it, and replicas that keep up.
/// Numbers may be skipped.
struct Counter {
    std::string key{};  ///< where the number is kept; empty: beside the lock's key

    using kind = policy::Fence;
    const char* problem() const noexcept { return nullptr; }
    std::string key_for(const std::string& lock_key) const { return key.empty() ? detail::fence_key_beside(lock_key) : key; }
};

}  // namespace fence

}  // namespace hiredlock
