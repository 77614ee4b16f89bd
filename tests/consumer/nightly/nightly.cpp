#include "nightly.hpp"

namespace nightly {

Guard guard(hiredlock::Pool& pool) { return Guard{pool, "lock:nightly-report", std::chrono::seconds{10}, std::defer_lock}; }

}  // namespace nightly
