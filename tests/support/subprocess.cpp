#include "subprocess.hpp"

#include "descriptor.hpp"
#include "eventually.hpp"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

namespace {

// Read by the leak checker at exit. A fork has none of its parent's threads, so what they held looks lost there.
bool in_fork = false;

}  // namespace

extern "C" {
// A fork may start threads of its own under ThreadSanitizer.
const char* __tsan_default_options();
const char* __tsan_default_options() { return "die_after_fork=0"; }
int __lsan_is_turned_off();
int __lsan_is_turned_off() { return in_fork ? 1 : 0; }
}

namespace support {
namespace {

constexpr std::chrono::seconds patience{10};

[[noreturn]] void fail(const std::string& what) { throw std::system_error{errno, std::generic_category(), what}; }

void die_with_parent(pid_t parent) noexcept {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(127);  // it ended before we asked
}

// Async-signal-safe, as all that runs between fork and exec.
void close_on_exec_from(unsigned first, unsigned last) noexcept {
#ifdef SYS_close_range
    constexpr unsigned close_range_cloexec = 4;
    if (::syscall(SYS_close_range, first, ~0U, close_range_cloexec) == 0) return;
#endif
    for (unsigned fd = first; fd < last; ++fd) ::fcntl(static_cast<int>(fd), F_SETFD, FD_CLOEXEC);
}

[[noreturn]] void become(char* const* argv, Subprocess::Streams streams, int report, unsigned descriptors) noexcept {
    sigset_t none;
    sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    std::signal(SIGPIPE, SIG_DFL);
    if (streams.input < 0) streams.input = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    const std::array wanted{streams.input, streams.output, streams.error};
    for (int i = 0; i < 3; ++i) {
        if (const int fd = wanted[static_cast<std::size_t>(i)]; fd >= 0) ::dup2(fd, i);
    }
    close_on_exec_from(3, descriptors);
    ::execvp(argv[0], argv);
    const int error = errno;
    while (::write(report, &error, sizeof error) < 0 && errno == EINTR) {}
    ::_exit(127);
}

[[noreturn]] void run(const std::function<int()>& body, Subprocess::Leave leave) {
    int status = 70;
    try {
        status = body();
    } catch (const std::exception& error) {
        std::fprintf(stderr, "a forked body threw: %s\n", error.what());
    } catch (...) {
        std::fprintf(stderr, "a forked body threw\n");
    }
    if (leave == Subprocess::Leave::by_exit) std::exit(status);
    std::fflush(stdout);
    ::_exit(status);
}

}  // namespace

Subprocess::Subprocess(pid_t pid) noexcept : pid_{pid}, owner_{::getpid()} {}

Subprocess::Subprocess(Subprocess&& other) noexcept
    : pid_{std::exchange(other.pid_, -1)}, owner_{other.owner_}, paused_{other.paused_}, status_{other.status_} {}

Subprocess& Subprocess::operator=(Subprocess&& other) noexcept {
    if (this == &other) return *this;
    if (owner_ == ::getpid()) kill();
    pid_ = std::exchange(other.pid_, -1);
    owner_ = other.owner_;
    paused_ = other.paused_;
    status_ = other.status_;
    return *this;
}

Subprocess::~Subprocess() {
    if (owner_ == ::getpid()) kill();
}

Subprocess Subprocess::exec(const std::vector<std::string>& argv, Streams streams) {
    std::vector<char*> words;
    for (const std::string& word : argv) words.push_back(const_cast<char*>(word.c_str()));
    words.push_back(nullptr);
    const long limit = ::sysconf(_SC_OPEN_MAX);
    const unsigned descriptors = limit > 0 && limit < 65'536 ? static_cast<unsigned>(limit) : 65'536U;

    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) fail("pipe2");
    const Descriptor reader{ends[0]};
    Descriptor writer{ends[1]};
    const pid_t parent = ::getpid();
    const pid_t pid = ::fork();
    if (pid < 0) fail("fork");
    if (pid == 0) {
        die_with_parent(parent);
        become(words.data(), streams, writer.get(), descriptors);
    }
    Subprocess started{pid};
    writer.reset();
    int error = 0;  // the pipe closes unwritten when exec succeeds
    ssize_t got = 0;
    do got = ::read(reader.get(), &error, sizeof error);
    while (got < 0 && errno == EINTR);
    if (got > 0) throw std::system_error{error, std::generic_category(), "cannot run " + argv.at(0)};
    return started;
}

Subprocess Subprocess::fork(const std::function<int()>& body, Leave leave) {
    std::fflush(stdout);  // or the child would print it once more
    const pid_t parent = ::getpid();
    const pid_t pid = ::fork();
    if (pid < 0) fail("fork");
    if (pid == 0) {
        in_fork = true;
        die_with_parent(parent);
        run(body, leave);
    }
    return Subprocess{pid};
}

void Subprocess::note(int wait_status) noexcept {
    if (WIFEXITED(wait_status)) status_ = WEXITSTATUS(wait_status);
    if (WIFSIGNALED(wait_status)) status_ = 128 + WTERMSIG(wait_status);
    if (WIFSTOPPED(wait_status)) paused_ = true;
}

void Subprocess::reap(int options) noexcept {
    if (pid_ < 0 || status_) return;
    int wait_status = 0;
    pid_t got = 0;
    do got = ::waitpid(pid_, &wait_status, options);
    while (got < 0 && errno == EINTR);
    if (got == pid_) note(wait_status);
    if (got < 0) status_ = 255;  // somebody else reaped it: its id may belong to another by now
}

bool Subprocess::is_running() {
    reap(WNOHANG);
    return pid_ >= 0 && !status_;
}

void Subprocess::signal(int number) {
    if (is_running()) ::kill(pid_, number);
}

void Subprocess::kill() {
    signal(SIGKILL);
    reap(0);
}

void Subprocess::terminate(std::chrono::milliseconds limit) {
    signal(SIGTERM);
    resume();
    if (!wait(limit)) kill();
}

void Subprocess::pause() {
    if (paused_) return;
    signal(SIGSTOP);
    const auto stopped_or_gone = [this] {
        reap(WNOHANG | WUNTRACED);  // tells of a stop only when the last thread of the process has stopped
        return paused_ || status_ || pid_ < 0;
    };
    if (!eventually(stopped_or_gone, patience)) throw std::runtime_error{"a process does not stop"};
}

void Subprocess::resume() {
    signal(SIGCONT);
    paused_ = false;
}

std::optional<int> Subprocess::wait(std::chrono::milliseconds limit) {
    eventually([this] { return !is_running(); }, limit);
    return status_;
}

}  // namespace support
