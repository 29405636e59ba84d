// Activations as they travel: f32 as is, or rounded to nearest even into f16 or bf16.
#pragma once

#include <cstddef>
#include <span>

#include "wire.hpp"

namespace duckfleet::fabric {

// to.size() == x.size() * element size of `dtype`. kF32 copies.
void round_activations(std::span<const float> x, wire::WireDtype dtype, std::span<std::byte> to);

}  // namespace duckfleet::fabric
