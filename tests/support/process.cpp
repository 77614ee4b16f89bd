#include "process.hpp"

#include <filesystem>
#include <fstream>
#include <stdexcept>

#include <unistd.h>

namespace support {

int run_in_child(const std::function<int()>& body, std::chrono::milliseconds limit, Leave leave) {
    return Subprocess::fork(body, leave).wait(limit).value_or(-1);
}

Child Child::exec(const std::vector<std::string>& argv) {
    auto [ours, theirs] = socket_pair();
    return {Subprocess::exec(argv, {theirs.get(), theirs.get(), -1}), Lines{std::move(ours)}};
}

Child Child::fork(const std::function<int(Lines& parent)>& body, Leave leave) {
    auto pair = socket_pair();
    Descriptor& ours = pair.first;
    Descriptor& theirs = pair.second;
    const auto in_child = [&] {
        ours.reset();
        Lines parent{std::move(theirs)};
        return body(parent);
    };
    Subprocess process = Subprocess::fork(in_child, leave);
    return {std::move(process), Lines{std::move(ours)}};
}

std::set<int> open_now() {
    std::set<int> descriptors;
    for (const auto& entry : std::filesystem::directory_iterator{"/proc/self/fd"}) descriptors.insert(std::stoi(entry.path().filename().string()));
    return descriptors;
}

std::size_t open_descriptors() {
    return open_now().size() - 1;  // the listing itself has one open
}

std::size_t resident_bytes() {
    std::ifstream statm{"/proc/self/statm"};
    std::size_t total = 0;
    std::size_t resident = 0;
    if (!(statm >> total >> resident)) throw std::runtime_error{"/proc/self/statm cannot be read"};
    return resident * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace support
