// The compute thread: takes whole requests in the order they became whole, runs the kernels, sends the first replies.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "affinity.hpp"
#include "counters.hpp"
#include "dispatch.hpp"
#include "ffn.hpp"
#include "page_buffer.hpp"
#include "reply_sender.hpp"
#include "session.hpp"
#include "team.hpp"
#include "transport.hpp"

namespace duckfleet::duckd {

struct Job {
  std::shared_ptr<Session> session;
  Slot* slot = nullptr;
};

// A job handed back: computed (or not: `failed`), and from where on its replies are still to be sent.
struct FinishedJob {
  Job job;
  bool failed = false;
  std::size_t next_vector = 0;
  std::uint32_t next_offset = 0;
};

class Compute {
 public:
  // `finished` is called on the compute thread after each job; it must not block.
  Compute(const kernels::Kernels& kernels, unsigned num_threads, const ThreadPlan& plan, Transport& transport,
          DataCounters& counters, std::function<void()> finished);
  ~Compute();
  Compute(const Compute&) = delete;
  Compute& operator=(const Compute&) = delete;

  // The network thread's side.
  void submit(Job job);
  std::vector<FinishedJob> take_finished();
  bool busy() const noexcept { return num_pending_.load(std::memory_order_acquire) != 0; }

 private:
  void run();
  bool next(Job& job);
  void compute(const Job& job, FinishedJob& finished);
  void run_part(const Part& part, const Assembly& request, std::span<float> out);
  void send_first(const Job& job, FinishedJob& finished);

  const kernels::Kernels& kernels_;
  const unsigned num_threads_;
  const ThreadPlan plan_;
  DataCounters& counters_;
  const std::function<void()> finished_callback_;
  ReplySender sender_;

  std::mutex mutex_;
  std::condition_variable wakeup_;
  std::deque<Job> queue_;
  std::vector<FinishedJob> finished_;
  bool stop_ = false;
  std::atomic<std::uint32_t> num_queued_{0};   // in queue_
  std::atomic<std::uint32_t> num_pending_{0};  // submitted and not yet finished

  // The compute thread's own.
  std::unique_ptr<kernels::Team> team_;
  kernels::Workspace workspace_;
  PageBuffer widened_, part_sum_;
  std::thread thread_;
};

}  // namespace duckfleet::duckd
