#include "chunk.hpp"

#include <cmath>
#include <cstring>

#include "pack.hpp"

namespace duckfleet::kernels {
namespace {

constexpr std::uint32_t kLogicalMagic = 0x4B434644;  // "DFCK"
constexpr std::uint16_t kLogicalVersion = 1;
constexpr std::uint32_t kPackedMagic = 0x4B504644;  // "DFPK"
constexpr std::uint16_t kPackedVersion = 3;
constexpr std::uint64_t kHeaderBytes = 64;
constexpr std::uint64_t kSectionBytes = 16;

template <typename T>
T read(const std::byte* at) noexcept {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}
template <typename T>
void write(std::byte* at, T value) noexcept {
  std::memcpy(at, &value, sizeof value);
}

constexpr std::uint64_t align_up(std::uint64_t bytes) noexcept {
  return (bytes + kPackedAlignment - 1) / kPackedAlignment * kPackedAlignment;
}

// Bytes of a logical matrix, without its scales.
constexpr std::uint64_t code_bytes(Format format, std::uint64_t weights) noexcept {
  switch (format) {
    case Format::kF32: return weights * 4;
    case Format::kBf16: return weights * 2;
    case Format::kE4m3: return weights;
    case Format::kFp9: return weights + (weights + 7) / 8;
  }
  return 0;
}

// Bytes of a section in a logical chunk, after its header.
std::uint64_t body_bytes(Format format, std::uint32_t hidden, std::uint32_t col0, std::uint32_t num_cols) noexcept {
  std::uint64_t bytes = 3 * code_bytes(format, std::uint64_t{num_cols} * hidden);
  if (has_scales(format))
    bytes += 3 * sizeof(float) * tiles_touched(col0, num_cols) * std::uint64_t{tiles_touched(0, hidden)};
  return bytes;
}

std::string check_bounds(const SectionInfo& section, std::int64_t previous_expert) {
  const std::string name = "expert " + std::to_string(section.expert);
  if (section.expert > kMaxExpertId) return name + ": its id is over " + std::to_string(kMaxExpertId);
  if (static_cast<std::int64_t>(section.expert) <= previous_expert)
    return name + " follows expert " + std::to_string(previous_expert) + ": ids must ascend";
  if (section.col0 % 16 != 0 || section.num_cols % 16 != 0)
    return name + ": columns " + std::to_string(section.col0) + " + " + std::to_string(section.num_cols) +
           " are not multiples of 16";
  if (section.col0 > kMaxIntermediate || section.num_cols > kMaxIntermediate - section.col0)
    return name + ": columns reach past " + std::to_string(kMaxIntermediate);
  return {};
}

// ---- the packed form -------------------------------------------------------------------------------------------
// header (64 bytes), section table (16 bytes each, padded to 64), then for each section, each padded to 64 bytes:
// scales of gate_up, stream of gate_up, scales of down, stream of down. Offsets follow from the table.

struct SectionLayout {
  PanelShape gate, down;  // `up` is shaped as `gate`
  PanelShape gate_up;     // both, interleaved by panels
  std::uint64_t gate_up_scales, gate_up_blocks, down_scales, down_blocks, end;
};

SectionLayout lay_out(Format format, std::uint32_t hidden, const SectionInfo& section, std::uint64_t at) noexcept {
  SectionLayout layout;
  layout.gate = PanelShape::of(section.col0, section.num_cols, 0, hidden);
  layout.down = PanelShape::of(0, hidden, section.col0, section.num_cols);
  layout.gate_up = layout.gate;
  layout.gate_up.num_panels *= 2;
  layout.gate_up_scales = at;
  layout.gate_up_blocks = layout.gate_up_scales + align_up(layout.gate_up.scale_bytes(format));
  layout.down_scales = layout.gate_up_blocks + align_up(layout.gate_up.stream_bytes(format));
  layout.down_blocks = layout.down_scales + align_up(layout.down.scale_bytes(format));
  layout.end = layout.down_blocks + align_up(layout.down.stream_bytes(format));
  return layout;
}

std::uint64_t sections_begin(std::uint64_t num_sections) noexcept {
  return align_up(kHeaderBytes + num_sections * kSectionBytes);
}

// One matrix of a section while packing: where its codes and scales lie in the logical chunk.
struct LogicalMatrix {
  const char* name;
  CodeMatrix codes;
  const std::byte* scales;
  std::uint64_t num_scales;
};

LogicalMatrix matrix_at(const char* name, Format format, const std::byte* codes, std::uint64_t weights) noexcept {
  return {name, {format, codes, format == Format::kFp9 ? codes + weights : nullptr}, nullptr, 0};
}

std::string not_finite(const LogicalMatrix& matrix, std::uint32_t expert, Position at) {
  return std::string(matrix.name) + " of expert " + std::to_string(expert) + ", row " + std::to_string(at.row) +
         ", column " + std::to_string(at.col) + ": not a finite " + format_name(matrix.codes.format) + " number";
}

std::optional<std::string> pack_section(const ChunkInfo& info, const SectionInfo& section, const std::byte* in,
                                        std::byte* out, const SectionLayout& layout) {
  const std::uint64_t weights = std::uint64_t{section.num_cols} * info.hidden;
  const std::uint64_t each = code_bytes(info.format, weights);
  LogicalMatrix gate = matrix_at("gate", info.format, in, weights);
  LogicalMatrix up = matrix_at("up", info.format, in + each, weights);
  LogicalMatrix down = matrix_at("down", info.format, in + 2 * each, weights);
  if (has_scales(info.format)) {
    const std::uint64_t num_scales =
        std::uint64_t{tiles_touched(section.col0, section.num_cols)} * tiles_touched(0, info.hidden);
    const std::byte* scales = in + 3 * each;
    for (LogicalMatrix* matrix : {&gate, &up, &down}) {
      matrix->scales = scales;
      matrix->num_scales = num_scales;
      for (std::uint64_t i = 0; i < num_scales; ++i)
        if (!std::isfinite(read<float>(scales + i * sizeof(float))))
          return std::string(matrix->name) + " of expert " + std::to_string(section.expert) + ": scale " +
                 std::to_string(i) + " is not finite";
      scales += num_scales * sizeof(float);
    }
  }
  const MatrixView gate_up_view = MatrixView::of(info.format, layout.gate_up, out + layout.gate_up_blocks, nullptr);
  const MatrixView down_view = MatrixView::of(info.format, layout.down, out + layout.down_blocks, nullptr);
  std::uint32_t first_panel = 0;
  for (const LogicalMatrix* matrix : {&gate, &up}) {
    if (auto bad = pack_rows(matrix->codes, layout.gate, gate_up_view, out + layout.gate_up_blocks, first_panel, 2))
      return not_finite(*matrix, section.expert, *bad);
    if (matrix->scales)
      pack_scales(matrix->scales, layout.gate, section.col0, gate_up_view,
                  reinterpret_cast<float*>(out + layout.gate_up_scales), first_panel, 2);
    ++first_panel;
  }
  if (auto bad = pack_rows(down.codes, layout.down, down_view, out + layout.down_blocks, 0, 1))
    return not_finite(down, section.expert, *bad);
  if (down.scales)
    pack_scales(down.scales, layout.down, 0, down_view, reinterpret_cast<float*>(out + layout.down_scales), 0, 1);
  return std::nullopt;
}

void unpack_section(Format format, std::uint32_t hidden, const PackedChunk::Section& section, std::byte* out) noexcept {
  const std::uint64_t weights = std::uint64_t{section.num_cols} * hidden;
  const PanelShape gate = PanelShape::of(section.col0, section.num_cols, 0, hidden);
  const PanelShape down = PanelShape::of(0, hidden, section.col0, section.num_cols);
  struct Piece {
    const MatrixView& view;
    const PanelShape& shape;
    std::uint32_t row0, panel0, panel_step;
  };
  const Piece pieces[] = {{section.gate_up, gate, section.col0, 0, 2},
                          {section.gate_up, gate, section.col0, 1, 2},
                          {section.down, down, 0, 0, 1}};
  for (const Piece& piece : pieces) {
    unpack_rows(piece.view, piece.shape, piece.panel0, piece.panel_step, out, out + weights);
    out += code_bytes(format, weights);
  }
  if (!has_scales(format)) return;
  for (const Piece& piece : pieces) {
    unpack_scales(piece.view, piece.shape, piece.row0, piece.panel0, piece.panel_step, out);
    out += sizeof(float) * tiles_touched(section.col0, section.num_cols) * std::uint64_t{tiles_touched(0, hidden)};
  }
}

}  // namespace

std::optional<std::string> parse_chunk(std::span<const std::byte> logical, ChunkInfo& info) {
  info = ChunkInfo{};
  const std::byte* in = logical.data();
  if (logical.size() < kHeaderBytes)
    return "chunk of " + std::to_string(logical.size()) + " bytes is shorter than its header of 64";
  if (logical.size() > kMaxChunkBytes)
    return "chunk of " + std::to_string(logical.size()) + " bytes is over the limit of " + std::to_string(kMaxChunkBytes);
  if (read<std::uint32_t>(in) != kLogicalMagic) return "chunk does not begin with the magic DFCK";
  if (const auto version = read<std::uint16_t>(in + 4); version != kLogicalVersion)
    return "chunk version " + std::to_string(version) + " is unknown; this build reads version 1";
  const auto format = read<std::uint8_t>(in + 6);
  if (format >= kNumFormats) return "chunk format id " + std::to_string(format) + " is unknown";
  info.format = static_cast<Format>(format);
  if (read<std::uint8_t>(in + 7) != 0) return "byte 7 of the chunk header is not zero";
  for (std::uint64_t i = 28; i < kHeaderBytes; ++i)
    if (in[i] != std::byte{0}) return "byte " + std::to_string(i) + " of the chunk header is not zero";
  info.layer = read<std::uint32_t>(in + 8);
  info.hidden = read<std::uint32_t>(in + 12);
  info.slice = read<std::uint16_t>(in + 20);
  info.part = read<std::uint16_t>(in + 22);
  info.intermediate = read<std::uint32_t>(in + 24);
  const auto num_sections = read<std::uint32_t>(in + 16);
  if (info.hidden == 0 || info.hidden > kMaxChunkHidden)
    return "chunk hidden size " + std::to_string(info.hidden) + " is not in 1.." + std::to_string(kMaxChunkHidden);
  if (num_sections > kMaxSections)
    return "chunk of " + std::to_string(num_sections) + " sections is over the limit of " + std::to_string(kMaxSections);

  std::uint64_t at = kHeaderBytes;
  std::uint64_t packed = sections_begin(num_sections);
  std::int64_t previous_expert = -1;
  for (std::uint32_t i = 0; i < num_sections; ++i) {
    if (logical.size() - at < kSectionBytes) return "chunk ends inside the header of section " + std::to_string(i);
    const SectionInfo section{read<std::uint32_t>(in + at), read<std::uint32_t>(in + at + 4),
                              read<std::uint32_t>(in + at + 8)};
    if (read<std::uint32_t>(in + at + 12) != 0)
      return "the reserved field of section " + std::to_string(i) + " is not zero";
    if (std::string error = check_bounds(section, previous_expert); !error.empty()) return error;
    at += kSectionBytes;
    const std::uint64_t body = body_bytes(info.format, info.hidden, section.col0, section.num_cols);
    if (logical.size() - at < body)
      return "chunk ends inside expert " + std::to_string(section.expert) + ": it needs " + std::to_string(body) +
             " bytes, " + std::to_string(logical.size() - at) + " are left";
    at += body;
    packed = lay_out(info.format, info.hidden, section, packed).end;
    previous_expert = section.expert;
    info.sections.push_back(section);
  }
  if (at != logical.size()) return std::to_string(logical.size() - at) + " bytes follow the chunk's last section";
  // Filling to 16 rows and columns at most doubles a chunk of hidden >= 16; a tiny one could ask for 16 times its size.
  if (packed > 2 * kMaxChunkBytes) return "chunk would take " + std::to_string(packed) + " bytes packed";
  info.packed_bytes = packed;
  return std::nullopt;
}

std::optional<std::string> pack_chunk(std::span<const std::byte> logical, std::span<std::byte> packed_out) {
  ChunkInfo info;
  if (auto error = parse_chunk(logical, info)) return error;
  if (packed_out.size() < info.packed_bytes) return "the room for the packed chunk is too small";
  std::byte* out = packed_out.data();
  std::memset(out, 0, info.packed_bytes);
  std::uint64_t at = kHeaderBytes, table = kHeaderBytes, place = sections_begin(info.sections.size());
  for (const SectionInfo& section : info.sections) {
    write(out + table, section.expert);
    write(out + table + 4, section.col0);
    write(out + table + 8, section.num_cols);
    table += kSectionBytes;
    const SectionLayout layout = lay_out(info.format, info.hidden, section, place);
    at += kSectionBytes;
    if (auto error = pack_section(info, section, logical.data() + at, out, layout)) return error;
    at += body_bytes(info.format, info.hidden, section.col0, section.num_cols);
    place = layout.end;
  }
  write(out + 4, kPackedVersion);
  write(out + 6, static_cast<std::uint8_t>(info.format));
  write(out + 8, info.layer);
  write(out + 12, info.hidden);
  write(out + 16, static_cast<std::uint32_t>(info.sections.size()));
  write(out + 20, info.slice);
  write(out + 22, info.part);
  write(out + 24, info.intermediate);
  write(out + 32, info.packed_bytes);
  write(out, kPackedMagic);  // last: what was left half written does not open
  return std::nullopt;
}

std::optional<PackedChunk> PackedChunk::open(std::span<const std::byte> packed) {
  const std::byte* in = packed.data();
  if (packed.size() < kHeaderBytes || reinterpret_cast<std::uintptr_t>(in) % kPackedAlignment != 0) return std::nullopt;
  if (read<std::uint32_t>(in) != kPackedMagic || read<std::uint16_t>(in + 4) != kPackedVersion ||
      read<std::uint8_t>(in + 6) >= kNumFormats)
    return std::nullopt;
  PackedChunk chunk;
  chunk.format_ = static_cast<Format>(read<std::uint8_t>(in + 6));
  chunk.layer_ = read<std::uint32_t>(in + 8);
  chunk.hidden_ = read<std::uint32_t>(in + 12);
  const auto num_sections = read<std::uint32_t>(in + 16);
  chunk.slice_ = read<std::uint16_t>(in + 20);
  chunk.part_ = read<std::uint16_t>(in + 22);
  chunk.intermediate_ = read<std::uint32_t>(in + 24);
  chunk.packed_bytes_ = read<std::uint64_t>(in + 32);
  if (chunk.hidden_ == 0 || chunk.hidden_ > kMaxChunkHidden || num_sections > kMaxSections ||
      sections_begin(num_sections) > packed.size())
    return std::nullopt;
  std::uint64_t at = sections_begin(num_sections);
  std::int64_t previous_expert = -1;
  chunk.sections_.reserve(num_sections);
  for (std::uint32_t i = 0; i < num_sections; ++i) {
    const std::byte* row = in + kHeaderBytes + i * kSectionBytes;
    const SectionInfo section{read<std::uint32_t>(row), read<std::uint32_t>(row + 4), read<std::uint32_t>(row + 8)};
    if (!check_bounds(section, previous_expert).empty()) return std::nullopt;
    const SectionLayout layout = lay_out(chunk.format_, chunk.hidden_, section, at);
    if (layout.end > packed.size()) return std::nullopt;
    const bool scaled = has_scales(chunk.format_);
    chunk.sections_.push_back(
        {section.expert, section.col0, section.num_cols,
         MatrixView::of(chunk.format_, layout.gate_up, in + layout.gate_up_blocks,
                        scaled ? reinterpret_cast<const float*>(in + layout.gate_up_scales) : nullptr),
         MatrixView::of(chunk.format_, layout.down, in + layout.down_blocks,
                        scaled ? reinterpret_cast<const float*>(in + layout.down_scales) : nullptr)});
    at = layout.end;
    previous_expert = section.expert;
  }
  if (at != chunk.packed_bytes_ || packed.size() < at) return std::nullopt;
  return chunk;
}

std::uint64_t PackedChunk::logical_bytes() const noexcept {
  std::uint64_t bytes = kHeaderBytes;
  for (const Section& section : sections_)
    bytes += kSectionBytes + body_bytes(format_, hidden_, section.col0, section.num_cols);
  return bytes;
}

void PackedChunk::unpack(std::span<std::byte> logical_out) const noexcept {
  std::byte* out = logical_out.data();
  write(out, kLogicalMagic);
  write(out + 4, kLogicalVersion);
  write(out + 6, static_cast<std::uint8_t>(format_));
  write(out + 8, layer_);
  write(out + 12, hidden_);
  write(out + 16, static_cast<std::uint32_t>(sections_.size()));
  write(out + 20, slice_);
  write(out + 22, part_);
  write(out + 24, intermediate_);
  out += kHeaderBytes;
  for (const Section& section : sections_) {
    write(out, section.expert);
    write(out + 4, section.col0);
    write(out + 8, section.num_cols);
    unpack_section(format_, hidden_, section, out + kSectionBytes);
    out += kSectionBytes + body_bytes(format_, hidden_, section.col0, section.num_cols);
  }
}

}  // namespace duckfleet::kernels
