// Waits for a condition with a limit, in place of a sleep that hopes.
#pragma once

#include <chrono>
#include <thread>

namespace support {

/// Asks `condition` every millisecond until it is true or `limit` has passed; it is asked once more at the end. Returns its last answer.
template <class Condition>
bool eventually(Condition&& condition, std::chrono::nanoseconds limit = std::chrono::seconds{5}) {
    const auto deadline = std::chrono::steady_clock::now() + limit;
    while (!condition()) {
        if (std::chrono::steady_clock::now() >= deadline) return static_cast<bool>(condition());
        std::this_thread::sleep_for(std::chrono::milliseconds{1});
    }
    return true;
}

}  // namespace support
