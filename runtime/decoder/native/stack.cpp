#include "stack.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace duckfleet::host {
namespace {

constexpr std::uint32_t kTileTokens = 16;
// Rows that one thread normalises at a time.
constexpr std::uint32_t kRowsAUnit = 16;

std::uint32_t pieces(std::uint32_t n, std::uint32_t size) { return (n + size - 1) / size; }

}  // namespace

Stack::Stack(std::uint32_t hidden, float eps, const kernels::Kernels& kernels, std::uint32_t num_threads)
    : hidden_(hidden), eps_(eps), kernels_(kernels), host_(host_kernels(kernels.name)),
      crew_(std::make_unique<Crew>(num_threads)) {}

void Stack::set_rope(std::uint32_t index, const RopeTable& table) {
  if (ropes_.size() <= index) ropes_.resize(index + 1);
  ropes_[index] = table;
}

void Stack::begin(const float* x, std::uint32_t num_tokens, std::span<const Segment> segments) {
  num_tokens_ = num_tokens;
  segments_.assign(segments.begin(), segments.end());
  segment_of_.resize(num_tokens);
  std::uint32_t max_seen = 0;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const Segment& s = segments[i];
    std::fill_n(segment_of_.begin() + s.row0, s.num_tokens, static_cast<std::uint32_t>(i));
    max_seen = std::max(max_seen, s.start + s.num_tokens);
  }
  tiles_for_ = 0;
  reserve(max_seen);
  std::memcpy(x_.get(), x, std::size_t{num_tokens} * hidden_ * sizeof(float));
}

void Stack::reserve(std::uint32_t max_seen) {
  std::size_t qkv = 0, mixed = 0;
  for (const LayerWeights& layer : layers_) {
    qkv = std::max<std::size_t>(qkv, (layer.num_heads + 2 * layer.num_kv_heads) * layer.head_dim);
    mixed = std::max<std::size_t>(mixed, layer.num_heads * layer.head_dim);
  }
  const std::size_t n = num_tokens_;
  x_.reserve(n * hidden_);
  normed_.reserve(n * hidden_);
  projected_.reserve(n * hidden_);
  qkv_.reserve(n * qkv);
  mixed_.reserve(n * mixed);
  scores_floats_ = kMaxRows * padded(max_seen);
  scores_.reserve(std::size_t{crew_->num_threads()} * scores_floats_);
}

// One tile a key-value head and kTileTokens tokens, the costly ones (late in a sequence) first.
void Stack::cut_tiles(std::uint32_t num_kv_heads) {
  if (tiles_for_ == num_kv_heads) return;
  tiles_for_ = num_kv_heads;
  tiles_.clear();
  for (std::size_t s = 0; s < segments_.size(); ++s) {
    const std::uint32_t n = segments_[s].num_tokens;
    for (std::uint32_t piece = pieces(n, kTileTokens); piece-- > 0;) {
      const std::uint32_t token0 = piece * kTileTokens;
      for (std::uint32_t head = 0; head < num_kv_heads; ++head)
        tiles_.push_back({static_cast<std::uint32_t>(s), head, token0, std::min(kTileTokens, n - token0)});
    }
  }
}

void Stack::project(std::span<const kernels::PackedMatrix* const> matrices, const float* x, std::uint32_t num_rows,
                    float* y, std::size_t y_stride) {
  std::uint32_t num_units = 0;
  for (std::size_t i = 0; i < matrices.size(); ++i) {
    products_[i] = kernels::Product(kernels_, *matrices[i], x, num_rows, y, y_stride, crew_->num_threads(), workspaces_[i]);
    y += matrices[i]->shape().num_rows;
    num_units += products_[i].num_units();
  }
  const std::span<kernels::Product> products(products_.data(), matrices.size());
  const auto prepare = [&](std::uint32_t first, std::uint32_t stride) noexcept {
    for (kernels::Product& product : products) {
      const bool shifted = product.may_shift();
      product.set_shifted(shifted);
      product.prepare(shifted, first, stride);
    }
  };
  if (num_rows <= kRowsAUnit) {
    prepare(0, 1);
  } else {  // too many rows for a shifted call
    auto part = [&](std::uint32_t unit, std::uint32_t) noexcept {
      for (kernels::Product& product : products) product.prepare(false, unit, crew_->num_threads());
    };
    for (kernels::Product& product : products) product.set_shifted(false);
    crew_->share(crew_->num_threads(), part);
  }
  auto body = [&](std::uint32_t unit, std::uint32_t thread) noexcept {
    for (kernels::Product& product : products) {
      if (unit < product.num_units()) return product.unit(unit, thread);
      unit -= product.num_units();
    }
  };
  crew_->share(num_units, body);
}

// Bias, norms and rotation of one token's queries and keys; its key and value go to the cache.
void Stack::place(const LayerWeights& layer, std::uint32_t index, std::uint32_t token) noexcept {
  const Segment& segment = segments_[segment_of_[token]];
  const std::uint32_t position = segment.start + token - segment.row0, dim = layer.head_dim;
  const std::uint32_t num_rotated = layer.num_heads + layer.num_kv_heads;
  const std::size_t width = std::size_t{num_rotated + layer.num_kv_heads} * dim;
  float* row = qkv_.get() + token * width;
  if (layer.qkv_bias) host_.add(row, layer.qkv_bias, static_cast<std::uint32_t>(width));
  const std::uint32_t half = layer.rope_dim / 2;
  const RopeTable& rope = ropes_[layer.rope];
  const float* cos = rope.cos + std::size_t{position} * half;
  const float* sin = rope.sin + std::size_t{position} * half;
  for (std::uint32_t head = 0; head < num_rotated; ++head) {
    float* at = row + std::size_t{head} * dim;
    const float* norm = head < layer.num_heads ? layer.q_norm : layer.k_norm;
    if (norm) host_.rms_norm(at, norm, eps_, dim, at);
    host_.rotate(at, cos, sin, half);
  }
  const std::uint32_t max_len = segment.cache->max_len, value_width = padded(dim);
  for (std::uint32_t head = 0; head < layer.num_kv_heads; ++head) {
    const float* key = row + std::size_t{layer.num_heads + head} * dim;
    const float* value = row + std::size_t{num_rotated + head} * dim;
    float* panel = segment.cache->keys[index] + std::size_t{head} * padded(max_len) * dim +
                   std::size_t{position / kLanes} * kLanes * dim + position % kLanes;
    for (std::uint32_t d = 0; d < dim; ++d) panel[std::size_t{d} * kLanes] = key[d];
    std::memcpy(segment.cache->values[index] + (std::size_t{head} * max_len + position) * value_width, value,
                dim * sizeof(float));
  }
}

void Stack::attend(const LayerWeights& layer, std::uint32_t index, const Tile& tile, std::uint32_t thread) noexcept {
  const Segment& segment = segments_[tile.segment];
  const std::uint32_t dim = layer.head_dim, group = layer.num_heads / layer.num_kv_heads, max_len = segment.cache->max_len;
  const std::size_t qkv_width = std::size_t{layer.num_heads + 2 * layer.num_kv_heads} * dim;
  const std::size_t mixed_width = std::size_t{layer.num_heads} * dim;
  std::array<const float*, kMaxRows> queries;
  std::array<float*, kMaxRows> out;
  std::array<std::uint32_t, kMaxRows> seen;
  AttendArgs args{queries.data(),
                  out.data(),
                  seen.data(),
                  0,
                  dim,
                  segment.cache->keys[index] + std::size_t{tile.kv_head} * padded(max_len) * dim,
                  segment.cache->values[index] + std::size_t{tile.kv_head} * max_len * padded(dim),
                  1.0f / std::sqrt(static_cast<float>(dim)),
                  scores_.get() + std::size_t{thread} * scores_floats_};
  const std::uint32_t num_rows = tile.num_tokens * group;
  for (std::uint32_t row = 0; row < num_rows; ++row) {
    const std::uint32_t token = tile.token0 + row / group, head = tile.kv_head * group + row % group;
    const std::uint32_t i = args.num_rows++;
    queries[i] = qkv_.get() + (segment.row0 + token) * qkv_width + std::size_t{head} * dim;
    out[i] = mixed_.get() + (segment.row0 + token) * mixed_width + std::size_t{head} * dim;
    seen[i] = segment.start + token + 1;
    if (args.num_rows == kMaxRows || row + 1 == num_rows) {
      host_.attend(args);
      args.num_rows = 0;
    }
  }
}

void Stack::attention(std::uint32_t index, const float* last_ffn, float* ffn_in) noexcept {
  const kernels::IeeeMode mode;
  const LayerWeights& layer = layers_[index];
  crew_->wake();
  const std::uint32_t row_units = pieces(num_tokens_, kRowsAUnit);
  const auto rows_of = [&](std::uint32_t unit, auto&& row) noexcept {
    const std::uint32_t end = std::min(num_tokens_, (unit + 1) * kRowsAUnit);
    for (std::uint32_t t = unit * kRowsAUnit; t < end; ++t) row(t, std::size_t{t} * hidden_);
  };
  auto norm_input = [&](std::uint32_t unit, std::uint32_t) noexcept {
    rows_of(unit, [&](std::uint32_t, std::size_t at) noexcept {
      if (last_ffn) host_.add(x_.get() + at, last_ffn + at, hidden_);
      host_.rms_norm(x_.get() + at, layer.input_norm, eps_, hidden_, normed_.get() + at);
    });
  };
  crew_->share(row_units, norm_input);
  project(layer.qkv, normed_.get(), num_tokens_, qkv_.get(),
          std::size_t{layer.num_heads + 2 * layer.num_kv_heads} * layer.head_dim);
  auto place_rows = [&](std::uint32_t unit, std::uint32_t) noexcept {
    rows_of(unit, [&](std::uint32_t t, std::size_t) noexcept { place(layer, index, t); });
  };
  crew_->share(row_units, place_rows);
  cut_tiles(layer.num_kv_heads);
  auto attend_tile = [&](std::uint32_t unit, std::uint32_t thread) noexcept { attend(layer, index, tiles_[unit], thread); };
  crew_->share(static_cast<std::uint32_t>(tiles_.size()), attend_tile);
  project(std::span(&layer.out, 1), mixed_.get(), num_tokens_, projected_.get(), hidden_);
  auto norm_ffn = [&](std::uint32_t unit, std::uint32_t) noexcept {
    rows_of(unit, [&](std::uint32_t, std::size_t at) noexcept {
      if (layer.out_bias) host_.add(projected_.get() + at, layer.out_bias, hidden_);
      host_.add(x_.get() + at, projected_.get() + at, hidden_);
      host_.rms_norm(x_.get() + at, layer.ffn_norm, eps_, hidden_, ffn_in + at);
    });
  };
  crew_->share(row_units, norm_ffn);
  crew_->rest();
}

void Stack::logits(const float* last_ffn, std::span<const std::uint32_t> rows, float* out) {
  if (rows.empty()) return;
  const kernels::IeeeMode mode;
  crew_->wake();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::size_t at = std::size_t{rows[i]} * hidden_;
    float* x = projected_.get() + i * hidden_;
    std::memcpy(x, x_.get() + at, hidden_ * sizeof(float));
    host_.add(x, last_ffn + at, hidden_);
    host_.rms_norm(x, norm_, eps_, hidden_, normed_.get() + i * hidden_);
  }
  project(std::span(&head_, 1), normed_.get(), static_cast<std::uint32_t>(rows.size()), out, vocab_size());
  crew_->rest();
}

}  // namespace duckfleet::host
