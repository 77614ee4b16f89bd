// Votes: what N servers decide together. Pure arithmetic.
#pragma once

#include <cstddef>

namespace hiredlock::detail {

/// The votes of `nodes` servers on one question. The majority is of those configured, not of those that answer.
struct Votes {
    std::size_t nodes = 1;
    std::size_t yes = 0;
    std::size_t no = 0;
    std::size_t failed = 0;  ///< an error, or no answer

    constexpr std::size_t majority() const noexcept { return nodes / 2 + 1; }
    constexpr std::size_t pending() const noexcept { return nodes - yes - no - failed; }

    constexpr bool is_granted() const noexcept { return yes >= majority(); }
    /// No vote that is still out could make it a majority.
    constexpr bool is_out_of_reach() const noexcept { return yes + pending() < majority(); }
    constexpr bool is_decided() const noexcept { return is_granted() || is_out_of_reach(); }
    /// So many said no that even a yes of all who failed or are still out would make no majority.
    constexpr bool is_refused() const noexcept { return nodes - no < majority(); }
    /// A majority answered, and could not agree.
    constexpr bool is_divided() const noexcept { return !is_granted() && no > 0 && yes + no >= majority(); }
    /// Not granted, and for those that said no: the failures alone would leave a majority.
    constexpr bool is_contended() const noexcept { return !is_granted() && nodes - failed >= majority(); }
};

}  // namespace hiredlock::detail
