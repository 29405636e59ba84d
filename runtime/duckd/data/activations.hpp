// Activations as they travel, widened to f32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "wire.hpp"

namespace duckfleet::duckd {

// Exact: every f16 and bf16 value is an f32 value. `out` has as many elements as `wire` holds.
void widen(wire::WireDtype dtype, std::span<const std::byte> wire, std::span<float> out) noexcept;

}  // namespace duckfleet::duckd
