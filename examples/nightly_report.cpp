// A job that must run once a day though many workers could start it. Run it twice at the same time: one writes the report, the other says so.
//   nightly_report WORKER_NAME OUTPUT_FILE [KEY]          (REDIS_URL=redis://127.0.0.1:6379)
#include <hiredlock/hiredlock.hpp>

#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>

using namespace std::chrono_literals;

std::string title_of_today() {
    const std::time_t now = std::time(nullptr);
    std::ostringstream out;
    out << "Nightly report of " << std::put_time(std::gmtime(&now), "%Y-%m-%d");
    return out.str();
}

std::string first_line(const std::filesystem::path& file) {
    std::ifstream in{file};
    std::string line;
    std::getline(in, line);
    return line;
}

std::string compose(const std::string& title, const std::string& worker) {
    std::this_thread::sleep_for(1s);  // where the real work would be
    return title + "\nwritten by " + worker + "\n";
}

/// Whoever reads the file sees the old report or the new one, never half of one.
void replace(const std::filesystem::path& file, const std::string& text, std::string_view unique) {
    const std::filesystem::path draft = file.string() + '.' + std::string{unique};
    std::ofstream out{draft};
    if (!(out << text).flush()) throw std::runtime_error{"cannot write " + draft.string()};
    std::filesystem::rename(draft, file);
}

int main(int argc, char** argv) try {
    if (argc != 3 && argc != 4) throw std::invalid_argument{"usage: nightly_report WORKER_NAME OUTPUT_FILE [KEY]"};
    const std::string worker = argv[1];
    const std::filesystem::path report = argv[2];
    const std::string title = title_of_today();
    const char* url = std::getenv("REDIS_URL");

    hiredlock::Pool redis{url ? url : "redis://127.0.0.1:6379"};
    const hiredlock::Lock lock{redis, argc == 4 ? argv[3] : "lock:nightly-report", 30s, std::try_to_lock};
    if (!lock) {
        std::cout << worker << ": the report is already being written, nothing to do\n";
        return 0;
    }
    // The lock keeps two workers from writing at the same time. It does not remember that the job is done: a worker that comes after the
    // first one has finished gets it too. So the holder looks, under the lock, for today's report. (Workers on several machines need
    // a place for it that all of them see: a shared disk, an object store, a table.)
    if (first_line(report) == title) {
        std::cout << worker << ": today's report is already there, nothing to do\n";
        return 0;
    }
    const std::string text = compose(title, worker);
    lock.check();  // another worker may be at it by now if that took longer than the lock lasts
    replace(report, text, lock.token());
    std::cout << worker << ": wrote the report\n";
} catch (const std::exception& error) {  // hiredlock::Error is one
    std::cerr << error.what() << '\n';
    return 1;
}
