#include "port.hpp"

#include <cerrno>
#include <cstdint>
#include <random>
#include <stdexcept>
#include <system_error>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

namespace support {

Descriptor bind_port(int port) {
    Descriptor socket{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
    if (!socket) throw std::system_error{errno, std::generic_category(), "socket"};
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return {};
    return socket;
}

int free_port() {
    std::random_device random;
    for (int attempt = 0; attempt < 1000; ++attempt) {
        const int port = 10'000 + static_cast<int>(random() % 12'000);
        const Descriptor socket = bind_port(port);
        if (socket && ::listen(socket.get(), 1) == 0) return port;
    }
    throw std::runtime_error{"no free port on 127.0.0.1"};
}

}  // namespace support
