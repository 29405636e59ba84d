// Runs the kernels on one request: its parts in order, while activations still come in and finished rows go out.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "affinity.hpp"
#include "counters.hpp"
#include "dispatch.hpp"
#include "ffn.hpp"
#include "page_buffer.hpp"
#include "session.hpp"
#include "team.hpp"

namespace duckfleet::duckd {

// Who sees to everything else while a request is computed.
class Attendant {
 public:
  // On the computing thread, every few ten microseconds. False: the request is not wanted any more, or cannot go on.
  // `idle`: there is nothing to compute before more of the request has come.
  virtual bool attend(bool idle) noexcept = 0;

  // Rows [row0, row0 + num_rows) of the slot's vector at work are final for every token. From any thread, several at once.
  virtual void rows_final(std::uint32_t row0, std::uint32_t num_rows) noexcept = 0;

  // All of it is; the rows that follow are the slot's next vector's. On the computing thread.
  virtual void vector_final() noexcept = 0;

 protected:
  ~Attendant() = default;
};

class Compute {
 public:
  // The calling thread becomes thread 0 of the team, and alone may call run().
  Compute(const kernels::Kernels& kernels, unsigned num_threads, const ThreadPlan& plan, DataCounters& counters);

  // Computes the vectors that a slot asks for into it; its routes are there, its activations may still be coming in.
  // False: the attendant gave it up. Throws std::bad_alloc.
  bool run(const Session& session, Slot& slot, Attendant& attendant);

 private:
  class PartStream;

  bool run_part(const Part& part, const Assembly& request, std::span<float> out, std::span<float> widened,
                PartStream& stream);

  const kernels::Kernels& kernels_;
  DataCounters& counters_;
  kernels::Team team_;
  kernels::Workspace workspace_;
  PageBuffer widened_, part_sum_;
};

}  // namespace duckfleet::duckd
