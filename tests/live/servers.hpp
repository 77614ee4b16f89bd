// Several independent servers, for the tests of Redlock.
#pragma once

#include "guards.hpp"

#include <support/eventually.hpp>

#include <chrono>
#include <cstddef>
#include <deque>
#include <string>
#include <vector>

namespace guards {

class Servers {
public:
    explicit Servers(std::size_t count, const support::ServerOptions& options = {}) {
        for (std::size_t i = 0; i < count; ++i) servers_.emplace_back(options);
    }

    support::Server& operator[](std::size_t i) { return servers_[i]; }
    std::size_t size() const noexcept { return servers_.size(); }
    auto begin() { return servers_.begin(); }
    auto end() { return servers_.end(); }

    std::vector<hiredlock::Endpoint> endpoints() const {
        std::vector<hiredlock::Endpoint> all;
        for (const auto& server : servers_) all.push_back(endpoint_of(server));
        return all;
    }

    /// On how many of those that run the key is. A server that is stopped is not asked.
    std::size_t count(const std::string& key, const std::vector<bool>& stopped = {}) {
        std::size_t there = 0;
        for (std::size_t i = 0; i < servers_.size(); ++i)
            if (stopped.empty() || !stopped[i]) there += support::Raw{servers_[i]}.exists(key) ? 1 : 0;
        return there;
    }
    bool holds_everywhere(const std::string& key) {
        return support::eventually([&] { return count(key) == size(); });
    }
    /// Holds the lock on every server. One that is slow to connect, on a busy machine, is left out of a grant: then once more.
    template <class Lock>
    bool lock_everywhere(Lock& lock) {
        return support::eventually(
            [&] {
                if (lock.owns_lock()) lock.unlock();
                return is_gone(lock.key()) && (lock.lock(), holds_everywhere(lock.key()));
            },
            std::chrono::seconds{60});
    }
    /// What is told to let go, or left to the background, takes a moment.
    bool is_gone(const std::string& key, const std::vector<bool>& stopped = {}) {
        return support::eventually([&] { return count(key, stopped) == 0; }, std::chrono::seconds{10});
    }

private:
    std::deque<support::Server> servers_;
};

}  // namespace guards
