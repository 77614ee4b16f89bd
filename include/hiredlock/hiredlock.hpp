// hiredlock: locks across processes and machines, in Redis. Include this one.
#pragma once

#include <hiredlock/connection.hpp>
#include <hiredlock/endpoint.hpp>
#include <hiredlock/error.hpp>
#include <hiredlock/fence.hpp>
#include <hiredlock/lease.hpp>
#include <hiredlock/lock.hpp>
#include <hiredlock/pool.hpp>
#include <hiredlock/redlock.hpp>
#include <hiredlock/renew.hpp>
#include <hiredlock/replication.hpp>
#include <hiredlock/retry.hpp>
#include <hiredlock/store.hpp>
#include <hiredlock/token.hpp>
#include <hiredlock/unlocking.hpp>

namespace hiredlock {

inline constexpr int version_major = 1;
inline constexpr int version_minor = 0;
inline constexpr int version_patch = 0;

}  // namespace hiredlock
