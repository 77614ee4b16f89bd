#pragma once

#include <hiredlock/hiredlock.hpp>

namespace nightly {

using Guard = hiredlock::Lock<hiredlock::Pool>;

Guard guard(hiredlock::Pool& pool);

}  // namespace nightly
