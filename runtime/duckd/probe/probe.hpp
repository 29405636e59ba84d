// What this box is, as JSON: for diagnosis by the fleet. A thing that could not be read is listed under "unknown" with
// the reason, and is never a guess.
#pragma once

#include <string>

namespace duckfleet::duckd {

// `measure` adds read bandwidth and takes part of a second.
std::string probe_json(bool measure);

}  // namespace duckfleet::duckd
