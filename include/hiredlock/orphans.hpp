// Tokens that may stand in a key although no guard owns them: of a SET whose answer never came, or a release that failed. A pure schedule of when
// to delete them again; who does it is somebody else's matter.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <hiredlock/store.hpp>

namespace hiredlock::detail {

struct Orphan {
    std::string key;
    std::string token;
    Clock::time_point until{};  ///< after that the server has expired it, or never got it
    Clock::time_point due{};
    Clock::duration pause{};

    Claim claim() const noexcept { return {key, token, {}, {}}; }
};

/// One answer of "deleted" settles an orphan, for its token is in one SET only. "Not there" does not: that SET may still be under way.
class Orphans {
public:
    void add(const Claim& claim, Clock::time_point now) {
        list_.push_back({std::string{claim.key}, std::string{claim.token}, after(now, claim.ttl), now, first_pause});
    }

    Clock::time_point next_due() const noexcept {
        auto next = Clock::time_point::max();
        for (const Orphan& orphan : list_) next = std::min(next, orphan.due);
        return next;
    }

    /// Takes out those whose time has come; unsettled() puts one back.
    std::vector<Orphan> take_due(Clock::time_point now) {
        const auto due = std::partition(list_.begin(), list_.end(), [now](const Orphan& orphan) { return orphan.due > now; });
        std::vector<Orphan> taken{std::make_move_iterator(due), std::make_move_iterator(list_.end())};
        list_.erase(due, list_.end());
        return taken;
    }

    void unsettled(Orphan orphan, Clock::time_point now) {
        if (now >= orphan.until) return;
        orphan.due = std::min(after(now, orphan.pause), orphan.until);
        orphan.pause = std::min<Clock::duration>(2 * orphan.pause, longest_pause);
        list_.push_back(std::move(orphan));
    }

    bool empty() const noexcept { return list_.empty(); }

private:
    static constexpr std::chrono::milliseconds first_pause{20};
    static constexpr std::chrono::milliseconds longest_pause{2000};

    std::vector<Orphan> list_;
};

}  // namespace hiredlock::detail
