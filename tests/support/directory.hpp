// A directory of our own with a short path, for a path of a unix socket ends at 107 bytes.
#pragma once

#include <string>

#include <sys/types.h>

namespace support {

/// Made below TMPDIR (below /tmp if that is unset or long); removed with all that is in it by the destructor, but not by that of a copy in
/// a forked child.
class Directory {
public:
    Directory();
    Directory(Directory&& other) noexcept;
    Directory& operator=(Directory&&) = delete;
    ~Directory();

    const std::string& path() const noexcept { return path_; }
    std::string file(const std::string& name) const { return path_ + '/' + name; }

private:
    std::string path_;
    pid_t owner_;
};

}  // namespace support
