// Compare-and-delete in the forms that servers have for it: which one a server has, and what it then hears.
#pragma once

#include "guards.hpp"

#include <support/server.hpp>

#include <hiredis/hiredis.h>

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace native {

using hiredlock::Cas;
using Words = std::vector<std::string>;

/// The form that this server has built in; none: the script.
inline std::optional<Cas> built_in(const support::ServerVersion& version) {
    using support::Kind;
    if (version.at_least(Kind::redis, 8, 4)) return Cas::delex;
    if (version.at_least(Kind::valkey, 9)) return Cas::delifeq;
    return {};
}
inline std::optional<Cas> built_in(const support::Server& server) { return built_in(server.server_version()); }

/// The form that Cas::automatic is to find.
inline Cas best(const support::Server& server) { return built_in(server).value_or(Cas::script); }

inline const char* name(Cas form) {
    switch (form) {
        case Cas::delex: return "delex";
        case Cas::delifeq: return "delifeq";
        case Cas::tair: return "tair";
        case Cas::script: return "script";
        case Cas::automatic: break;
    }
    return "automatic";
}

/// The module that gives a server CAD and CAS. The tests' build makes it.
inline std::string tairstring() {
    const char* const path = std::getenv("HIREDLOCK_TAIRSTRING");
    if (path == nullptr || *path == '\0')
        throw std::runtime_error{"HIREDLOCK_TAIRSTRING must name the module that is built from tests/servers/tairstring.c"};
    return path;
}

/// As ACL and rename-command call the commands that a form releases with.
inline Words commands_of(Cas form) {
    switch (form) {
        case Cas::delex: return {"delex"};
        case Cas::delifeq: return {"delifeq"};
        case Cas::tair: return {"cad", "cas"};
        case Cas::script: return {"eval", "evalsha", "script"};
        case Cas::automatic: break;
    }
    return {};
}

/// Rules that take away the commands of a form.
inline Words without(Cas form) {
    Words rules;
    for (const std::string& command : commands_of(form)) rules.push_back('-' + command);
    return rules;
}

/// What a release and an extend to `ttl` milliseconds say to the server.
inline Words release_of(Cas form, const std::string& key, const std::string& token) {
    switch (form) {
        case Cas::delex: return {"DELEX", key, "IFEQ", token};
        case Cas::delifeq: return {"DELIFEQ", key, token};
        case Cas::tair: return {"CAD", key, token};
        case Cas::script:
        case Cas::automatic: break;
    }
    return {"EVALSHA", std::string{hiredlock::detail::release_script.sha1}, "1", key, token};
}
inline Words extend_of(Cas form, const std::string& key, const std::string& token, const std::string& ttl) {
    switch (form) {
        case Cas::delex:
        case Cas::delifeq: return {"SET", key, token, "IFEQ", token, "PX", ttl};
        case Cas::tair: return {"CAS", key, token, token, "PX", ttl};
        case Cas::script:
        case Cas::automatic: break;
    }
    return {"EVALSHA", std::string{hiredlock::detail::extend_script.sha1}, "1", key, token, ttl};
}

inline bool is_scripting(const support::MonitoredCommand& command) {
    const std::string name = command.name();
    return name == "EVAL" || name == "EVALSHA" || name == "SCRIPT";
}

/// A user on whom nothing is imposed but `rules`; the password is "pw".
inline void set_user(support::Raw& raw, const std::string& user, const Words& rules) {
    Words command{"ACL", "SETUSER", user, "reset", "on", ">pw", "~*", "&*", "+@all"};
    command.insert(command.end(), rules.begin(), rules.end());
    if (const support::Value answer = raw(command); !answer.is_ok()) throw std::runtime_error{"ACL SETUSER: " + answer.text};
}

template <class Listener>
hiredlock::Endpoint as_user(const Listener& listener, const std::string& user, Cas cas = Cas::automatic) {
    hiredlock::Endpoint endpoint = guards::endpoint_of(listener);
    endpoint.username = user;
    endpoint.password = "pw";
    endpoint.cas = cas;
    return endpoint;
}

/// How many refusals of a command the server has noted since ACL LOG RESET.
inline long long refusals(support::Raw& raw, const std::string& command) {
    long long count = 0;
    for (const support::Value& entry : raw({"ACL", "LOG"}).elements) {
        std::string object;
        long long times = 0;
        for (std::size_t i = 0; i + 1 < entry.elements.size(); i += 2) {
            if (entry.elements[i].text == "object") object = entry.elements[i + 1].text;
            if (entry.elements[i].text == "count") times = entry.elements[i + 1].integer;
        }
        if (object == command) count += times;
    }
    return count;
}
inline std::size_t refused_commands(support::Raw& raw) { return raw({"ACL", "LOG"}).elements.size(); }

/// What an on_error hook heard.
class Heard {
public:
    hiredlock::ErrorHook hook() {
        return [this](const hiredlock::Error& error) {
            const std::scoped_lock lock{mutex_};
            codes_.push_back(error.code());
            words_ += std::string{error.what()} + '\n';
        };
    }
    std::vector<std::error_code> codes() {
        const std::scoped_lock lock{mutex_};
        return codes_;
    }
    std::string words() {
        const std::scoped_lock lock{mutex_};
        return words_;
    }

private:
    std::mutex mutex_{};
    std::vector<std::error_code> codes_{};
    std::string words_{};
};

/// A service's own context.
struct Freed {
    void operator()(redisContext* context) const noexcept { redisFree(context); }
};
using Context = std::unique_ptr<redisContext, Freed>;

inline Context connected(const support::Server& server, const std::string& user = {}) {
    Context context{redisConnect("127.0.0.1", server.port())};
    if (context == nullptr || context->err != 0) throw std::runtime_error{"cannot connect"};
    if (!user.empty()) freeReplyObject(redisCommand(context.get(), "AUTH %s pw", user.c_str()));
    return context;
}

/// A lock through its life; returns its token.
template <class Store>
std::string whole_cycle(Store& store, support::Raw& raw, const std::string& key) {
    hiredlock::Lock lock{store, key, std::chrono::seconds{10}};
    std::string token{lock.token()};
    EXPECT_EQ(raw.get(key), token);
    EXPECT_TRUE(lock.extend(std::chrono::seconds{100}));
    EXPECT_GT(raw.pttl(key), 50'000);
    EXPECT_EQ(lock.unlock(), std::error_code{});
    EXPECT_FALSE(raw.exists(key));
    return token;
}

/// That cycles of a lock in this Store use `form` and no other, and that the Store says so.
template <class Store>
void speaks(Store& store, const support::Server& server, Cas form) {
    SCOPED_TRACE(name(form));
    support::Raw raw{server};
    EXPECT_EQ(store.cas(), form);
    whole_cycle(store, raw, "k");  // by script, the first may have to send it whole
    support::Monitor monitor{server};
    const std::string token = whole_cycle(store, raw, "k");
    std::size_t extends = 0, releases = 0;
    for (const auto& command : monitor.commands()) {
        if (command.from_script()) continue;
        if (command.argv == extend_of(form, "k", token, "100000"))
            ++extends;
        else if (command.argv == release_of(form, "k", token))
            ++releases;
        else
            EXPECT_FALSE(guards::is_release(command, "k") || guards::is_extend(command, "k") || is_scripting(command))
                << testing::PrintToString(command.argv);
    }
    EXPECT_EQ(extends, 1U);
    EXPECT_EQ(releases, 1U);
    EXPECT_EQ(store.cas(), form);
}

}  // namespace native
