#include "proxy.hpp"

#include "descriptor.hpp"
#include "port.hpp"
#include "server.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <condition_variable>
#include <deque>
#include <list>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

namespace support {
namespace {

using Clock = std::chrono::steady_clock;

/// What a test wants of one direction, on all connections.
struct Rules {
    bool hold = false;
    bool swallow = false;
    std::string hold_when{};
    std::string swallow_when{};
    std::chrono::microseconds latency{};
    std::optional<std::size_t> cut_after{};
    Ending cut_ending = Ending::reset;
    std::uint64_t bytes = 0;
    std::uint64_t swallowed = 0;
};

struct Chunk {
    std::string bytes{};  ///< none: the end of file
    Clock::time_point due{};
};

/// One direction of one connection.
struct Flow {
    std::deque<Chunk> queue{};
    std::size_t sent = 0;       ///< of the first chunk
    std::string seen{};         ///< the last bytes read, in which a substring may have begun
    bool held = false;          ///< by hold_when
    bool swallowed = false;     ///< by swallow_when
    bool source_ended = false;  ///< nothing more to read
    bool end_lost = false;      ///< that end was swallowed
    bool finished = false;      ///< nothing more to write
    bool blocked = false;       ///< the receiver takes no more for now
};

struct Link {
    Descriptor client{};
    Descriptor server{};
    std::array<Flow, 2> flows{};
    std::optional<Ending> cut{};

    Flow& flow(Direction direction) { return flows[static_cast<std::size_t>(direction)]; }
    const Flow& flow(Direction direction) const { return flows[static_cast<std::size_t>(direction)]; }
    int source(Direction direction) const { return (direction == Direction::to_server ? client : server).get(); }
    int target(Direction direction) const { return (direction == Direction::to_server ? server : client).get(); }
    bool answers() const { return static_cast<bool>(server); }
    bool finished() const { return flows[0].finished && flows[1].finished; }
};

constexpr std::array both{Direction::to_server, Direction::to_client};

void no_delay(const Descriptor& socket) {
    const int on = 1;
    ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

/// A connection that may still be under way; that it failed is found by its first read.
Descriptor connect_to(int port) {
    Descriptor socket{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 && errno != EINPROGRESS) return {};
    no_delay(socket);
    return socket;
}

/// With it a socket can listen while connections of its port still live, for they inherit it. Without it nobody else can have the port.
void share_address(const Descriptor& socket, bool on) {
    const int value = on ? 1 : 0;
    ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &value, sizeof value);
}

void reset_on_close(const Descriptor& socket) {
    const linger at_once{1, 0};
    if (socket) ::setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
}

/// Whether `part` occurs in `text` so that it ends behind the first `old` bytes.
bool completes(const std::string& text, std::size_t old, const std::string& part) {
    if (part.empty()) return false;
    const std::size_t first = old >= part.size() ? old - part.size() + 1 : 0;
    return text.find(part, first) != std::string::npos;
}

}  // namespace

struct Proxy::State {
    explicit State(int to) : upstream{to}, wake{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)} {
        if (!wake) throw std::system_error{errno, std::generic_category(), "eventfd"};
        while (!listener || !listen()) {
            port = free_port();
            listener = bind_port(port);
        }
    }

    Rules& rule(Direction direction) { return rules[static_cast<std::size_t>(direction)]; }
    const Rules& rule(Direction direction) const { return rules[static_cast<std::size_t>(direction)]; }

    bool listen() const {
        share_address(listener, true);
        return ::listen(listener.get(), 512) == 0;
    }

    /// On Linux this keeps the port.
    void stop_listening() const {
        share_address(listener, false);
        ::shutdown(listener.get(), SHUT_RD);
    }

    void wake_up() const {
        const std::uint64_t one = 1;
        while (::write(wake.get(), &one, sizeof one) < 0 && errno == EINTR) {}
    }

    void run();
    void accept_all();
    void receive(Link& link, Direction direction);
    void arrive(Flow& flow, Rules& rules, std::string bytes) const;
    void end(Link& link, Direction direction);
    void deliver(Link& link, Direction direction);
    bool send_front(Link& link, Direction direction);
    void sweep();
    timespec until_due() const;

    const pid_t owner = ::getpid();
    const int upstream;
    int port = 0;
    Descriptor listener{};
    Descriptor wake;
    mutable std::mutex mutex{};  // guards what follows; only the thread adds and removes links and closes descriptors
    mutable std::condition_variable changed{};
    std::array<Rules, 2> rules{};
    std::list<Link> links{};
    std::size_t accepted = 0;
    bool refusing = false;
    bool swallow_new = false;
    bool stopping = false;
    std::vector<char> buffer = std::vector<char>(65'536);  // for the thread alone
    std::thread thread{};
};

void Proxy::State::run() {
    std::unique_lock lock{mutex};
    while (!stopping) {
        for (Link& link : links) {
            for (const Direction direction : both) deliver(link, direction);
        }
        sweep();
        changed.notify_all();

        // A descriptor of which nothing is wanted is left out, for a hang-up would be reported without end.
        std::vector<pollfd> polled{{wake.get(), POLLIN, 0}, {refusing ? -1 : listener.get(), POLLIN, 0}};
        for (Link& link : links) {
            for (const Direction direction : both) {
                const int backwards = 1 - static_cast<int>(direction);
                short events = 0;
                if (!link.flow(direction).source_ended) events = POLLIN;
                if (link.flow(static_cast<Direction>(backwards)).blocked) events |= POLLOUT;
                polled.push_back({events != 0 ? link.source(direction) : -1, events, 0});
            }
        }
        const timespec limit = until_due();
        lock.unlock();
        const int ready = ::ppoll(polled.data(), polled.size(), limit.tv_sec < 0 ? nullptr : &limit, nullptr);
        lock.lock();
        if (ready <= 0) continue;

        std::uint64_t drained = 0;
        if (polled[0].revents != 0 && ::read(wake.get(), &drained, sizeof drained) < 0) continue;
        std::size_t next = 2;
        for (Link& link : links) {
            for (const Direction direction : both) {
                const bool readable = (polled[next++].revents & (POLLIN | POLLHUP | POLLERR)) != 0;
                if (readable && !link.flow(direction).source_ended) receive(link, direction);
            }
        }
        if (polled[1].revents != 0 && !refusing) accept_all();
    }
    links.clear();
}

void Proxy::State::accept_all() {
    for (;;) {
        Descriptor client{::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)};
        if (!client) return;
        ++accepted;
        no_delay(client);
        Link link;
        link.client = std::move(client);
        if (!swallow_new) {
            link.server = connect_to(upstream);
            if (!link.answers()) continue;  // nobody there: the client is closed
        } else {
            link.flow(Direction::to_client).source_ended = true;
        }
        links.push_back(std::move(link));
    }
}

void Proxy::State::receive(Link& link, Direction direction) {
    const ssize_t n = ::recv(link.source(direction), buffer.data(), buffer.size(), 0);
    if (n > 0) {
        const auto size = static_cast<std::size_t>(n);
        rule(direction).bytes += size;
        if (link.answers() && !link.flow(direction).finished) arrive(link.flow(direction), rule(direction), {buffer.data(), size});
    } else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
        end(link, direction);
    }
}

void Proxy::State::arrive(Flow& flow, Rules& rules_now, std::string bytes) const {
    const std::size_t old = flow.seen.size();
    flow.seen += bytes;
    if (completes(flow.seen, old, rules_now.hold_when)) {
        flow.held = true;
        rules_now.hold_when.clear();
    }
    if (completes(flow.seen, old, rules_now.swallow_when)) {
        flow.swallowed = true;
        rules_now.swallow_when.clear();
    }
    const std::size_t kept = std::max({rules_now.hold_when.size(), rules_now.swallow_when.size(), std::size_t{1}}) - 1;
    if (flow.seen.size() > kept) flow.seen.erase(0, flow.seen.size() - kept);

    if (rules_now.swallow || flow.swallowed) {
        rules_now.swallowed += bytes.size();
        return;
    }
    const auto earliest = flow.queue.empty() ? Clock::time_point{} : flow.queue.back().due;
    flow.queue.push_back({std::move(bytes), std::max(earliest, Clock::now() + rules_now.latency)});
}

void Proxy::State::end(Link& link, Direction direction) {
    Flow& flow = link.flow(direction);
    flow.source_ended = true;
    if (!link.answers()) {
        link.flows[0].finished = link.flows[1].finished = true;
    } else if (rule(direction).swallow || flow.swallowed) {
        flow.end_lost = true;
    } else if (!flow.finished) {
        const auto earliest = flow.queue.empty() ? Clock::time_point{} : flow.queue.back().due;
        flow.queue.push_back({{}, std::max(earliest, Clock::now() + rule(direction).latency)});
    }
}

void Proxy::State::deliver(Link& link, Direction direction) {
    Flow& flow = link.flow(direction);
    flow.blocked = false;
    while (!link.cut && !flow.queue.empty() && !rule(direction).hold && !flow.held && flow.queue.front().due <= Clock::now()) {
        if (!flow.queue.front().bytes.empty()) {
            if (!send_front(link, direction)) return;
        } else {
            ::shutdown(link.target(direction), SHUT_WR);
            flow.queue.clear();
            flow.finished = true;
        }
    }
}

/// Sends what it can of the first chunk; false: no more can be sent for now.
bool Proxy::State::send_front(Link& link, Direction direction) {
    Flow& flow = link.flow(direction);
    Rules& rules_now = rule(direction);
    const Chunk& chunk = flow.queue.front();
    const std::size_t wanted = std::min(chunk.bytes.size() - flow.sent, rules_now.cut_after.value_or(chunk.bytes.size()));
    const ssize_t n = wanted == 0 ? 0 : ::send(link.target(direction), chunk.bytes.data() + flow.sent, wanted, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) return true;
    if (n < 0 && errno == EAGAIN) {
        flow.blocked = true;
        return false;
    }
    if (n < 0) {  // the receiver is gone
        flow.queue.clear();
        flow.finished = true;
        return false;
    }
    flow.sent += static_cast<std::size_t>(n);
    if (rules_now.cut_after) {
        *rules_now.cut_after -= static_cast<std::size_t>(n);
        if (*rules_now.cut_after == 0) {
            link.cut = rules_now.cut_ending;
            rules_now.cut_after.reset();
        }
    }
    if (flow.sent == chunk.bytes.size()) {
        flow.queue.pop_front();
        flow.sent = 0;
    }
    return true;
}

/// Closes what is finished or cut.
void Proxy::State::sweep() {
    for (Link& link : links) {
        if (link.cut != Ending::reset) continue;
        reset_on_close(link.client);
        reset_on_close(link.server);
    }
    links.remove_if([](const Link& link) { return link.cut || link.finished(); });
}

/// How long nothing is due; a negative time: nothing ever.
timespec Proxy::State::until_due() const {
    std::optional<Clock::time_point> first;
    for (const Link& link : links) {
        for (const Direction direction : both) {
            const Flow& flow = link.flow(direction);
            if (flow.queue.empty() || flow.held || flow.blocked || rule(direction).hold) continue;
            first = std::min(first.value_or(Clock::time_point::max()), flow.queue.front().due);
        }
    }
    if (!first) return {-1, 0};
    const auto left = std::max(std::chrono::nanoseconds{*first - Clock::now()}, std::chrono::nanoseconds{0});
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(left);
    return {static_cast<time_t>(seconds.count()), static_cast<long>((left - seconds).count())};
}

Proxy::Proxy(int upstream_port) : state_{std::make_unique<State>(upstream_port)} {
    state_->thread = std::thread{[state = state_.get()] { state->run(); }};
}

Proxy::Proxy(const Server& upstream) : Proxy{upstream.port()} {}

Proxy::Proxy(Proxy&&) noexcept = default;

Proxy::~Proxy() {
    if (!state_) return;
    if (state_->owner != ::getpid()) {
        static_cast<void>(state_.release());  // its thread is the parent's, and so may its mutex be
        return;
    }
    {
        const std::lock_guard lock{state_->mutex};
        state_->stopping = true;
    }
    state_->wake_up();
    state_->thread.join();
}

int Proxy::port() const noexcept { return state_->port; }

std::string Proxy::uri() const { return "redis://127.0.0.1:" + std::to_string(port()); }

void Proxy::hold(Direction direction) {
    const std::lock_guard lock{state_->mutex};
    state_->rule(direction).hold = true;
}

void Proxy::hold_when(Direction direction, const std::string& substring) {
    const std::lock_guard lock{state_->mutex};
    state_->rule(direction).hold_when = substring;
}

void Proxy::release(Direction direction) {
    const std::lock_guard lock{state_->mutex};
    state_->rule(direction).hold = false;
    state_->rule(direction).hold_when.clear();
    for (Link& link : state_->links) link.flow(direction).held = false;
    state_->wake_up();
}

void Proxy::swallow(Direction direction) {
    const std::lock_guard lock{state_->mutex};
    state_->rule(direction).swallow = true;
}

void Proxy::swallow_when(Direction direction, const std::string& substring) {
    const std::lock_guard lock{state_->mutex};
    state_->rule(direction).swallow_when = substring;
}

void Proxy::pass(Direction direction) {
    const std::lock_guard lock{state_->mutex};
    state_->rule(direction).swallow = false;
    state_->rule(direction).swallow_when.clear();
    for (Link& link : state_->links) {
        Flow& flow = link.flow(direction);
        flow.swallowed = false;
        if (std::exchange(flow.end_lost, false)) state_->end(link, direction);
    }
    state_->wake_up();
}

void Proxy::delay(Direction direction, std::chrono::microseconds latency) {
    const std::lock_guard lock{state_->mutex};
    state_->rule(direction).latency = latency;
}

void Proxy::cut_after(Direction direction, std::size_t bytes, Ending ending) {
    const std::lock_guard lock{state_->mutex};
    state_->rule(direction).cut_after = bytes;
    state_->rule(direction).cut_ending = ending;
}

void Proxy::cut(Ending ending) {
    std::unique_lock lock{state_->mutex};
    for (Link& link : state_->links) link.cut = ending;
    state_->wake_up();
    state_->changed.wait(lock, [this] {
        return std::none_of(state_->links.begin(), state_->links.end(), [](const Link& link) { return link.cut.has_value(); });
    });
}

void Proxy::refuse(bool on) {
    const std::lock_guard lock{state_->mutex};
    if (on == state_->refusing) return;
    if (on) state_->stop_listening();
    else if (!state_->listen()) throw std::system_error{errno, std::generic_category(), "listen"};
    state_->refusing = on;
    state_->wake_up();
}

void Proxy::swallow_new(bool on) {
    const std::lock_guard lock{state_->mutex};
    state_->swallow_new = on;
}

std::size_t Proxy::connections() const {
    const std::lock_guard lock{state_->mutex};
    const auto alive = [](const Link& link) { return !link.flow(Direction::to_server).source_ended; };
    return static_cast<std::size_t>(std::count_if(state_->links.begin(), state_->links.end(), alive));
}

std::size_t Proxy::accepted() const {
    const std::lock_guard lock{state_->mutex};
    return state_->accepted;
}

std::uint64_t Proxy::bytes(Direction direction) const {
    const std::lock_guard lock{state_->mutex};
    return state_->rule(direction).bytes;
}

std::size_t Proxy::held(Direction direction) const {
    const std::lock_guard lock{state_->mutex};
    std::size_t total = 0;
    for (const Link& link : state_->links) {
        const Flow& flow = link.flow(direction);
        for (const Chunk& chunk : flow.queue) total += chunk.bytes.size();
        total -= flow.sent;
    }
    return total;
}

std::uint64_t Proxy::swallowed(Direction direction) const {
    const std::lock_guard lock{state_->mutex};
    return state_->rule(direction).swallowed;
}

bool Proxy::wait_for_bytes(Direction direction, std::uint64_t total, std::chrono::milliseconds limit) const {
    std::unique_lock lock{state_->mutex};
    return state_->changed.wait_for(lock, limit, [&] { return state_->rule(direction).bytes >= total; });
}

}  // namespace support
