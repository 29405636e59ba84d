// Logical chunks made up for the native tests and the fuzz target.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "format.hpp"

namespace duckfleet::kernels::testing {

inline void append(std::vector<std::byte>& out, const void* data, std::size_t bytes) {
  const auto* at = static_cast<const std::byte*>(data);
  out.insert(out.end(), at, at + bytes);
}
template <typename T>
void append_value(std::vector<std::byte>& out, T value) {
  append(out, &value, sizeof value);
}

struct SectionSpec {
  std::uint32_t expert, col0, num_cols;
};

inline void append_codes(std::vector<std::byte>& out, Format format, std::size_t weights, std::mt19937& rng) {
  for (std::size_t i = 0; i < weights; ++i) {
    const float value = static_cast<float>(static_cast<int>(rng() % 2001) - 1000) * 1e-3f;
    switch (format) {
      case Format::kF32: append_value(out, value); break;
      case Format::kBf16: append_value(out, encode_bf16(value)); break;
      case Format::kE4m3: append_value(out, static_cast<std::uint8_t>(encode_e4m3(value))); break;
      case Format::kFp9: append_value(out, static_cast<std::uint8_t>(encode_fp9(value))); break;
    }
  }
  if (format == Format::kFp9)
    for (std::size_t i = 0; i < (weights + 7) / 8; ++i) append_value(out, static_cast<std::uint8_t>(rng()));
}

inline std::vector<std::byte> make_chunk(Format format, std::uint32_t hidden, const std::vector<SectionSpec>& sections,
                                         std::mt19937& rng) {
  std::vector<std::byte> out;
  append(out, "DFCK", 4);
  append_value(out, std::uint16_t{1});
  append_value(out, static_cast<std::uint8_t>(format));
  append_value(out, std::uint8_t{0});
  append_value(out, std::uint32_t{0});
  append_value(out, hidden);
  append_value(out, static_cast<std::uint32_t>(sections.size()));
  append_value(out, std::uint16_t{0});
  append_value(out, std::uint16_t{0});
  append_value(out, std::uint32_t{512});
  out.resize(64);
  for (const SectionSpec& section : sections) {
    append_value(out, section.expert);
    append_value(out, section.col0);
    append_value(out, section.num_cols);
    append_value(out, std::uint32_t{0});
    for (int matrix = 0; matrix < 3; ++matrix)
      append_codes(out, format, std::size_t{section.num_cols} * hidden, rng);
    if (has_scales(format)) {
      const std::uint32_t scales = 3 * tiles_touched(section.col0, section.num_cols) * tiles_touched(0, hidden);
      for (std::uint32_t i = 0; i < scales; ++i) append_value(out, 0.5f + static_cast<float>(i));
    }
  }
  return out;
}

}  // namespace duckfleet::kernels::testing
