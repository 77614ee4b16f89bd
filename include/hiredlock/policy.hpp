// How a guard finds its policies: each is a small struct that names its kind; one of a kind is chosen, or the kind's default.
#pragma once

#include <tuple>
#include <type_traits>

namespace hiredlock {

namespace policy {

// The kinds. A policy says which one it is: `using kind = policy::Retry;`
struct Renew;
struct Replication;
struct Fence;
struct Retry;
struct Unlocking;

}  // namespace policy

template <class P>
concept Policy = std::is_class_v<P> && requires { typename P::kind; };

namespace detail {

template <class P, class Kind>
struct IsOfKind : std::false_type {};
template <Policy P, class Kind>
struct IsOfKind<P, Kind> : std::is_same<typename P::kind, Kind> {};

template <class Kind, class... Policies>
inline constexpr int count_of_kind = (0 + ... + (IsOfKind<Policies, Kind>::value ? 1 : 0));

/// True unless two of the policies are of one kind.
template <class... Policies>
inline constexpr bool kinds_differ = true;
template <class First, class... Rest>
inline constexpr bool kinds_differ<First, Rest...> = [] {
    if constexpr (Policy<First>)
        return count_of_kind<typename First::kind, Rest...> == 0 && kinds_differ<Rest...>;
    else
        return kinds_differ<Rest...>;
}();

/// The policy of a kind among those given, or else the default.
template <class Kind, class Default, class... Policies>
struct Choose {
    using type = Default;
};
template <class Kind, class Default, class First, class... Rest>
struct Choose<Kind, Default, First, Rest...>
    : std::conditional_t<IsOfKind<First, Kind>::value, std::type_identity<First>, Choose<Kind, Default, Rest...>> {};

}  // namespace detail

}  // namespace hiredlock
