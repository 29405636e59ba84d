// Memory modules from the SMBIOS structure table (DMTF DSP0134, type 17). The table is firmware's: every length in it
// is bounded here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace duckfleet::duckd::probe {

struct MemoryModule {
  std::string locator, bank, manufacturer, part_number, serial;
  std::optional<std::uint64_t> size_bytes;  // 0: the socket is empty; nothing: firmware does not know
  std::optional<std::uint32_t> speed_mt_per_s, configured_mt_per_s;
  std::uint8_t type = 0;  // memory type as in the specification: 26 is DDR4, 34 DDR5
};

std::vector<MemoryModule> parse_memory_modules(std::span<const std::byte> table);

}  // namespace duckfleet::duckd::probe
