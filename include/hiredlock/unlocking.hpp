// Whether unlock() waits to hear that the lock is released.
#pragma once

#include <hiredlock/policy.hpp>
#include <hiredlock/store.hpp>

namespace hiredlock::unlocking {

/// Waits for the server's answer: unlock() then says whether the lock was still ours. One round trip.
struct Confirmed {
    using kind = policy::Unlocking;

    template <LockStore Store>
    static Outcome release(Store& store, const Claim& claim, const Patience& patience) {
        return store.release(claim, patience);
    }
};

/// Sends the release and does not wait: unlock() returns at once and says only that it was sent. The answer is read before the next command on
/// that connection; an error in it goes to the Store's on_error hook.
struct Deferred {
    using kind = policy::Unlocking;

    template <LockStore Store>
    static Outcome release(Store& store, const Claim& claim, const Patience& patience) {
        return store.send_release(claim, patience);
    }
};

}  // namespace hiredlock::unlocking
