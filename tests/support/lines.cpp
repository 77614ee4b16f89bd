#include "lines.hpp"

#include <array>
#include <cerrno>
#include <system_error>

#include <poll.h>
#include <sys/socket.h>

namespace support {

void Lines::write_line(std::string_view line) {
    const std::string bytes = std::string{line} + '\n';
    for (std::size_t sent = 0; sent < bytes.size();) {
        const ssize_t n = ::send(socket_.get(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
        if (n >= 0) sent += static_cast<std::size_t>(n);
        else if (errno != EINTR) throw std::system_error{errno, std::generic_category(), "write_line"};
    }
}

std::optional<std::string> Lines::read_line(std::chrono::milliseconds limit) {
    const auto deadline = std::chrono::steady_clock::now() + limit;
    for (;;) {
        if (const auto end = unread_.find('\n'); end != std::string::npos) {
            std::string line = unread_.substr(0, end);
            unread_.erase(0, end + 1);
            return line;
        }
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
        if (left.count() < 0) return {};
        pollfd waiting{socket_.get(), POLLIN, 0};
        if (::poll(&waiting, 1, static_cast<int>(left.count())) <= 0) continue;  // EINTR, or the limit, which is judged above
        std::array<char, 4096> buffer{};
        const ssize_t n = ::recv(socket_.get(), buffer.data(), buffer.size(), 0);
        if (n > 0) unread_.append(buffer.data(), static_cast<std::size_t>(n));
        else if (n == 0 || errno != EINTR) return {};
    }
}

void Lines::end_output() noexcept { ::shutdown(socket_.get(), SHUT_WR); }

std::pair<Descriptor, Descriptor> socket_pair() {
    std::array<int, 2> ends{};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
        throw std::system_error{errno, std::generic_category(), "socketpair"};
    }
    return {Descriptor{ends[0]}, Descriptor{ends[1]}};
}

}  // namespace support
