// Owns one file descriptor.
#pragma once

#include <utility>

#include <unistd.h>

namespace support {

class Descriptor {
public:
    Descriptor() = default;
    explicit Descriptor(int value) noexcept : value_{value} {}
    Descriptor(Descriptor&& other) noexcept : value_{std::exchange(other.value_, -1)} {}
    Descriptor& operator=(Descriptor&& other) noexcept {
        if (this != &other) reset(std::exchange(other.value_, -1));
        return *this;
    }
    ~Descriptor() { reset(); }

    int get() const noexcept { return value_; }
    explicit operator bool() const noexcept { return value_ >= 0; }

    /// Closes what it owns and owns `value` instead.
    void reset(int value = -1) noexcept {
        if (value_ >= 0) ::close(value_);  // never repeated on EINTR: on Linux the descriptor is gone by then
        value_ = value;
    }

private:
    int value_ = -1;
};

}  // namespace support
