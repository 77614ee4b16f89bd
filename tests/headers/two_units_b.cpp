// The other unit: it has the standard library's names before ours, some of which (std::quoted) look like ours.
#include <algorithm>
#include <iomanip>
#include <numeric>
#include <utility>

#include <hiredlock/hiredlock.hpp>

const std::error_category& category_of_the_other_unit();

const std::error_category& category_of_the_other_unit() { return hiredlock::category(); }
