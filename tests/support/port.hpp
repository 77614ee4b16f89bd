// Finds TCP ports of 127.0.0.1 that nobody uses.
#pragma once

#include "descriptor.hpp"

namespace support {

/// A port between 10000 and 21999 that is free now. It lies below the range that the kernel takes the ports of outgoing connections from,
/// and so does the port 10000 above it, which is the bus of a cluster node. Another process may take it before you do: be ready to ask
/// again.
int free_port();

/// A TCP socket bound to `port` of 127.0.0.1, not listening; without a value if somebody else has the port. It lacks SO_REUSEADDR, so that
/// nobody can bind the port as well while it does not listen.
Descriptor bind_port(int port);

}  // namespace support
