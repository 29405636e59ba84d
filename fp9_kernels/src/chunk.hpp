// Logical chunks (docs/formats.md): parsing bytes that came from a network, and packing them into panels.
//
// A packed chunk is position independent and has its own magic, version and header, so it can be a file that a later
// process maps. It is private to a machine: same endianness, may change from version to version.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "panel.hpp"

namespace duckfleet::kernels {

inline constexpr std::uint32_t kMaxSections = 4096;
inline constexpr std::uint32_t kMaxExpertId = 65535;
inline constexpr std::uint32_t kMaxChunkHidden = 1u << 16;
inline constexpr std::uint32_t kMaxIntermediate = 1u << 20;
inline constexpr std::uint64_t kMaxChunkBytes = 1ull << 28;
inline constexpr std::size_t kPackedAlignment = 64;

struct SectionInfo {
  std::uint32_t expert, col0, num_cols;
};

struct ChunkInfo {
  Format format = Format::kF32;
  std::uint32_t layer = 0, hidden = 0, intermediate = 0;
  std::uint16_t slice = 0, part = 0;
  std::vector<SectionInfo> sections;  // ascending expert
  std::uint64_t packed_bytes = 0;     // what pack_chunk() writes
};

// Null when `logical` is a whole, well-formed chunk; else what is wrong with it.
std::optional<std::string> parse_chunk(std::span<const std::byte> logical, ChunkInfo& info);

// Packs a chunk into `packed_out` (at least packed_bytes, 64-byte aligned). Refuses what parse_chunk refuses, NaN codes
// and non-finite f32, bf16 or scales, naming the matrix (gate, up, down), expert, row and column.
std::optional<std::string> pack_chunk(std::span<const std::byte> logical, std::span<std::byte> packed_out);

class PackedChunk {
 public:
  struct Section {
    std::uint32_t expert, col0, num_cols;
    MatrixView gate_up;  // panels 2i: 16 rows of gate, 2i + 1: the same rows of up; columns are hidden
    MatrixView down;     // rows are hidden, columns are the section's
  };

  // A view of packed bytes (64-byte aligned, must outlive it), or nothing where they are not a packed chunk of this
  // version, format and length. Looks at the header and section table only.
  static std::optional<PackedChunk> open(std::span<const std::byte> packed);

  Format format() const noexcept { return format_; }
  std::uint32_t layer() const noexcept { return layer_; }
  std::uint32_t hidden() const noexcept { return hidden_; }
  std::uint32_t intermediate() const noexcept { return intermediate_; }
  std::uint16_t slice() const noexcept { return slice_; }
  std::uint16_t part() const noexcept { return part_; }
  std::span<const Section> sections() const noexcept { return sections_; }
  std::uint64_t packed_bytes() const noexcept { return packed_bytes_; }
  std::uint64_t logical_bytes() const noexcept;  // of the chunk that this was packed from

  // Writes that chunk, byte for byte: packing loses nothing. `logical_out` has logical_bytes(), all zero.
  void unpack(std::span<std::byte> logical_out) const noexcept;

 private:
  Format format_ = Format::kF32;
  std::uint32_t layer_ = 0, hidden_ = 0, intermediate_ = 0;
  std::uint16_t slice_ = 0, part_ = 0;
  std::vector<Section> sections_;
  std::uint64_t packed_bytes_ = 0;
};

}  // namespace duckfleet::kernels
