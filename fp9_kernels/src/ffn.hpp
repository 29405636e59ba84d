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

// Between a running ffn_part() and whoever has the activations coming in and the results going out.
class FfnStream {
 public:
  static constexpr std::uint32_t kGiveUp = 0xFFFFFFFF;

  // How many leading columns of every token's x are there by now (hidden: all), or kGiveUp: y is not wanted any more.
  // Called by the thread that called ffn_part(), every few ten microseconds until it returns, also when all columns
  // are there: it may see to other things in the call. `idle`: nothing is left to do before more columns come.
  virtual std::uint32_t columns_ready(bool idle) noexcept = 0;

  // y[t][row0 .. row0 + num_rows) is final for every token t. From any thread of the team, several at once.
  virtual void rows_ready(std::uint32_t row0, std::uint32_t num_rows) noexcept = 0;

 protected:
  ~FfnStream() = default;
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
// With a stream, x may still be filled while this runs, and the routes are read before the first call of
// columns_ready(); without one all of x is there. False: the stream gave up.
bool ffn_part(const Kernels& kernels, Team& team, std::span<const PackedChunk> chunks, const FfnBatch& batch, float* y,
              Workspace& workspace, FfnStream* stream = nullptr);

}  // namespace duckfleet::kernels
