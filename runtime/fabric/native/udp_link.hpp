// Datagrams over a kernel UDP socket, many a system call (sendmmsg, recvmmsg).
#pragma once

#include <memory>

#include "link.hpp"

namespace duckfleet::fabric {

std::unique_ptr<Link> open_udp_link(const DomainConfig& domain);

}  // namespace duckfleet::fabric
