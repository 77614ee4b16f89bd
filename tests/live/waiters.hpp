// What the tests of waiting for a lock say again and again.
#pragma once

#include "guards.hpp"

#include <support/eventually.hpp>

#include <algorithm>
#include <future>
#include <optional>
#include <string>
#include <vector>

namespace guards {

/// Asks when it was told, or when the other's ttl ends, and never just in case: with it a lost wake-up is a wait that does not end.
inline constexpr hiredlock::retry::OnRelease only_when_told{.poll = std::chrono::hours{1}};

/// How late a wait may end on a busy machine.
inline constexpr std::chrono::milliseconds slack{is_sanitized ? 1500 : 400};

/// How many keys are tracked for how many clients: each head of a line that has armed its notification counts once, and so does one over a connection
/// that has ended, until the key changes.
inline long long armed(support::Raw& raw) {
    const std::string info = raw.text({"INFO", "stats"});
    const std::string field = "tracking_total_items:";
    return std::stoll(info.substr(info.find(field) + field.size()));
}
inline bool is_armed(support::Raw& raw, long long wanted = 1) {
    return support::eventually([&] { return armed(raw) >= wanted; }, std::chrono::seconds{30});
}

/// What arms a notification of the key.
inline auto looks(std::string key) {
    return [key = std::move(key)](const support::MonitoredCommand& command) { return command.name() == "PTTL" && command.argv.at(1) == key; };
}

/// The ids of the clients of our Pools that CLIENT LIST shows with `what` in their line.
inline std::vector<std::string> clients(support::Raw& raw, const std::string& what = {}) {
    std::vector<std::string> ids;
    const std::string list = raw.text({"CLIENT", "LIST"});
    for (std::size_t at = 0; at < list.size();) {
        const std::size_t end = std::min(list.find('\n', at), list.size());
        const std::string line = list.substr(at, end - at);
        if (line.find(" name=hiredlock ") != std::string::npos && line.find(what) != std::string::npos) ids.push_back(line.substr(3, line.find(' ') - 3));
        at = end + 1;
    }
    return ids;
}
/// Those that the messages come to.
inline std::vector<std::string> subscribers(support::Raw& raw) { return clients(raw, " sub=1 "); }
/// Those that read the keys.
inline std::vector<std::string> trackers(support::Raw& raw) { return clients(raw, " flags=t "); }

/// Waits for the lock in a thread of its own and lets it go at once; whether it got it. 40 s are enough for every test.
template <class Store>
std::future<bool> wait_for_lock(Store& store, std::string key, hiredlock::retry::OnRelease retry = only_when_told) {
    return std::async(std::launch::async, [&store, key = std::move(key), retry] {
        const hiredlock::Lock lock{store, key, std::chrono::minutes{1}, std::chrono::seconds{40}, retry};
        return lock.owns_lock();
    });
}

inline bool all_got_it(std::vector<std::future<bool>>& waiting) {
    bool all = true;
    for (auto& one : waiting) all = one.get() && all;
    return all;
}

}  // namespace guards
