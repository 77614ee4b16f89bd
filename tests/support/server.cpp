#include "server.hpp"

#include "descriptor.hpp"
#include "eventually.hpp"
#include "port.hpp"
#include "raw.hpp"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <tuple>
#include <utility>

#include <fcntl.h>

namespace support {
namespace {

constexpr std::chrono::seconds start_limit{10};
constexpr std::chrono::seconds stop_limit{5};

std::string program_under_test() {
    const char* given = std::getenv("HIREDLOCK_TEST_SERVER");
    return given != nullptr && *given != '\0' ? given : "redis-server";
}

/// The value of a "name:value" line of INFO; empty when there is none.
std::string field(const std::string& info, const std::string& name) {
    const std::string wanted = '\n' + name + ':';
    const auto found = info.find(wanted);
    if (found == std::string::npos) return {};
    const auto begin = found + wanted.size();
    return info.substr(begin, info.find_first_of("\r\n", begin) - begin);
}

/// As the configuration file wants a word that may hold anything.
std::string quoted(const std::string& word) {
    std::string text{'"'};
    for (const char c : word) {
        if (c == '"' || c == '\\') text += '\\';
        text += c;
    }
    return text + '"';
}

bool starts_with_word(const std::string& line, const std::string& word) { return line.rfind(word + ' ', 0) == 0; }

struct Greeting {
    bool ready = false;
    std::string answer{};      ///< to PING, or why there is none
    std::string process_id{};  ///< empty when the default user may not ask
};

Greeting greet(const std::string& socket_path, const std::string& password) {
    Greeting greeting;
    try {
        Raw raw = Raw::to_unix_socket(socket_path);
        raw.set_timeout(start_limit);
        if (!password.empty()) raw({"AUTH", password});
        greeting.answer = raw({"PING"}).text;
        greeting.process_id = field(raw({"INFO", "server"}).text, "process_id");
        greeting.ready = !starts_with_word(greeting.answer, "LOADING");  // NOAUTH and the like are answers too
    } catch (const std::runtime_error& error) {
        greeting.answer = error.what();
    }
    return greeting;
}

}  // namespace

bool ServerVersion::at_least(Kind wanted, int wanted_major, int wanted_minor) const noexcept {
    return kind == wanted && std::tie(major, minor) >= std::tie(wanted_major, wanted_minor);
}

std::string ServerVersion::text() const {
    const std::string name = kind == Kind::valkey ? "valkey " : "redis ";
    return name + std::to_string(major) + '.' + std::to_string(minor) + '.' + std::to_string(patch);
}

ServerVersion ServerVersion::parse(const std::string& info) {
    ServerVersion version;
    std::string text = field(info, "valkey_version");
    if (!text.empty()) version.kind = Kind::valkey;
    else text = field(info, "redis_version");
    if (std::sscanf(text.c_str(), "%d.%d.%d", &version.major, &version.minor, &version.patch) < 2) {
        throw std::runtime_error{"no version in INFO: " + info};
    }
    return version;
}

Server::Server(ServerOptions options) : options_{std::move(options)} {
    if (options_.program.empty()) options_.program = program_under_test();
    start();
}

std::string Server::uri() const { return "redis://127.0.0.1:" + std::to_string(port_); }

std::string Server::unix_uri() const { return "unix://" + socket_path(); }

void Server::stop() { process_.terminate(stop_limit); }

void Server::kill() { process_.kill(); }

void Server::pause() { process_.pause(); }

void Server::resume() { process_.resume(); }

void Server::restart() {
    stop();
    start();
}

void Server::start() {
    if (is_running()) return;
    const bool choose = options_.tcp && options_.port == 0 && port_ == 0;
    const auto deadline = std::chrono::steady_clock::now() + start_limit;
    do {
        if (options_.tcp) port_ = choose ? free_port() : options_.port != 0 ? options_.port : port_;
        write_config();
        const Descriptor output{::open(directory_.file("log").c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600)};
        if (!output) throw std::system_error{errno, std::generic_category(), "open " + directory_.file("log")};
        std::vector<std::string> argv{options_.program, directory_.file("conf")};
        if (options_.sentinel) argv.emplace_back("--sentinel");
        process_ = Subprocess::exec(argv, {-1, output.get(), output.get()});
    } while (!wait_until_ready(deadline));
}

void Server::write_config() const {
    std::ofstream config{directory_.file("conf")};
    config << "dir " << quoted(directory_.path()) << "\nport " << port_ << "\nbind 127.0.0.1\nunixsocket " << quoted(socket_path()) << '\n';
    if (!options_.sentinel) config << "save \"\"\nappendonly " << (options_.append_only ? "yes" : "no") << "\nrepl-diskless-sync-delay 0\n";
    if (!options_.password.empty()) config << "requirepass " << quoted(options_.password) << '\n';
    if (!options_.password.empty() && !options_.sentinel) config << "masterauth " << quoted(options_.password) << '\n';
    if (options_.replica_of_port) config << "replicaof 127.0.0.1 " << *options_.replica_of_port << '\n';
    if (!options_.module.empty()) config << "loadmodule " << quoted(options_.module) << '\n';
    if (!options_.acl_users.empty()) {
        config << "aclfile " << quoted(directory_.file("users")) << '\n';
        std::ofstream users{directory_.file("users")};
        bool has_default = false;
        for (const std::string& given : options_.acl_users) {
            const std::string line = starts_with_word(given, "user") ? given : "user " + given;
            has_default = has_default || starts_with_word(line, "user default");
            users << line << '\n';
        }
        // An aclfile makes the server forget requirepass.
        if (!has_default && !options_.password.empty()) users << "user default on >" << options_.password << " ~* &* +@all\n";
    }
    for (const std::string& line : options_.config) config << line << '\n';
    if (!config.flush()) throw std::runtime_error{"cannot write " + directory_.file("conf")};
}

/// False: it ended because somebody else has the port.
bool Server::wait_until_ready(std::chrono::steady_clock::time_point deadline) {
    const auto fail = [this](const std::string& why) {
        process_.kill();
        throw std::runtime_error{options_.program + ' ' + why + "; its log:\n" + log()};
    };
    std::string last = "nothing";
    while (std::chrono::steady_clock::now() < deadline) {
        if (!is_running()) {
            if (log().find("Address already in use") == std::string::npos) fail("has ended at its start");
            std::this_thread::sleep_for(std::chrono::milliseconds{20});
            return false;
        }
        const Greeting greeting = greet(socket_path(), password());
        if (greeting.ready) {
            if (!greeting.process_id.empty() && greeting.process_id != std::to_string(pid())) {
                fail("does not exec the server, which runs as process " + greeting.process_id);
            }
            return true;
        }
        last = greeting.answer;
        eventually([this] { return !is_running(); }, std::chrono::milliseconds{5});
    }
    fail("did not answer in time, but: " + last);
    return false;
}

bool Server::wait_until_linked(std::chrono::milliseconds limit) const {
    Raw raw{*this};
    return eventually([&raw] { return field(raw.text({"INFO", "replication"}), "master_link_status") == "up"; }, limit);
}

ServerVersion Server::server_version() const { return ServerVersion::parse(Raw{*this}.text({"INFO", "server"})); }

std::string Server::log() const {
    std::ifstream file{directory_.file("log")};
    return {std::istreambuf_iterator<char>{file}, std::istreambuf_iterator<char>{}};
}

}  // namespace support
