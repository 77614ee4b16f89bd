// Lines of text to and from another process over a stream socket.
#pragma once

#include "descriptor.hpp"

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace support {

class Lines {
public:
    explicit Lines(Descriptor socket) noexcept : socket_{std::move(socket)} {}

    /// Sends `line` and a line feed. Throws std::system_error when the other end is gone; raises no SIGPIPE.
    void write_line(std::string_view line);

    /// The next line without its line feed; nothing when none came within `limit` or the other end has closed.
    std::optional<std::string> read_line(std::chrono::milliseconds limit = std::chrono::seconds{10});

    /// The other end reads an end of file; reading goes on.
    void end_output() noexcept;

private:
    Descriptor socket_;
    std::string unread_{};
};

/// Two ends of one socket, both close-on-exec.
std::pair<Descriptor, Descriptor> socket_pair();

}  // namespace support
