// A queue for a few things that is empty most of the time: one block of memory, kept.
#pragma once

#include <cstddef>
#include <vector>

namespace hiredlock::detail {

template <class T>
class Fifo {
public:
    bool empty() const noexcept { return front_ == items_.size(); }
    T front() const noexcept { return items_[front_]; }
    void push(T item) { items_.push_back(item); }

    T pop() noexcept {
        const T item = items_[front_++];
        if (empty()) clear();
        return item;
    }

    bool contains(T wanted) const noexcept {
        for (std::size_t i = front_; i < items_.size(); ++i)
            if (items_[i] == wanted) return true;
        return false;
    }

    void clear() noexcept {
        items_.clear();
        front_ = 0;
    }

private:
    std::vector<T> items_;
    std::size_t front_ = 0;
};

}  // namespace hiredlock::detail
