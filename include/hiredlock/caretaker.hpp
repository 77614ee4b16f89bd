// The one background thread of a Store, started when it is first needed: it deletes orphaned tokens, on a connection of its own.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include <hiredlock/orphans.hpp>
#include <hiredlock/session.hpp>

namespace hiredlock::detail {

class Caretaker {
public:
    explicit Caretaker(const Endpoint& endpoint) : session_(endpoint) {}
    Caretaker(const Caretaker&) = delete;
    Caretaker& operator=(const Caretaker&) = delete;

    ~Caretaker() {
        stop_.request_stop();
        if (thread_.joinable()) thread_.join();
    }

    /// Any thread. Without memory or threads to be had the token stays until its ttl.
    void add(const Claim& orphan) noexcept {
        try {
            const std::scoped_lock lock{mutex_};
            orphans_.add(orphan, Clock::now());
            if (!thread_.joinable()) thread_ = std::thread{[this] { run(); }};
            changed_.notify_one();
        } catch (...) {  // the token's ttl ends it
        }
    }

    /// In a forked child, where the thread does not exist.
    void close_descriptors() noexcept { session_.close_descriptor(); }

private:
    void run() {
        const std::stop_token stop = stop_.get_token();
        std::unique_lock lock{mutex_};
        while (!stop.stop_requested()) {
            const auto now = Clock::now();
            const auto due = orphans_.next_due();
            if (due > now) {
                // In slices, for a steady clock may stand still while the machine is suspended, and ours does not.
                const auto nap = std::min<Clock::duration>(due - now, std::chrono::seconds{1});
                if (orphans_.empty())
                    changed_.wait(lock, stop, [this] { return !orphans_.empty(); });
                else
                    changed_.wait_for(lock, stop, nap, [&] { return orphans_.next_due() < due; });
                continue;
            }
            auto batch = orphans_.take_due(now);
            lock.unlock();
            const auto settled = [&](const Orphan& orphan) { return session_.release(orphan.claim(), Patience{Clock::time_point::max(), stop}).answer == Answer::yes; };
            std::erase_if(batch, settled);
            lock.lock();
            for (auto& orphan : batch) orphans_.unsettled(std::move(orphan), Clock::now());
        }
    }

    Session session_;
    std::mutex mutex_;
    std::condition_variable_any changed_;
    Orphans orphans_;
    std::stop_source stop_;
    std::thread thread_;
};

}  // namespace hiredlock::detail
