#include "host_kernels.hpp"

#include <string_view>

namespace duckfleet::host {

const HostKernels& host_kernels(const char* implementation) noexcept {
  return std::string_view(implementation) == "scalar" ? scalar_host_kernels() : avx2_host_kernels();
}

}  // namespace duckfleet::host
