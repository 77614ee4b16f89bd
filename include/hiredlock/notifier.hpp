// Being told when a lock goes, and waiting in line for it. The server's invalidation messages (CLIENT TRACKING, Redis 6 and later) come over one
// connection, the questions of those who wait go over another; the waiting threads read the messages themselves, one for all.
#pragma once

#include <algorithm>
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

#include <hiredlock/lending.hpp>
#include <hiredlock/session.hpp>

namespace hiredlock::detail {

/// Any thread may call it.
///
/// Tracking in RESP2 (https://redis.io/docs/latest/develop/reference/client-side-caching/): the server remembers which keys the tracker connection has read
/// and sends their names to the subscriber connection when they change, once. So each refused attempt reads the key again.
class Notifier {
    struct Outage {
        Clock::time_point since = Clock::time_point::max();  // since when the server has failed those who were first in a line, without a break
        Outcome last{};                                      // the last failure
    };
    struct Waiter {
        std::condition_variable_any woken;
        bool called = false;  // something has happened that is worth an attempt
        bool sleeps = false;  // on `woken`, as the head of its line
    };
    struct Line {
        std::deque<Waiter*> waiters;
        Outage outage;
    };
    using Lines = std::map<std::string, Line, std::less<>>;

public:
    explicit Notifier(const Endpoint& endpoint) : subscriber_(endpoint), tracker_(1, [&endpoint] { return Session{endpoint}; }) {}
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
            sleep(lock, waiter_, patience, first);
            return first();
        }

        void wait(const Patience& patience) { notifier_.wait(waiter_, patience); }

        /// What those who were first in this line have met with.
        Outage outage() const {
            const std::scoped_lock lock{notifier_.mutex_};
            return at_->second.outage;
        }
        void set_outage(Outage outage) {
            const std::scoped_lock lock{notifier_.mutex_};
            at_->second.outage = std::move(outage);
        }

    private:
        Notifier& notifier_;
        Waiter waiter_;
        Lines::iterator at_;
    };

    bool is_waited_for(std::string_view key) {
        if (standing_.load(std::memory_order_relaxed) == 0) return false;
        const std::scoped_lock lock{mutex_};
        return lines_.find(key) != lines_.end();
    }

    Place join(const std::string& key) { return Place{*this, key}; }

    /// For the first in a line. Nothing where notifications cannot be had just now: then the question is open.
    std::optional<Outcome> acquire_and_watch(const Claim& claim, const Patience& patience) {
        if (!is_worth_trying()) return std::nullopt;
        const auto turn = std::min(patience.until, after(Clock::now(), tracker_.all().front().endpoint().command_timeout));
        const auto tracker = tracker_.lend({turn, patience.stop});
        if (!tracker || !is_worth_trying() || !subscribe(*tracker, patience)) {
            if (!is_over(patience)) return std::nullopt;
            return Outcome{.error = Errc::timed_out, .detail = subscriber_.name() + ": no answer in time"};
        }
        const Outcome outcome = tracker->acquire_and_watch(claim, patience);
        const bool went_unasked = outcome.answer == Answer::failed && (outcome.error == Errc::unreachable || outcome.error == Errc::timed_out);

        const std::scoped_lock lock{mutex_};
        key_was_read(claim.key, *tracker);
        // Tracking was refused; or the subscriber died meanwhile, and another is wanted at once.
        if (outcome.answer == Answer::no && !outcome.left) do_without(tracker->is_redirect_gone() ? Clock::duration{} : Clock::duration{unavailable});
        if (!went_unasked || is_over(patience)) return outcome;
        do_without(longest_silence);  // the server may have no connection for this, and yet one for the Pool's commands
        return std::nullopt;
    }

    /// For the first in a line whose question was answered over other connections: from here on it is called when the key changes. Says what is left
    /// of the key's ttl (acquire.hpp); nothing where notifications cannot be had just now, or not soon.
    std::optional<std::chrono::milliseconds> watch(std::string_view key, const Patience& patience) {
        if (!is_worth_trying()) return std::nullopt;
        const Patience soon{std::min(patience.until, after(Clock::now(), longest_look)), patience.stop};
        const auto tracker = tracker_.lend(soon);
        if (!tracker || !is_worth_trying()) return std::nullopt;
        const bool subscribed = subscribe(*tracker, soon);
        Look look{key};
        const Outcome outcome = subscribed ? tracker->run(look, soon) : Outcome{};

        const std::scoped_lock lock{mutex_};
        if (subscribed) key_was_read(key, *tracker);
        if (outcome.answer == Answer::yes && tracker->is_tracking()) return std::chrono::milliseconds{look.left};
        if (is_over(patience)) return std::nullopt;  // which tells nothing of the server
        if (is_over(soon))
            not_before_ = after(Clock::now(), longest_silence);  // what is half open then may have got further
        else if (subscribed)
            do_without(tracker->is_redirect_gone() ? Clock::duration{} : Clock::duration{is_transient(outcome.error) ? longest_silence : unavailable});
        return std::nullopt;
    }

    /// Closes the connections if nobody has waited for `pause`. Returns when to look again; time_point::max() where there is no need to.
    Clock::time_point close_if_idle(Clock::duration pause) {
        const std::scoped_lock lock{mutex_};
        const auto now = Clock::now();
        if (!lines_.empty()) return after(now, pause);
        if (now < last_left_ + pause) return last_left_ + pause;
        subscribed_ = false;
        subscriber_.close();
        tracker_.all().front().close();  // nobody stands in a line: nobody uses it
        return Clock::time_point::max();
    }

    /// In a forked child.
    void close_inherited() noexcept {
        subscriber_.close_inherited();
        tracker_.all().front().close_inherited();
    }

private:
    static constexpr std::chrono::seconds unavailable{30};     // before asking again a server that has no tracking, or denies it
    static constexpr std::chrono::milliseconds longest_look{100};  // what a pause may be prolonged by for the sake of a notification
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
        while (!waiter.called && Clock::now() < patience.until && !patience.stop.stop_requested()) {
            if (is_unheard()) {
                listen(lock, waiter, patience);
            } else {
                waiter.sleeps = true;
                sleep(lock, waiter, patience, [&] { return waiter.called || is_unheard(); });
                waiter.sleeps = false;
            }
        }
        waiter.called = false;
        if (!is_unheard()) return;
        for (auto& [key, line] : lines_)
            if (Waiter* const head = line.waiters.front(); head->sleeps) return head->woken.notify_one();
    }

    /// There are messages to come and nobody listens.
    bool is_unheard() const noexcept { return subscribed_ && !listening_; }

    /// Hears what there is to hear; waits for it unless it called this waiter already.
    void listen(std::unique_lock<std::mutex>& lock, const Waiter& waiter, const Patience& patience) {
        hear(waiter);  // a message that was read along with another waits here, not in the socket
        if (waiter.called || !subscribed_) return;
        {
            const auto until = std::min(patience.until, last_heard_ + longest_silence);
            const Listening listening{lock, listening_};
            pollfd descriptor{subscriber_.descriptor(), POLLIN, 0};
            wait_ready({&descriptor, 1}, {until, patience.stop});
        }
        hear(waiter);
    }

    /// While it lives the mutex is free, and the subscriber is its thread's.
    class Listening {
    public:
        Listening(std::unique_lock<std::mutex>& lock, bool& flag) : lock_(lock), flag_(flag) {
            flag_ = true;
            lock_.unlock();
        }
        Listening(const Listening&) = delete;
        Listening& operator=(const Listening&) = delete;
        ~Listening() {
            lock_.lock();
            flag_ = false;
        }

    private:
        std::unique_lock<std::mutex>& lock_;
        bool& flag_;
    };

    /// Takes messages and calls the heads of the lines that they are about, until that is this waiter, who is to lose no time, or there are no more.
    void hear(const Waiter& waiter) {
        const auto now = Clock::now();
        Reply message;
        Progress progress = Progress::done;
        while (!waiter.called && (progress = subscriber_.next_message(message)) == Progress::done) {
            last_heard_ = now;
            ping_is_out_ = false;
            if (message.elements.size() != 3 || message.elements[0].text != "message") continue;  // an answer to PING
            if (message.elements[2].kind == Reply::Kind::nil) call_heads({});                     // FLUSHALL
            for (const Reply& key : message.elements[2].elements)
                if (const auto line = lines_.find(key.text); line != lines_.end()) call(*line->second.waiters.front());
        }
        if (progress == Progress::blocked && now >= last_heard_ + longest_silence) {
            last_heard_ = now;
            if (std::exchange(ping_is_out_, true)) progress = Progress::failed;
            subscriber_.post({"PING"});
        }
        if (progress != Progress::failed) return;
        subscribed_ = false;
        subscriber_.close();
        call_heads({});
    }

    /// A new connection knows nothing of the keys that were read over the one before.
    void key_was_read(std::string_view key, const Session& tracker) {
        if (std::exchange(tracked_over_, tracker.connections()) != tracker.connections()) call_heads(key);
    }

    static void call(Waiter& waiter) {
        waiter.called = true;
        waiter.woken.notify_one();
    }
    void call_heads(std::string_view but_not_for) {
        for (auto& [key, line] : lines_)
            if (key != but_not_for) call(*line.waiters.front());
    }

    static bool is_over(const Patience& patience) { return patience.stop.stop_requested() || Clock::now() >= patience.until; }

    bool is_worth_trying() {
        const std::scoped_lock lock{mutex_};
        return Clock::now() >= not_before_;
    }

    /// Unless that has been done. By whoever has the tracker: where nobody is subscribed nobody listens, so it has the subscriber as well.
    bool subscribe(Session& tracker, const Patience& patience) {
        {
            const std::scoped_lock lock{mutex_};
            if (subscribed_) return true;
        }
        Subscribe exchange;
        const Outcome outcome = subscriber_.run(exchange, patience);
        const std::scoped_lock lock{mutex_};
        if (outcome.answer != Answer::yes) {
            if (!is_over(patience)) do_without(is_transient(outcome.error) ? longest_silence : unavailable);
            return false;
        }
        tracker.track_for(exchange.client_id);
        subscribed_ = true;
        last_heard_ = Clock::now();
        ping_is_out_ = false;
        return true;
    }

    /// Notifications cannot be had for a while.
    void do_without(Clock::duration pause) {
        not_before_ = after(Clock::now(), pause);
        if (listening_) return;
        subscribed_ = false;
        subscriber_.close();
    }

    std::mutex mutex_;
    Lines lines_;
    std::atomic<int> standing_{0};  // in all lines
    Clock::time_point last_left_{};

    Session subscriber_;  // used under the mutex and by who listens; where nobody is subscribed, by who has the tracker
    bool subscribed_ = false;
    bool listening_ = false;
    bool ping_is_out_ = false;
    Clock::time_point last_heard_{};
    Clock::time_point not_before_{};

    Lending<Session> tracker_;    // one, lent for one attempt each
    unsigned tracked_over_ = 0;  // which of its connections knows the keys
};

}  // namespace hiredlock::detail
