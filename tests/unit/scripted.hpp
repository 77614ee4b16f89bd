// A server's side of an exchange, played by a test: what was said to it, and replies by hand.
#pragma once

#include <hiredlock/command.hpp>
#include <hiredlock/reply.hpp>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

/// Notes commands, each as its arguments joined by spaces; scripts and their names are shortened to what they are.
class Said final : public hiredlock::detail::CommandSink {
public:
    void command(std::initializer_list<std::string_view> arguments) override {
        std::string line;
        for (const std::string_view argument : arguments) line += (line.empty() ? "" : " ") + std::string{named(argument)};
        lines_.push_back(std::move(line));
    }

    /// What was said since the last look.
    std::vector<std::string> take() { return std::exchange(lines_, {}); }

private:
    static std::string_view named(std::string_view argument) {
        using namespace hiredlock::detail;
        for (const auto& [script, name] : {std::pair{release_script, "<release>"}, {extend_script, "<extend>"}, {fenced_acquire_script, "<fenced>"}})
            if (argument == script.text || argument == script.sha1) return name;
        return argument;
    }

    std::vector<std::string> lines_;
};

namespace replies {

using hiredlock::detail::Reply;

inline Reply nil() { return {}; }
inline Reply number(long long value) { return {.kind = Reply::Kind::integer, .integer = value}; }
inline Reply text(std::string_view words) { return {.kind = Reply::Kind::text, .text = words}; }
inline Reply ok() { return text("OK"); }
inline Reply error(std::string_view words) { return {.kind = Reply::Kind::error, .text = words}; }
inline Reply array(std::vector<Reply> elements) { return {.kind = Reply::Kind::array, .elements = std::move(elements)}; }
inline Reply other() { return {.kind = Reply::Kind::other}; }

}  // namespace replies
