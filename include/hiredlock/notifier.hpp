// Being told when a lock goes, and waiting in line for it. The server's invalidation messages (CLIENT TRACKING, Redis 6 and later) come over one
// connection, the questions of those who wait go over another; the waiting threads read the messages themselves, one for all.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <hiredlock/session.hpp>

namespace hiredlock::detail {

/// Any thread may call it.
///
/// Tracking in RESP2 (https://redis.io/docs/latest/develop/reference/client-side-caching/): the server remembers which keys the tracker connection has read
/// and sends their names to the subscriber connection when they change, once. So each refused attempt reads the key again.
class Notifier {
    struct Waiter {
        std::condition_variable_any woken;
        bool called = false;  // something has happened that is worth an attempt
        bool sleeps = false;  // on `woken`, as the head of its line
    };
    struct Line {
        std::deque<Waiter*> waiters;
        Clock::time_point failing_since = Clock::time_point::max();
    };

public:
    explicit Notifier(const Endpoint& endpoint) : subscriber_(endpoint), tracker_(endpoint) {}
    Notifier(const Notifier&) = delete;
    Notifier& operator=(const Notifier&) = delete;

    /// A place in the line for one key, from join() to its end.
    class Place {
    public:
        Place(Notifier& notifier, const std::string& key) : notifier_(notifier), at_(notifier.enter(key, waiter_)) {}
        Place(const Place&) = delete;
        Place& operator=(const Place&) = delete;
        ~Place() { notifier_.leave(at_, waiter_); }

        bool wait_for_turn(const Patience& patience) {
            std::unique_lock lock{notifier_.mutex_};
            const auto first = [this] { return at_->second.waiters.front() == &waiter_; };
            notifier_.sleep(lock, waiter_, patience, first);
            return first();
        }

        void wait(const Patience& patience) { notifier_.wait(waiter_, patience); }

        /// Since when the server has failed those who stood at the head of this line. Of the head only.
        Clock::time_point& failing_since() { return at_->second.failing_since; }

    private:
        friend class Notifier;
        Notifier& notifier_;
        Waiter waiter_;
        std::map<std::string, Line, std::less<>>::iterator at_;
    };

    bool is_waited_for(std::string_view key) {
        if (standing_.load(std::memory_order_relaxed) == 0) return false;
        const std::scoped_lock lock{mutex_};
        return lines_.find(key) != lines_.end();
    }

    Place join(const std::string& key) { return Place{*this, key}; }

    /// For the first in a line. Nothing where notifications cannot be had just now: then the question has not been asked.
    std::optional<Outcome> acquire_and_watch(const Claim& claim, const Patience& patience) {
        std::unique_lock lock{mutex_};
        if (!subscribed_ && Clock::now() < not_before_) return std::nullopt;
        if (!borrow_tracker(lock, patience))
            return Outcome{.error = Errc::timed_out, .detail = tracker_.name() + ": no turn on the connection of those who wait"};
        const bool subscribes = !subscribed_ && !listening_;
        lock.unlock();
        const auto give_back = [&] {
            lock.lock();
            tracker_lent_ = false;
            tracker_returned_.notify_one();
        };
        if (subscribes && !subscribe(patience)) {
            give_back();
            return std::nullopt;
        }
        const Outcome outcome = tracker_.acquire_and_watch(claim, patience);
        give_back();
        if (subscribes) {
            subscribed_ = true;
            last_heard_ = Clock::now();
            ping_is_out_ = false;
        }
        // A new connection knows nothing of the keys that were read over the one before.
        if (std::exchange(tracked_over_, tracker_.connections()) != tracker_.connections()) call_heads(claim.key);
        if (outcome.answer == Answer::no && !outcome.left) do_without(unavailable);  // tracking was refused
        return outcome;
    }

    /// Closes the connections if nobody has waited for `pause`. Returns when to look again; time_point::max() where there is no need to.
    Clock::time_point close_if_idle(Clock::duration pause) {
        const std::scoped_lock lock{mutex_};
        if (!lines_.empty() || tracker_lent_) return after(Clock::now(), pause);
        if (Clock::now() < last_left_ + pause) return last_left_ + pause;
        subscribed_ = false;
        subscriber_.close();
        tracker_.close();
        return Clock::time_point::max();
    }

    /// In a forked child.
    void close_descriptors() noexcept {
        subscriber_.close_descriptor();
        tracker_.close_descriptor();
    }

private:
    using Lines = std::map<std::string, Line, std::less<>>;

    static constexpr std::chrono::seconds unavailable{30};     // before asking again a server that has no tracking, or denies it
    static constexpr std::chrono::seconds longest_silence{1};  // of the subscriber, before it is asked whether it is still there

    Lines::iterator enter(const std::string& key, Waiter& waiter) {
        const std::scoped_lock lock{mutex_};
        const auto at = lines_.try_emplace(key).first;
        at->second.waiters.push_back(&waiter);
        standing_.fetch_add(1, std::memory_order_relaxed);
        return at;
    }

    void leave(Lines::iterator at, Waiter& waiter) {
        const std::scoped_lock lock{mutex_};
        auto& waiters = at->second.waiters;
        const bool was_first = waiters.front() == &waiter;
        std::erase(waiters, &waiter);
        standing_.fetch_sub(1, std::memory_order_relaxed);
        last_left_ = Clock::now();
        if (waiters.empty())
            lines_.erase(at);
        else if (was_first)
            waiters.front()->woken.notify_one();  // its turn
    }

    /// On the waiter's own condition, until `done` or the patience ends.
    template <class Done>
    static void sleep(std::unique_lock<std::mutex>& lock, Waiter& waiter, const Patience& patience, Done done) {
        for (auto now = Clock::now(); !done() && now < patience.until && !patience.stop.stop_requested(); now = Clock::now())
            waiter.woken.wait_for(lock, patience.stop, std::min<Clock::duration>(patience.until - now, std::chrono::seconds{1}), done);
    }

    /// For the head of a line: until something has happened that is worth an attempt. One of those who wait here listens for all.
    void wait(Waiter& waiter, const Patience& patience) {
        std::unique_lock lock{mutex_};
        const auto nobody_listens = [this] { return subscribed_ && !listening_; };
        while (!waiter.called && Clock::now() < patience.until && !patience.stop.stop_requested()) {
            if (nobody_listens()) {
                listen(lock, patience);
            } else {
                waiter.sleeps = true;
                sleep(lock, waiter, patience, [&] { return waiter.called || nobody_listens(); });
                waiter.sleeps = false;
            }
        }
        waiter.called = false;
        if (!nobody_listens()) return;
        for (auto& [key, line] : lines_)
            if (Waiter* const head = line.waiters.front(); head->sleeps) return head->woken.notify_one();
    }

    /// Reads what the subscriber says, and calls the heads of the lines that it is about.
    void listen(std::unique_lock<std::mutex>& lock, const Patience& patience) {
        listening_ = true;
        const auto until = std::min(patience.until, last_heard_ + longest_silence);
        lock.unlock();
        pollfd descriptor{subscriber_.descriptor(), POLLIN, 0};
        wait_ready({&descriptor, 1}, {until, patience.stop});
        std::vector<std::string> gone;
        bool all = false;
        bool heard = false;
        Reply message;
        Progress progress = Progress::done;
        while ((progress = subscriber_.next_message(message)) == Progress::done) {
            heard = true;
            if (message.elements.size() != 3 || message.elements[0].text != "message") continue;  // an answer to PING
            if (message.elements[2].kind == Reply::Kind::nil) all = true;                         // FLUSHALL
            for (const Reply& key : message.elements[2].elements) gone.emplace_back(key.text);
        }
        lock.lock();
        listening_ = false;
        const auto now = Clock::now();
        if (heard) {
            last_heard_ = now;
            ping_is_out_ = false;
        } else if (progress == Progress::blocked && now >= last_heard_ + longest_silence) {
            last_heard_ = now;
            if (ping_is_out_) progress = Progress::failed;
            ping_is_out_ = true;
            subscriber_.post({"PING"});
        }
        if (progress == Progress::failed) {
            subscribed_ = false;
            subscriber_.close();
            all = true;
        }
        if (all) return call_heads({});
        for (const std::string& key : gone)
            if (const auto line = lines_.find(key); line != lines_.end()) call(*line->second.waiters.front());
    }

    static void call(Waiter& waiter) {
        waiter.called = true;
        waiter.woken.notify_one();
    }
    void call_heads(std::string_view but_not_for) {
        for (auto& [key, line] : lines_)
            if (key != but_not_for) call(*line.waiters.front());
    }

    bool borrow_tracker(std::unique_lock<std::mutex>& lock, const Patience& patience) {
        const auto free = [this] { return !tracker_lent_; };
        for (auto now = Clock::now(); !free() && now < patience.until && !patience.stop.stop_requested(); now = Clock::now())
            tracker_returned_.wait_for(lock, patience.stop, std::min<Clock::duration>(patience.until - now, std::chrono::seconds{1}), free);
        if (!free()) return false;
        return tracker_lent_ = true;
    }

    /// By whoever has the tracker, while nobody listens.
    bool subscribe(const Patience& patience) {
        Subscribe exchange;
        const Outcome outcome = subscriber_.run(exchange, patience);
        if (outcome.answer == Answer::yes) {
            tracker_.track_for(exchange.client_id);
            return true;
        }
        subscriber_.close();
        const std::scoped_lock lock{mutex_};
        not_before_ = after(Clock::now(), is_transient(outcome.error) ? longest_silence : unavailable);
        return false;
    }

    /// Notifications cannot be had for a while.
    void do_without(Clock::duration pause) {
        if (listening_) return;
        subscribed_ = false;
        subscriber_.close();
        not_before_ = after(Clock::now(), pause);
    }

    std::mutex mutex_;
    Lines lines_;
    std::atomic<int> standing_{0};  // in all lines
    Clock::time_point last_left_{};

    Session subscriber_;  // used by who listens; while nobody can, by who has the tracker
    bool subscribed_ = false;
    bool listening_ = false;
    bool ping_is_out_ = false;
    Clock::time_point last_heard_{};
    Clock::time_point not_before_{};

    Session tracker_;  // used by who has borrowed it
    bool tracker_lent_ = false;
    std::condition_variable_any tracker_returned_;
    unsigned tracked_over_ = 0;  // which of the tracker's connections knows the keys
};

}  // namespace hiredlock::detail
