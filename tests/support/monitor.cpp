#include "monitor.hpp"

#include "raw.hpp"

#include <algorithm>
#include <cctype>
#include <condition_variable>
#include <mutex>
#include <random>
#include <stdexcept>
#include <thread>
#include <utility>

#include <sys/socket.h>
#include <unistd.h>

namespace support {
namespace {

int hex_digit(char c) { return c <= '9' ? c - '0' : std::tolower(static_cast<unsigned char>(c)) - 'a' + 10; }

/// Reads what a backslash at `at` stands for, and moves `at` to the last byte of it.
char unescaped(const std::string& line, std::size_t& at) {
    if (at + 1 >= line.size()) return '\\';
    switch (const char escaped = line[++at]) {
        case 'n': return '\n';
        case 'r': return '\r';
        case 't': return '\t';
        case 'a': return '\a';
        case 'b': return '\b';
        case 'x':
            if (at + 2 >= line.size()) return 'x';
            at += 2;
            return static_cast<char>(hex_digit(line[at - 1]) * 16 + hex_digit(line[at]));
        default: return escaped;
    }
}

/// Reads the quoted words of a line of MONITOR from `at`, its first quote, on. A quote ends a word only before the next word or the end of
/// the line, for Valkey 8.1 does not escape those within a word.
std::vector<std::string> quoted_words(const std::string& line, std::size_t at) {
    std::vector<std::string> words(1);
    for (++at; at < line.size(); ++at) {
        if (line[at] == '"' && (at + 1 == line.size() || line.compare(at + 1, 2, " \"") == 0)) {
            if (at + 1 == line.size()) break;
            words.emplace_back();
            at += 2;
        } else {
            words.back() += line[at] == '\\' ? unescaped(line, at) : line[at];
        }
    }
    return words;
}

}  // namespace

std::string MonitoredCommand::name() const {
    std::string name = argv.empty() ? std::string{} : argv.front();
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
    return name;
}

MonitoredCommand MonitoredCommand::parse(const std::string& line) {
    // 1339518083.107412 [0 127.0.0.1:60866] "keys" "*"
    try {
        const auto dot = line.find('.');
        const auto open = line.find(" [", dot);
        const auto space = line.find(' ', open + 2);
        const auto close = line.find("] \"", space);
        if (std::max({dot, open, space, close}) == std::string::npos) throw std::out_of_range{"no such mark"};
        MonitoredCommand command;
        command.time = std::chrono::seconds{std::stoll(line)} + std::chrono::microseconds{std::stoll(line.substr(dot + 1))};
        command.database = std::stoi(line.substr(open + 2));
        command.source = line.substr(space + 1, close - space - 1);
        command.argv = quoted_words(line, close + 2);
        return command;
    } catch (const std::logic_error&) {
        throw std::runtime_error{"not a line of MONITOR: " + line};
    }
}

struct Monitor::State {
    State(Raw marker_connection, Raw stream_connection) : marker{std::move(marker_connection)}, stream{std::move(stream_connection)} {}

    void collect() {
        try {
            for (;;) take(MonitoredCommand::parse(stream.read().text));
        } catch (const std::runtime_error&) {
            const std::lock_guard lock{mutex};  // the server or the monitor has ended
            ended = true;
            changed.notify_all();
        }
    }

    void take(MonitoredCommand command) {
        const std::lock_guard lock{mutex};
        if (command.argv.size() == 2 && command.argv[1].rfind(mark, 0) == 0) {
            last_mark = std::move(command.argv[1]);
        } else {
            commands.push_back(std::move(command));
        }
        changed.notify_all();
    }

    const pid_t owner = ::getpid();
    const std::string mark = "support::Monitor " + std::to_string(std::random_device{}()) + ' ';
    std::mutex marking{};  // guards marker and the two numbers
    Raw marker;
    unsigned long marks = 0;
    unsigned long unread = 0;  // replies to marks
    Raw stream;
    mutable std::mutex mutex{};  // guards what follows
    mutable std::condition_variable changed{};
    std::vector<MonitoredCommand> commands{};
    std::string last_mark{};
    bool ended = false;
    std::thread thread{};
};

Monitor::Monitor(Raw marker, Raw stream) {
    stream.set_timeout(std::chrono::milliseconds{0});
    if (const Value reply = stream({"MONITOR"}); !reply.is_ok()) throw std::runtime_error{"MONITOR: " + reply.text};
    state_ = std::make_unique<State>(std::move(marker), std::move(stream));
    state_->thread = std::thread{[state = state_.get()] { state->collect(); }};
}

// The marker connects first, or its AUTH would be seen.
Monitor::Monitor(const Server& server) : Monitor{Raw{server}, Raw{server}} {}

Monitor::Monitor(int port, const std::string& password) : Monitor{Raw{port, password}, Raw{port, password}} {}

Monitor::Monitor(Monitor&&) noexcept = default;

Monitor::~Monitor() {
    if (!state_) return;
    if (state_->owner != ::getpid()) {
        static_cast<void>(state_.release());  // its thread is the parent's, and so may its mutexes be
        return;
    }
    ::shutdown(state_->stream.descriptor(), SHUT_RDWR);
    state_->thread.join();
}

bool Monitor::sync(std::chrono::milliseconds limit) {
    const auto deadline = std::chrono::steady_clock::now() + limit;
    const std::lock_guard marking{state_->marking};
    const std::string mark = state_->mark + std::to_string(++state_->marks);
    try {
        // The reply is read when it must be there, so that a server that stalls costs us the time limit and not the connection.
        state_->marker.send({"ECHO", mark});
        ++state_->unread;
        std::unique_lock lock{state_->mutex};
        state_->changed.wait_until(lock, deadline, [&] { return state_->last_mark == mark || state_->ended; });
        if (state_->last_mark != mark) return false;
        lock.unlock();
        for (; state_->unread > 0; --state_->unread) state_->marker.read();
        return true;
    } catch (const std::runtime_error&) {
        return false;
    }
}

std::vector<MonitoredCommand> Monitor::commands() {
    if (!sync()) throw std::runtime_error{"Monitor: the server does not answer"};
    return collected();
}

std::size_t Monitor::count(const Predicate& wanted) {
    const auto all = commands();
    return static_cast<std::size_t>(std::count_if(all.begin(), all.end(), wanted));
}

std::vector<MonitoredCommand> Monitor::collected() const {
    const std::lock_guard lock{state_->mutex};
    return state_->commands;
}

bool Monitor::wait_for(const Predicate& wanted, std::chrono::milliseconds limit) const {
    const auto deadline = std::chrono::steady_clock::now() + limit;
    std::unique_lock lock{state_->mutex};
    std::size_t asked = 0;
    const auto found = [&] {
        asked = std::min(asked, state_->commands.size());  // clear() may have been called meanwhile
        while (asked < state_->commands.size()) {
            if (wanted(state_->commands[asked++])) return true;
        }
        return false;
    };
    return state_->changed.wait_until(lock, deadline, found);
}

void Monitor::clear() {
    if (!sync()) throw std::runtime_error{"Monitor: the server does not answer"};
    const std::lock_guard lock{state_->mutex};
    state_->commands.clear();
}

}  // namespace support
