// One non-blocking socket: connecting without blocking, close-on-exec from birth, no SIGPIPE, and waiting that ends in time. No protocol here.
#pragma once

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <span>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include <hiredlock/endpoint.hpp>
#include <hiredlock/store.hpp>

namespace hiredlock::detail {

inline std::string errno_text(int number) { return std::generic_category().message(number); }

/// Owns a file descriptor, and knows it from another one with the same number.
class Descriptor {
public:
    Descriptor() = default;
    explicit Descriptor(int fd) noexcept : file_(file_of(fd)), fd_(fd) {}
    Descriptor(Descriptor&& other) noexcept : file_(other.file_), fd_(std::exchange(other.fd_, -1)) {}
    Descriptor& operator=(Descriptor&& other) noexcept {
        if (this != &other) {
            reset();
            file_ = other.file_;
            fd_ = std::exchange(other.fd_, -1);
        }
        return *this;
    }
    ~Descriptor() { reset(); }

    int get() const noexcept { return fd_; }
    /// Forgets first and closes then: a child forked in between has no number to close.
    void reset() noexcept {
        const int fd = std::exchange(fd_, -1);
        if (fd >= 0) ::close(fd);
    }
    /// In a forked child. fork() copies the table of descriptors before the memory: what another thread opened in between is known by its number here,
    /// and is not in the child's table, where the number may be another file's by now.
    void reset_inherited() noexcept {
        if (fd_ < 0 || file_of(fd_) == file_) return reset();
        fd_ = -1;
    }

private:
    using File = std::pair<dev_t, ino_t>;
    static File file_of(int fd) noexcept {
        struct stat about {};
        return fd >= 0 && ::fstat(fd, &about) == 0 ? File{about.st_dev, about.st_ino} : File{};
    }

    File file_{};
    int fd_ = -1;
};

/// A pipe by which another thread ends a poll().
class Waker {
public:
    Waker() {
        int ends[2];
#if defined(__linux__)
        if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return;  // without one, a wait only ends at its limit
#else
        if (::pipe(ends) != 0) return;
        for (const int fd : ends) {
            ::fcntl(fd, F_SETFD, FD_CLOEXEC);
            ::fcntl(fd, F_SETFL, O_NONBLOCK);
        }
#endif
        read_ = Descriptor{ends[0]};
        write_ = Descriptor{ends[1]};
    }

    void wake() const noexcept {
        const char byte = 0;
        [[maybe_unused]] const auto written = ::write(write_.get(), &byte, 1);
    }
    void rest() const noexcept {
        char bytes[64];
        while (::read(read_.get(), bytes, sizeof bytes) > 0) {
        }
    }
    int readable() const noexcept { return read_.get(); }
    void close_inherited() noexcept {
        read_.reset_inherited();
        write_.reset_inherited();
    }

private:
    Descriptor read_;
    Descriptor write_;
};

/// poll() once, for at most a second: until a descriptor is ready or `until` has come. EINTR and slices return early; a caller that loops by our own
/// clock is right about a machine that was suspended, too.
inline bool poll_once(std::span<pollfd> descriptors, Clock::time_point until) {
    const auto now = Clock::now();
    const auto left = until <= now ? Clock::duration::zero() : std::min<Clock::duration>(until - now, std::chrono::seconds{1});
#if defined(__linux__)
    const timespec wait{left / std::chrono::seconds{1}, (left % std::chrono::seconds{1}).count()};
    return ::ppoll(descriptors.data(), static_cast<nfds_t>(descriptors.size()), &wait, nullptr) > 0;
#else
    const auto ms = std::chrono::ceil<std::chrono::milliseconds>(left).count();
    return ::poll(descriptors.data(), static_cast<nfds_t>(descriptors.size()), static_cast<int>(ms)) > 0;
#endif
}

/// Waits until a descriptor is ready (true), or until the patience ends (false).
inline bool wait_ready(std::span<pollfd> descriptors, const Patience& patience) {
    if (!patience.stop.stop_possible()) {
        while (!poll_once(descriptors, patience.until))
            if (Clock::now() >= patience.until) return false;
        return true;
    }
    const Waker waker;
    const std::stop_callback on_stop{patience.stop, [&waker] { waker.wake(); }};
    std::vector<pollfd> all(descriptors.begin(), descriptors.end());
    all.push_back({waker.readable(), POLLIN, 0});
    while (!patience.stop.stop_requested()) {
        if (poll_once(all, patience.until)) {
            std::copy_n(all.begin(), descriptors.size(), descriptors.begin());
            if (std::any_of(descriptors.begin(), descriptors.end(), [](const pollfd& d) { return d.revents != 0; })) return true;
        } else if (Clock::now() >= patience.until) {
            return false;
        }
    }
    return false;
}

enum class Progress { done, blocked, failed };

/// A client's socket. Not for several threads at once.
class Socket {
public:
    /// Looks the name up (as long as the resolver takes: it has no time limit) and begins to connect.
    Progress open(const Endpoint& endpoint) {
        close();
        may_wait_ = false;
        addresses_.clear();
        if (!endpoint.unix_socket.empty()) {
            sockaddr_un path{};
            path.sun_family = AF_UNIX;
            std::memcpy(path.sun_path, endpoint.unix_socket.data(), std::min(endpoint.unix_socket.size(), sizeof path.sun_path - 1));
            addresses_.push_back(Address::from(reinterpret_cast<const sockaddr*>(&path), sizeof path));
        } else if (!resolve(endpoint)) {
            return Progress::failed;
        }
        return try_next();
    }

    /// After open() was `blocked` and the socket became writable: connected, or on to the next address.
    Progress finish_open() {
        int error = 0;
        socklen_t size = sizeof error;
        if (::getsockopt(descriptor(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
        if (error == 0 && connected_to_itself()) error = ECONNREFUSED;
        if (error == 0) return Progress::done;
        problem_ = errno_text(error);
        return try_next();
    }

    /// Gives up on the address that is being tried, for it takes too long.
    Progress skip_address() {
        problem_ = "no answer to connect";
        return try_next();
    }

    std::size_t addresses_left() const noexcept { return addresses_.size(); }

    /// Sends what the kernel takes of `bytes` and removes that from its front.
    Progress send(std::string_view& bytes) { return send_on(descriptor(), bytes, problem_); }

    void close() noexcept { owned_.reset(); }
    void close_inherited() noexcept { owned_.reset_inherited(); }
    int descriptor() const noexcept { return owned_.get(); }
    const std::string& problem() const noexcept { return problem_; }

    static Progress send_on(int fd, std::string_view& bytes, std::string& problem) {
        while (!bytes.empty()) {
            const ssize_t n = ::send(fd, bytes.data(), bytes.size(), send_flags);
            if (n >= 0) {
                bytes.remove_prefix(static_cast<std::size_t>(n));
            } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
                return Progress::blocked;
            } else if (errno != EINTR) {
                problem = errno_text(errno);
                return Progress::failed;
            }
        }
        return Progress::done;
    }

    /// Receives at most `size` bytes; `done` with 0 bytes never happens: an end of the stream is `failed`.
    static Progress receive_on(int fd, char* buffer, std::size_t size, std::size_t& received, std::string& problem, int flags = MSG_DONTWAIT) {
        for (;;) {
            const ssize_t n = ::recv(fd, buffer, size, flags);
            if (n > 0) {
                received = static_cast<std::size_t>(n);
                return Progress::done;
            }
            if (n == 0) {
                problem = "the server closed the connection";
                return Progress::failed;
            }
            if (errno == EAGAIN || errno == EWOULDBLOCK) return Progress::blocked;
            if (errno == EINTR && flags == 0) return Progress::blocked;  // the kernel would begin its time limit anew
            if (errno != EINTR) {
                problem = errno_text(errno);
                return Progress::failed;
            }
        }
    }

    /// From now on a receive_on() with flags 0 waits, for `limit` at most.
    void let_wait(std::chrono::milliseconds limit) noexcept {
        const timeval time{static_cast<time_t>(limit.count() / 1000), static_cast<suseconds_t>(limit.count() % 1000 * 1000)};
        const bool set = ::setsockopt(descriptor(), SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time) == 0;
        const int flags = ::fcntl(descriptor(), F_GETFL);
        may_wait_ = set && flags >= 0 && ::fcntl(descriptor(), F_SETFL, flags & ~O_NONBLOCK) == 0;
    }
    bool may_wait() const noexcept { return may_wait_; }

private:
#if defined(MSG_NOSIGNAL)
    static constexpr int send_flags = MSG_DONTWAIT | MSG_NOSIGNAL;
#else
    static constexpr int send_flags = MSG_DONTWAIT;  // SO_NOSIGPIPE is set instead
#endif

    struct Address {
        sockaddr_storage bytes{};
        socklen_t size = 0;

        static Address from(const sockaddr* address, std::size_t size) {
            Address out;
            std::memcpy(&out.bytes, address, size);
            out.size = static_cast<socklen_t>(size);
            return out;
        }
        const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&bytes); }
    };

    bool resolve(const Endpoint& endpoint) {
        addrinfo hints{};
        hints.ai_family = AF_UNSPEC;
        hints.ai_socktype = SOCK_STREAM;
        addrinfo* found = nullptr;
        const int code = ::getaddrinfo(endpoint.host.c_str(), std::to_string(endpoint.port).c_str(), &hints, &found);
        if (code != 0) {
            problem_ = std::string{"cannot look up the host: "} + ::gai_strerror(code);
            return false;
        }
        for (const addrinfo* a = found; a != nullptr; a = a->ai_next) addresses_.push_back(Address::from(a->ai_addr, a->ai_addrlen));
        ::freeaddrinfo(found);
        return true;
    }

    Progress try_next() {
        while (!addresses_.empty()) {
            const Address address = addresses_.front();
            addresses_.pop_front();
            owned_ = make_socket(address.get()->sa_family);
            if (descriptor() < 0) {
                problem_ = errno_text(errno);
                continue;
            }
            if (::connect(descriptor(), address.get(), address.size) == 0) return finish_open();
            if (errno == EINPROGRESS || errno == EINTR) return Progress::blocked;
            problem_ = errno == EAGAIN ? "the server's backlog is full" : errno_text(errno);
        }
        close();
        return Progress::failed;
    }

    static Descriptor make_socket(int family) {
#if defined(SOCK_CLOEXEC)
        Descriptor made{::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
#else
        Descriptor made{::socket(family, SOCK_STREAM, 0)};
        if (made.get() >= 0) {
            ::fcntl(made.get(), F_SETFD, FD_CLOEXEC);
            ::fcntl(made.get(), F_SETFL, O_NONBLOCK);
        }
#endif
        const int on = 1;
#if defined(SO_NOSIGPIPE)
        ::setsockopt(made.get(), SOL_SOCKET, SO_NOSIGPIPE, &on, sizeof on);
#endif
        if (made.get() >= 0 && family != AF_UNIX) {
            ::setsockopt(made.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
            ::setsockopt(made.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
        }
        return made;
    }

    /// With nobody listening, the kernel may pick the very port that is being connected to as our own, and connect us to ourselves.
    bool connected_to_itself() const {
        sockaddr_storage here{}, there{};
        socklen_t here_size = sizeof here, there_size = sizeof there;
        if (::getsockname(descriptor(), reinterpret_cast<sockaddr*>(&here), &here_size) != 0 || here.ss_family == AF_UNIX) return false;
        if (::getpeername(descriptor(), reinterpret_cast<sockaddr*>(&there), &there_size) != 0) return false;
        return here_size == there_size && std::memcmp(&here, &there, here_size) == 0;
    }

    Descriptor owned_;
    bool may_wait_ = false;
    std::deque<Address> addresses_;
    std::string problem_;
};

}  // namespace hiredlock::detail
