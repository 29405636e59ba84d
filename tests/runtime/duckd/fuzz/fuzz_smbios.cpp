// Any firmware table.
#include <cstdint>

#include "smbios.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  duckfleet::duckd::probe::parse_memory_modules({reinterpret_cast<const std::byte*>(data), size});
  return 0;
}
