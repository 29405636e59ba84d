// The version of this duckd: that of the distribution it was built in.
#pragma once

#include <string_view>

namespace duckfleet::duckd {

inline constexpr std::string_view kDuckdVersion = DUCKFLEET_VERSION;

}  // namespace duckfleet::duckd
