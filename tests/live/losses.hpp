// What tests of locks under a watchdog say again and again: losses that are counted, and conditions that must stay true.
#pragma once

#include "guards.hpp"

#include <support/eventually.hpp>

#include <atomic>
#include <optional>

namespace guards {

/// Counts what on_lost is told. It must outlive the guards that tell it.
class Losses {
public:
    void note(const hiredlock::Error& error) {
        if (error.code() != hiredlock::Errc::lost) ++others_;
        at_ = hiredlock::Clock::now();
        ++count_;
    }
    auto callback() {
        return [this](const hiredlock::Error& error) { note(error); };
    }
    /// A policy that tells this one.
    hiredlock::renew::Watchdog watchdog(std::optional<std::chrono::milliseconds> interval = {}) {
        return {.interval = interval, .max_hold = {}, .on_lost = callback()};
    }

    /// How many there were; never what the test expects where one was told with another code than Errc::lost.
    int count() const { return others_ == 0 ? count_.load() : -1; }
    /// When the last one was told.
    hiredlock::Clock::time_point at() const { return at_; }

    bool wait_for(int count, std::chrono::milliseconds limit = std::chrono::seconds{15}) const {
        return support::eventually([&] { return count_ >= count; }, limit);
    }

private:
    std::atomic<int> count_{0};
    std::atomic<int> others_{0};
    std::atomic<hiredlock::Clock::time_point> at_{};
};

/// Whether `condition` is true for all of that time; asked every millisecond.
template <class Condition>
bool stays(Condition condition, std::chrono::nanoseconds time) {
    return !support::eventually([&] { return !condition(); }, time);
}

/// What a compare-and-expire of any form says: the token, and the ttl in milliseconds.
inline const std::string& token_of(const support::MonitoredCommand& extend) { return extend.argv.at(is_script(extend) ? 4 : 2); }
inline int ttl_of(const support::MonitoredCommand& extend) { return std::stoi(extend.argv.back()); }

/// The name of a command that a client said, whatever it is about.
inline auto called(std::string name) {
    return [name = std::move(name)](const support::MonitoredCommand& command) { return !command.from_script() && command.name() == name; };
}

}  // namespace guards
