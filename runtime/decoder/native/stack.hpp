// The host's side of a decoder of grouped-query attention: everything of a forward but embedding and FFN, natively.
//
// A forward is begin(), then attention(layer) before and an FFN after it for every layer in turn, then logits(). The FFN
// is somebody else's: attention() takes the last one's result and leaves the input of the next. Nothing is allocated
// once the buffers have grown to the longest batch and context.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "crew.hpp"
#include "host_kernels.hpp"
#include "matrix.hpp"

namespace duckfleet::host {

// Matrices and vectors belong to the caller and outlive the stack. Null: there is none.
struct LayerWeights {
  const float* input_norm = nullptr;  // [hidden]
  const float* ffn_norm = nullptr;    // [hidden]
  std::array<const kernels::PackedMatrix*, 3> qkv{};
  const float* qkv_bias = nullptr;  // [rows of all three]
  const kernels::PackedMatrix* out = nullptr;
  const float* out_bias = nullptr;  // [hidden]
  const float* q_norm = nullptr;    // [head_dim]
  const float* k_norm = nullptr;    // [head_dim]
  std::uint32_t num_heads = 0, num_kv_heads = 0, head_dim = 0;
  std::uint32_t rope = 0;      // which table
  std::uint32_t rope_dim = 0;  // dimensions that are rotated
};

// cos and sin of positions [0, num_positions), each [num_positions, dim / 2].
struct RopeTable {
  const float* cos = nullptr;
  const float* sin = nullptr;
  std::uint32_t num_positions = 0;
};

// The caches of one sequence, by layer: keys in panels of 16 positions [kv_heads][panels][head_dim][16], values
// [kv_heads][max_len][padded(head_dim)].
struct SequenceCache {
  std::vector<float*> keys, values;
  std::uint32_t max_len = 0;
};

// Rows [row0, row0 + num_tokens) of a batch are the tokens of a sequence from position `start`.
struct Segment {
  const SequenceCache* cache = nullptr;
  std::uint32_t row0 = 0, num_tokens = 0, start = 0;
};

class Stack {
 public:
  Stack(std::uint32_t hidden, float eps, const kernels::Kernels& kernels, std::uint32_t num_threads);

  void add_layer(const LayerWeights& layer) { layers_.push_back(layer); }
  void set_rope(std::uint32_t index, const RopeTable& table);
  void set_head(const float* norm, const kernels::PackedMatrix* head) { norm_ = norm, head_ = head; }

  [[nodiscard]] std::uint32_t hidden() const noexcept { return hidden_; }
  [[nodiscard]] std::uint32_t num_layers() const noexcept { return static_cast<std::uint32_t>(layers_.size()); }
  [[nodiscard]] std::uint32_t num_tokens() const noexcept { return num_tokens_; }
  [[nodiscard]] const LayerWeights& layer(std::uint32_t index) const { return layers_[index]; }
  [[nodiscard]] const RopeTable& rope(std::uint32_t index) const { return ropes_[index]; }
  [[nodiscard]] std::uint32_t num_ropes() const noexcept { return static_cast<std::uint32_t>(ropes_.size()); }
  [[nodiscard]] std::uint32_t vocab_size() const noexcept { return head_->shape().num_rows; }

  // x [num_tokens, hidden]: embeddings. The segments' positions are within their caches and rope tables.
  void begin(const float* x, std::uint32_t num_tokens, std::span<const Segment> segments);
  // Adds `last_ffn` [num_tokens, hidden] (null before the first layer), runs the layer's attention, and writes what its
  // FFN takes, `ffn_in` [num_tokens, hidden].
  void attention(std::uint32_t layer, const float* last_ffn, float* ffn_in) noexcept;
  // Adds `last_ffn` and gives the logits [num_rows, vocab] of some rows of the batch. It is over then.
  void logits(const float* last_ffn, std::span<const std::uint32_t> rows, float* out);

 private:
  struct Tile {
    std::uint32_t segment, kv_head, token0, num_tokens;
  };

  void reserve(std::uint32_t max_seen);
  void project(std::span<const kernels::PackedMatrix* const> matrices, const float* x, std::uint32_t num_rows, float* y,
               std::size_t y_stride);
  void place(const LayerWeights& layer, std::uint32_t index, std::uint32_t token) noexcept;
  void attend(const LayerWeights& layer, std::uint32_t index, const Tile& tile, std::uint32_t thread) noexcept;
  void cut_tiles(std::uint32_t num_kv_heads);

  const std::uint32_t hidden_;
  const float eps_;
  const kernels::Kernels& kernels_;
  const HostKernels& host_;
  std::vector<LayerWeights> layers_;
  std::vector<RopeTable> ropes_;
  const float* norm_ = nullptr;
  const kernels::PackedMatrix* head_ = nullptr;

  std::uint32_t num_tokens_ = 0;
  std::vector<Segment> segments_;
  std::vector<std::uint32_t> segment_of_;  // by token
  std::vector<Tile> tiles_;
  std::uint32_t tiles_for_ = 0;  // number of key-value heads that tiles_ is cut for
  std::uint32_t scores_floats_ = 0;
  kernels::GrowingArray<float> x_, normed_, qkv_, mixed_, projected_, scores_;
  std::array<kernels::Product, 3> products_;
  std::array<kernels::MatrixWorkspace, 3> workspaces_;
  std::unique_ptr<Crew> crew_;
};

}  // namespace duckfleet::host
