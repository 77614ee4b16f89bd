// What the tests of guards on real servers say again and again.
#pragma once

#include <hiredlock/hiredlock.hpp>

#include <support/monitor.hpp>
#include <support/proxy.hpp>
#include <support/raw.hpp>
#include <support/server.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace guards {

inline constexpr bool is_sanitized =
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
    true;
#else
    false;
#endif
#else
    false;
#endif

/// ThreadSanitizer does not follow a forked child that begins threads of its own ("dup thread with used id", and then it hangs).
inline constexpr bool follows_threads_after_fork =
#if defined(__SANITIZE_THREAD__)
    false;
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
    false;
#else
    true;
#endif
#else
    true;
#endif

/// Less of what is slow under a sanitizer.
constexpr int scaled(int count) { return is_sanitized ? count / 20 : count; }

/// Where a server, or a relay before one, is reached by TCP.
template <class Listener>
hiredlock::Endpoint endpoint_of(const Listener& listener) {
    return {.host = "127.0.0.1", .port = listener.port()};
}

/// The same with other time limits than those of a second.
template <class Listener>
hiredlock::Endpoint hurried(const Listener& listener, std::chrono::milliseconds limit) {
    hiredlock::Endpoint endpoint = endpoint_of(listener);
    endpoint.connect_timeout = endpoint.command_timeout = limit;
    return endpoint;
}

/// The same with scripts for compare-and-delete, also where the server has a command for it.
template <class Listener>
hiredlock::Endpoint with_scripts(const Listener& listener) {
    hiredlock::Endpoint endpoint = endpoint_of(listener);
    endpoint.cas = hiredlock::Cas::script;
    return endpoint;
}

/// The code of the Error that `call` throws; {} when it throws nothing.
template <class Call>
std::error_code thrown_by(Call&& call) {
    try {
        call();
    } catch (const hiredlock::Error& error) {
        return error.code();
    }
    return {};
}

/// What the Error that `call` throws says; nothing when it throws none.
template <class Call>
std::string words_thrown_by(Call&& call) {
    try {
        call();
    } catch (const hiredlock::Error& error) {
        return error.what();
    }
    return {};
}

inline std::chrono::milliseconds since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - start);
}

/// The clients of a server that go by a name, as CLIENT LIST describes them.
inline std::vector<std::string> clients_named(support::Raw& raw, const std::string& name = "hiredlock") {
    std::vector<std::string> clients;
    std::istringstream list{raw.text({"CLIENT", "LIST"})};
    for (std::string line; std::getline(list, line);)
        if (line.find(" name=" + name + ' ') != std::string::npos) clients.push_back(line);
    return clients;
}

/// Closes their connections from the server's side; how many there were.
inline std::size_t kill_clients(support::Raw& raw, const std::string& name = "hiredlock") {
    const auto clients = clients_named(raw, name);
    for (const std::string& client : clients) raw({"CLIENT", "KILL", "ID", client.substr(3, client.find(' ') - 3)});
    return clients.size();
}

// --- What MONITOR shows.

inline bool is_script(const support::MonitoredCommand& command) {
    return command.argv.size() > 4 && (command.name() == "EVAL" || command.name() == "EVALSHA");
}

inline bool is_acquire(const support::MonitoredCommand& command, std::string_view key) {
    const auto& argv = command.argv;
    return !command.from_script() && command.name() == "SET" && argv.size() > 3 && argv[1] == key && argv[3] == "NX";
}

/// A compare-and-delete in any form.
inline bool is_release(const support::MonitoredCommand& command, std::string_view key) {
    const auto& argv = command.argv;
    if (command.from_script()) return false;
    if (is_script(command)) return argv.size() == 5 && argv[3] == key;
    const std::string name = command.name();
    return argv.size() > 2 && argv[1] == key && (name == "DELEX" || name == "DELIFEQ" || name == "CAD");
}

/// A compare-and-expire in any form.
inline bool is_extend(const support::MonitoredCommand& command, std::string_view key) {
    const auto& argv = command.argv;
    if (command.from_script()) return false;
    if (is_script(command)) return argv.size() == 6 && argv[3] == key;
    return argv.size() > 3 && argv[1] == key && ((command.name() == "SET" && argv[3] == "IFEQ") || command.name() == "CAS");
}

inline auto acquires(std::string key) {
    return [key = std::move(key)](const support::MonitoredCommand& command) { return is_acquire(command, key); };
}
inline auto releases(std::string key) {
    return [key = std::move(key)](const support::MonitoredCommand& command) { return is_release(command, key); };
}
inline auto extends(std::string key) {
    return [key = std::move(key)](const support::MonitoredCommand& command) { return is_extend(command, key); };
}

/// Whatever has the key among its arguments, from clients and scripts.
inline auto names(std::string key) {
    return [key = std::move(key)](const support::MonitoredCommand& command) {
        return std::find(command.argv.begin(), command.argv.end(), key) != command.argv.end();
    };
}

/// What clients said, without what scripts called.
inline std::vector<std::vector<std::string>> said_by_clients(support::Monitor& monitor) {
    std::vector<std::vector<std::string>> said;
    for (const auto& command : monitor.commands())
        if (!command.from_script()) said.push_back(command.argv);
    return said;
}

}  // namespace guards
