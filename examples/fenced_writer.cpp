// No lock with a lease can keep a holder from being paused between its last check and its write. A storage that is given the number of the grant can
// refuse that write. Here one holder is stopped (SIGSTOP) past the end of its lease, another one writes, and the first one comes back.
//   fenced_writer FILE          (REDIS_URL=redis://127.0.0.1:6379)
#include <hiredlock/hiredlock.hpp>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/wait.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <stdexcept>
#include <string>

using namespace std::chrono_literals;

/// A file whose first line is the largest number that has written to it. A database does the same with `UPDATE ... WHERE number < :number`.
class Storage {
public:
    explicit Storage(std::string file) : file_(std::move(file)) {}

    bool write(std::uint64_t number, const std::string& text) const {
        const int descriptor = ::open(file_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (descriptor < 0 || ::flock(descriptor, LOCK_EX) != 0) throw std::runtime_error{"cannot write " + file_};
        std::uint64_t largest = 0;
        std::ifstream{file_} >> largest;
        const bool accepted = number > largest;
        if (accepted) std::ofstream{file_} << number << '\n' << text << '\n';
        ::close(descriptor);  // and unlock
        return accepted;
    }

private:
    std::string file_;
};

/// Takes the lock and writes under it. True where the storage accepted it.
bool write(const std::string& name, const Storage& storage, bool is_slow) {
    const char* url = std::getenv("REDIS_URL");
    hiredlock::Pool redis{url ? url : "redis://127.0.0.1:6379"};
    const hiredlock::Lock lock{redis, "lock:fenced", 500ms, hiredlock::fence::Counter{}};
    std::cout << name << " has the lock, with number " << lock.fencing_token() << std::endl;
    lock.check();
    if (is_slow) std::raise(SIGSTOP);  // as a collection of garbage or a pause of the machine would, at the worst moment
    const bool accepted = storage.write(lock.fencing_token(), "written by " + name);
    std::cout << name << " writes, and the storage " << (accepted ? "accepts" : "refuses") << " it" << std::endl;
    return accepted;
}

int main(int argc, char** argv) try {
    if (argc != 2) throw std::invalid_argument{"usage: fenced_writer FILE"};
    const Storage storage{argv[1]};
    const pid_t first = ::fork();  // before there are threads
    if (first == 0) return write("the first holder", storage, true) ? 2 : 0;

    int status = 0;
    if (::waitpid(first, &status, WUNTRACED) != first || !WIFSTOPPED(status)) throw std::runtime_error{"the first holder did not get the lock"};
    const bool accepted = write("the second holder", storage, false);  // once the lease of the first has ended
    ::kill(first, SIGCONT);
    const bool refused = ::waitpid(first, &status, 0) == first && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    return accepted && refused ? 0 : 1;
} catch (const std::exception& error) {  // hiredlock::Error is one
    std::cerr << error.what() << '\n';
    return 1;
}
