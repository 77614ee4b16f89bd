// A TCP relay in front of a server that holds, drops, delays and cuts what passes, as a bad network does.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace support {

class Server;

enum class Direction { to_server, to_client };

enum class Ending {
    fin,   ///< an orderly close
    reset  ///< RST
};

/// Listens on a free port of 127.0.0.1 and relays, in one thread of its own, each connection to the upstream port of 127.0.0.1. A chunk is
/// what one read of a socket gave. Every rule holds for the bytes that are read after its call has returned, on the connections there are
/// and on new ones. An end of file keeps its place behind the bytes sent before it, so what a client sent before it closed still arrives
/// when it is released. Any thread may call; a copy in a forked child does nothing.
class Proxy {
public:
    explicit Proxy(int upstream_port);
    explicit Proxy(const Server& upstream);
    Proxy(Proxy&&) noexcept;
    Proxy& operator=(Proxy&&) = delete;
    ~Proxy();

    int port() const noexcept;
    std::string uri() const;                               ///< redis://127.0.0.1:port

    /// Keeps the bytes of a direction until release(), which lets them through in order.
    void hold(Direction direction);

    /// Begins to hold with the chunk that completes the next occurrence of `substring`, on the connection where it occurs and on no other.
    /// Once: whoever wants it again calls again.
    void hold_when(Direction direction, const std::string& substring);

    /// Ends hold() and hold_when(), also on a connection that is held already.
    void release(Direction direction);

    /// Drops the bytes of a direction, and its ends, without a word: a half-open connection.
    void swallow(Direction direction);

    /// Begins to drop with the chunk that completes the next occurrence of `substring`, as hold_when() does.
    void swallow_when(Direction direction, const std::string& substring);

    /// Ends swallow() and swallow_when(). Bytes that were dropped stay lost; an end is passed on now.
    void pass(Direction direction);

    /// Adds a latency to each chunk read from now on; 0: none.
    void delay(Direction direction, std::chrono::microseconds latency);

    /// Forwards `bytes` more in this direction, whatever the connection, then closes the connection that sent the last of them, on both
    /// sides. 0: closes when the next bytes are to be forwarded, which are lost. Once.
    void cut_after(Direction direction, std::size_t bytes, Ending ending = Ending::reset);

    /// Closes every connection, on both sides, with all that is held; has been done when it returns.
    void cut(Ending ending = Ending::reset);

    /// true: connecting is refused, while the connections there are go on. false: the same port accepts again.
    void refuse(bool on);

    /// true: new connections are accepted and nothing on them ever answers, nor does it when this ends.
    void swallow_new(bool on);

    // What follows lags a moment behind the clients, whose kernel connects and sends without waiting for us: see eventually().
    std::size_t connections() const;                       ///< accepted, and neither closed by the client nor cut
    std::size_t accepted() const;                          ///< since the start
    std::uint64_t bytes(Direction direction) const;        ///< read since the start, swallowed ones too
    std::size_t held(Direction direction) const;           ///< bytes that wait here: held, delayed, or not taken by the receiver
    std::uint64_t swallowed(Direction direction) const;    ///< dropped since the start by a swallow

    /// Whether bytes() is `total` or more within `limit`.
    bool wait_for_bytes(Direction direction, std::uint64_t total, std::chrono::milliseconds limit = std::chrono::seconds{5}) const;

private:
    struct State;

    std::unique_ptr<State> state_;
};

}  // namespace support
