// A fixed number of things that threads borrow, one at a time each.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <vector>

#include <hiredlock/store.hpp>

namespace hiredlock::detail {

template <class T>
class Lending {
public:
    template <class Make>
    Lending(std::size_t size, Make make) {
        idle_.reserve(size);
        for (std::size_t i = 0; i < size; ++i) idle_.push_back(&all_.emplace_back(make()));
    }
    Lending(const Lending&) = delete;
    Lending& operator=(const Lending&) = delete;

    /// Goes back when this ends.
    class Loan {
    public:
        Loan(Lending& from, T* item) noexcept : from_(from), item_(item) {}
        Loan(const Loan&) = delete;
        Loan& operator=(const Loan&) = delete;
        ~Loan() {
            if (item_ == nullptr) return;
            {
                const std::scoped_lock lock{from_.mutex_};
                from_.idle_.push_back(item_);
            }
            from_.returned_.notify_one();
        }
        explicit operator bool() const noexcept { return item_ != nullptr; }
        T& operator*() const noexcept { return *item_; }
        T* operator->() const noexcept { return item_; }

    private:
        Lending& from_;
        T* item_;
    };

    /// The one that came back last: it is connected, and answers to what was sent over it wait there. Empty where none came back in time.
    Loan lend(const Patience& patience) {
        std::unique_lock lock{mutex_};
        const auto there = [this] { return !idle_.empty(); };
        for (auto now = Clock::now(); !there() && now < patience.until && !patience.stop.stop_requested(); now = Clock::now())
            returned_.wait_for(lock, patience.stop, std::min<Clock::duration>(patience.until - now, std::chrono::seconds{1}), there);
        if (!there()) return {*this, nullptr};
        T* const item = idle_.back();
        idle_.pop_back();
        return {*this, item};
    }

    /// This very one. Empty where it is lent.
    Loan lend(T& item) {
        const std::scoped_lock lock{mutex_};
        return {*this, std::erase(idle_, &item) != 0 ? &item : nullptr};
    }

    std::deque<T>& all() noexcept { return all_; }

private:
    std::deque<T> all_;
    std::vector<T*> idle_;
    std::mutex mutex_;
    std::condition_variable_any returned_;
};

}  // namespace hiredlock::detail
