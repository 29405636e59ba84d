// What a network driver tells by SIOCETHTOOL: its own counters, the link, wake-on-LAN, its firmware.
#pragma once

#include <string>

#include "report.hpp"

namespace duckfleet::duckd::probe {

// Adds to the card's object what the driver answers; what it does not is listed as unknown.
void add_driver(Report& report, const std::string& interface, Json& card);

}  // namespace duckfleet::duckd::probe
