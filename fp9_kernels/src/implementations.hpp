// One accessor an implementation; dispatch.cpp decides which of them this CPU may call.
#pragma once

#include "kernels.hpp"

namespace duckfleet::kernels {

const Kernels& scalar_kernels() noexcept;
const Kernels& avx2_kernels() noexcept;  // needs AVX2, FMA and F16C

}  // namespace duckfleet::kernels
