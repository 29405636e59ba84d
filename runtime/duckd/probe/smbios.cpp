#include "smbios.hpp"

#include <cstring>
#include <utility>

#include "report.hpp"

namespace duckfleet::duckd::probe {
namespace {

constexpr std::uint8_t kMemoryDevice = 17;
constexpr std::uint8_t kEndOfTable = 127;

// One structure: its formatted area, and the strings after it.
struct Structure {
  std::span<const std::byte> fields;  // header included
  std::span<const std::byte> strings;

  template <typename T>
  std::optional<T> get(std::size_t offset) const {
    if (offset + sizeof(T) > fields.size()) return std::nullopt;
    T value;
    std::memcpy(&value, fields.data() + offset, sizeof value);
    return value;
  }

  std::string text(std::size_t offset) const {
    const auto number = get<std::uint8_t>(offset).value_or(0);
    std::size_t at = 0;
    for (unsigned i = 1; i <= number && at < strings.size(); ++i) {
      const auto* begin = reinterpret_cast<const char*>(strings.data() + at);
      const std::size_t length = strnlen(begin, strings.size() - at);
      if (i == number) return std::string(trimmed({begin, length}));
      at += length + 1;
    }
    return {};
  }
};

// The structure at the front of `table`, which is moved past it; nothing where the table ends or is broken.
std::optional<Structure> next_structure(std::span<const std::byte>& table) {
  if (table.size() < 4) return std::nullopt;
  const auto length = static_cast<std::size_t>(table[1]);
  if (length < 4 || length > table.size()) return std::nullopt;
  std::size_t end = length;
  while (end + 1 < table.size() && (table[end] != std::byte{0} || table[end + 1] != std::byte{0})) ++end;
  if (end + 1 >= table.size()) return std::nullopt;
  const Structure structure{table.first(length), table.subspan(length, end + 1 - length)};
  table = table.subspan(end + 2);
  return structure;
}

// Bit 15 clear: megabytes, set: kilobytes; 0x7FFF: look at the extended size; 0xFFFF: unknown.
std::optional<std::uint64_t> module_size(const Structure& structure) {
  const auto size = structure.get<std::uint16_t>(0x0C);
  if (!size || *size == 0xFFFF) return std::nullopt;
  if (*size == 0x7FFF) {
    const auto extended = structure.get<std::uint32_t>(0x1C);
    if (!extended) return std::nullopt;
    return std::uint64_t{*extended & 0x7FFFFFFFu} << 20;
  }
  return (*size & 0x8000) ? std::uint64_t{*size & 0x7FFFu} << 10 : std::uint64_t{*size} << 20;
}

std::optional<std::uint32_t> speed(const Structure& structure, std::size_t offset) {
  const auto value = structure.get<std::uint16_t>(offset);
  if (!value || *value == 0 || *value == 0xFFFF) return std::nullopt;
  return *value;
}

template <typename T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

}  // namespace

std::vector<MemoryModule> parse_memory_modules(std::span<const std::byte> table) {
  std::vector<MemoryModule> modules;
  while (const auto structure = next_structure(table)) {
    const auto type = static_cast<std::uint8_t>(structure->fields[0]);
    if (type == kEndOfTable) break;
    if (type != kMemoryDevice) continue;
    MemoryModule module;
    module.size_bytes = module_size(*structure);
    module.locator = structure->text(0x10);
    module.bank = structure->text(0x11);
    module.type = structure->get<std::uint8_t>(0x12).value_or(0);
    module.speed_mt_per_s = speed(*structure, 0x15);
    module.manufacturer = structure->text(0x17);
    module.serial = structure->text(0x18);
    module.part_number = structure->text(0x1A);
    module.configured_mt_per_s = speed(*structure, 0x20);
    modules.push_back(std::move(module));
  }
  return modules;
}

void add_board(Report& report) {
  std::string reason;
  const auto table = read_file("/sys/firmware/dmi/tables/DMI", reason);
  if (table) {
    Json list = Json::array();
    for (const MemoryModule& module : parse_memory_modules(std::as_bytes(std::span(*table)))) {
      list.push_back({{"locator", module.locator},
                      {"bank", module.bank},
                      {"size_bytes", or_null(module.size_bytes)},
                      {"type", module.type},
                      {"speed_mt_per_s", or_null(module.speed_mt_per_s)},
                      {"configured_mt_per_s", or_null(module.configured_mt_per_s)},
                      {"manufacturer", module.manufacturer},
                      {"part_number", module.part_number},
                      {"serial", module.serial}});
    }
    report.took("memory.modules", "/sys/firmware/dmi/tables/DMI");
    report.values["memory"]["modules"] = std::move(list);
  } else {
    report.values["memory"]["modules"] = nullptr;
    report.unknown("memory.modules", reason);
  }
  Json board = Json::object();
  for (const char* name : {"sys_vendor", "product_name", "product_serial", "product_uuid", "board_vendor", "board_name",
                           "board_serial", "bios_vendor", "bios_version", "bios_date"}) {
    board[name] = line_or_null(std::string("/sys/class/dmi/id/") + name);
    if (board[name].is_null()) report.unknown(std::string("board.") + name, "/sys/class/dmi/id cannot be read");
  }
  report.took("board", "/sys/class/dmi/id");
  report.values["board"] = std::move(board);
}

}  // namespace duckfleet::duckd::probe
