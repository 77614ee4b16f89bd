#include "directory.hpp"

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include <unistd.h>

namespace support {

Directory::Directory() : owner_{::getpid()} {
    const char* tmpdir = std::getenv("TMPDIR");
    std::string base = tmpdir != nullptr ? tmpdir : "";
    if (base.empty() || base.size() > 80) base = "/tmp";
    path_ = base + "/hl-XXXXXX";
    if (::mkdtemp(path_.data()) == nullptr) throw std::system_error{errno, std::generic_category(), "mkdtemp " + path_};
}

Directory::Directory(Directory&& other) noexcept : path_{std::exchange(other.path_, {})}, owner_{other.owner_} {}

Directory::~Directory() {
    if (path_.empty() || owner_ != ::getpid()) return;
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
}

}  // namespace support
