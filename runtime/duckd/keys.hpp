// The key files of a duck: one line of 64 hexadecimal digits each.
#pragma once

#include <optional>
#include <string>

#include "handshake.hpp"

namespace duckfleet::duckd {

// Nothing, and `error` with the file's name, when one is missing, malformed, or (the secret) open to others.
std::optional<wire::DuckKeys> read_keys(const std::string& fleet_key_file, const std::string& enrolment_file,
                                        std::string& error);

}  // namespace duckfleet::duckd
