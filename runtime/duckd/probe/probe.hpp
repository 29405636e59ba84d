// What this box is, as JSON: for diagnosis by the fleet. A thing that could not be read is listed under "unknown" with
// the reason, and is never a guess.
#pragma once

#include <string>

#include "report.hpp"

namespace duckfleet::duckd {

std::string probe_json(const probe::Measuring& measuring);

}  // namespace duckfleet::duckd
