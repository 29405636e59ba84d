// The fused FFN of one part: gate, up, SiLU, down, over a dense layer or a list of (expert, weight) a token.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "chunk.hpp"
#include "kernels.hpp"
#include "team.hpp"

namespace duckfleet::kernels {

struct Route {
  std::uint32_t expert;
  float weight;
};

struct FfnBatch {
  std::uint32_t num_tokens;
  std::uint32_t hidden;  // that of the chunks
  std::uint32_t top_k;   // routes a token; ignored for a dense layer
  const float* x;        // [num_tokens, hidden], any alignment of 4
  const Route* routes;   // [num_tokens, top_k]; null: a dense layer, expert 0 with weight 1
};

// Told as rows of the output become final, from any thread of the team, several at once.
class RowSink {
 public:
  // y[t][row0 .. row0 + num_rows) is final for every token t.
  virtual void rows_ready(std::uint32_t row0, std::uint32_t num_rows) noexcept = 0;

 protected:
  ~RowSink() = default;
};

// Scratch memory of ffn_part(); one a concurrent caller.
class Workspace {
 public:
  Workspace();
  ~Workspace();
  Workspace(Workspace&&) noexcept;
  Workspace& operator=(Workspace&&) noexcept;

  struct Buffers;
  Buffers& buffers() noexcept { return *buffers_; }

 private:
  std::unique_ptr<Buffers> buffers_;
};

// y[num_tokens, hidden] = the part's vector of each token, overwritten. The chunks are all chunks of one (layer, slice,
// part) in any grouping of experts; each expert lies in one of them. A token's experts are distinct; their order in
// `routes` does not matter. A routed expert that none of them holds has no
// columns here and adds nothing. Allocates only while `workspace` is still growing.
void ffn_part(const Kernels& kernels, Team& team, std::span<const PackedChunk> chunks, const FfnBatch& batch, float* y,
              Workspace& workspace, RowSink* sink = nullptr);

}  // namespace duckfleet::kernels
