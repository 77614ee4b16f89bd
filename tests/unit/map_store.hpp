// The smallest Store there is: a std::map, and a clock that moves only when it is told to. What a guard asks of a Store can be read off it.
#pragma once

#include <hiredlock/store.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

class MapStore {
public:
    using Time = hiredlock::Clock::time_point;
    static constexpr bool has_fencing = true;
    static constexpr Time forever = Time::max();

    Time now() const noexcept { return now_; }
    void sleep(const hiredlock::Patience& patience) {
        if (!patience.stop.stop_requested() && patience.until > now()) now_ = patience.until;
    }

    hiredlock::Outcome acquire(const hiredlock::Claim& claim, const hiredlock::Patience&) {
        if (holds(claim.key, claim.stale)) remove(claim.key);
        if (!value(claim.key).empty()) return said(false);
        put(claim.key, claim.token, now() + claim.ttl);
        return said(true, claim.fence_key.empty() ? 0 : ++numbers_[std::string{claim.fence_key}]);
    }
    hiredlock::Outcome extend(const hiredlock::Claim& claim, const hiredlock::Patience&) {
        const bool ours = holds(claim.key, claim.token);
        if (ours) put(claim.key, claim.token, now() + claim.ttl);
        return said(ours);
    }
    hiredlock::Outcome release(const hiredlock::Claim& claim, const hiredlock::Patience&) {
        const bool ours = holds(claim.key, claim.token);
        if (ours) remove(claim.key);
        return said(ours);
    }
    hiredlock::Outcome send_release(const hiredlock::Claim& claim, const hiredlock::Patience& patience) {
        release(claim, patience);
        return said(true);
    }
    void abandon(const hiredlock::Claim& claim) noexcept { release(claim, {}); }
    void report(const hiredlock::Error& error) noexcept { reports.emplace_back(error); }

    // What a test does and sees, as with redis-cli beside the program.
    void advance(hiredlock::Clock::duration time) noexcept { now_ = now() + time; }
    void put(std::string_view key, std::string_view value, Time expires = forever) { keys_[std::string{key}] = {std::string{value}, expires}; }
    void remove(std::string_view key) { keys_.erase(std::string{key}); }
    /// What the key holds; empty where there is no such key.
    std::string value(std::string_view key) const {
        const auto at = keys_.find(std::string{key});
        return at == keys_.end() || at->second.expires <= now() ? std::string{} : at->second.value;
    }
    std::vector<hiredlock::Error> reports;

private:
    struct Entry {
        std::string value;
        Time expires;
    };

    bool holds(std::string_view key, std::string_view token) const { return !token.empty() && value(key) == token; }
    hiredlock::Outcome said(bool yes, std::uint64_t number = 0) const {
        return {.answer = yes ? hiredlock::Answer::yes : hiredlock::Answer::no, .sent = now(), .fencing = number};
    }

    std::map<std::string, Entry> keys_;
    std::map<std::string, std::uint64_t> numbers_;
    std::atomic<Time> now_ = Time{std::chrono::hours{1}};
};

static_assert(hiredlock::LockStore<MapStore>);
static_assert(hiredlock::FencingStore<MapStore>);
