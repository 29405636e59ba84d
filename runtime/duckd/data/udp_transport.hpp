// Datagrams over the kernel's UDP sockets.
#pragma once

#include <memory>
#include <string>

#include "transport.hpp"

namespace duckfleet::duckd {

// One socket on bind:port, and one on broadcast:port that shares its address with others where a broadcast is given.
std::unique_ptr<Transport> open_udp(const TransportOptions& options, std::string& error);

}  // namespace duckfleet::duckd
