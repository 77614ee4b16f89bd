// A program of two translation units that both include the umbrella.
#include <hiredlock/hiredlock.hpp>

const std::error_category& category_of_the_other_unit();

int main() { return hiredlock::category() == category_of_the_other_unit() ? 0 : 1; }
