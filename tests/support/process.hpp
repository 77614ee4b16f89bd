// Other processes in a test, forked or executed, and what this process uses up.
#pragma once

#include "lines.hpp"
#include "subprocess.hpp"

#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace support {

using Leave = Subprocess::Leave;

/// Forks, runs `body` in the child and returns its exit status: what `body` returned, 70 when it threw, 128 + signal when a signal ended
/// it. −1: it still ran after `limit` and was killed. A GoogleTest assertion in `body` does not reach the parent: return a number.
int run_in_child(const std::function<int()>& body, std::chrono::milliseconds limit = std::chrono::seconds{30},
                 Leave leave = Leave::at_once);

/// A child that goes on while the test does, and talks with it by lines. Killed by the destructor; see Subprocess for what else ends it.
class Child {
public:
    /// Runs a program, found on PATH; the lines are its standard input and output.
    static Child exec(const std::vector<std::string>& argv);

    /// Runs `body` in a fork; the lines it is given go to and come from the parent.
    static Child fork(const std::function<int(Lines& parent)>& body, Leave leave = Leave::at_once);

    void write_line(std::string_view line) { lines_.write_line(line); }
    std::optional<std::string> read_line(std::chrono::milliseconds limit = std::chrono::seconds{10}) { return lines_.read_line(limit); }
    void end_input() noexcept { lines_.end_output(); }

    pid_t pid() const noexcept { return process_.pid(); }
    bool is_running() { return process_.is_running(); }
    void signal(int number) { process_.signal(number); }
    void kill() { process_.kill(); }
    void pause() { process_.pause(); }
    void resume() { process_.resume(); }

    /// Its exit status, 128 + signal when a signal ended it; nothing when it still runs after `limit`.
    std::optional<int> wait(std::chrono::milliseconds limit = std::chrono::seconds{10}) { return process_.wait(limit); }

private:
    Child(Subprocess process, Lines lines) noexcept : process_{std::move(process)}, lines_{std::move(lines)} {}

    Subprocess process_;
    Lines lines_;
};

/// The numbers of the descriptors that this process has open; one of them is of the listing itself.
std::set<int> open_now();

/// How many descriptors this process has open.
std::size_t open_descriptors();

/// How many bytes of this process are in memory.
std::size_t resident_bytes();

}  // namespace support
