// The layout of every struct on the wire, as data: what `duckd --layout` prints.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace duckfleet::wire {

struct FieldLayout {
  std::string_view name;
  std::size_t offset;
  std::size_t size;
};

struct StructLayout {
  std::string_view name;
  std::size_t size;
  std::span<const FieldLayout> fields;
};

std::span<const StructLayout> layouts() noexcept;

// "struct NAME SIZE", then "  FIELD OFFSET SIZE" for each field.
std::string layout_text();

}  // namespace duckfleet::wire
