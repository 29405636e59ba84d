// The data thread: judges what arrives, fills slots, computes requests, answers for what is done.
//
// It is thread 0 of the team that computes. Between pieces of a computation it looks at the network: a request is begun
// when its first activations are there, its finished rows go out while others are computed, and the next one is received
// meanwhile. So there is nothing to hand from thread to thread, and a duck of one core loses no time to switching.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "affinity.hpp"
#include "compute.hpp"
#include "counters.hpp"
#include "outbox.hpp"
#include "row_progress.hpp"
#include "session.hpp"
#include "transport.hpp"

namespace duckfleet::duckd {

class DataPlane final : private Attendant {
 public:
  DataPlane(std::unique_ptr<Transport> transport, const kernels::Kernels& kernels, unsigned num_threads,
            const ThreadPlan& plan, DataCounters& counters);
  ~DataPlane();
  DataPlane(const DataPlane&) = delete;
  DataPlane& operator=(const DataPlane&) = delete;

  // Makes `session` (null: none) the one that is served, and returns when it is. Any thread.
  void install(std::shared_ptr<Session> session);

  const Transport& transport() const noexcept { return *transport_; }

 private:
  static constexpr std::uint32_t kMaxNacks = 12;  // for a request, in vain: then the host's own deadline decides
  static constexpr double kEchoBurst = 4096;      // outside a session echoes are bounded, so that they are no load

  // The request that is being computed.
  struct Running {
    std::shared_ptr<Session> session;
    Slot* slot = nullptr;        // null: nothing is
    std::size_t vector = 0;      // of the slot, to which the rows belong that become final now
    std::uint32_t sent_rows = 0;  // of that vector, handed to the outbox
  };

  // Attendant
  bool attend(bool idle) noexcept override;
  void rows_final(std::uint32_t row0, std::uint32_t num_rows) noexcept override;
  void vector_final() noexcept override;

  void run(const kernels::Kernels& kernels, unsigned num_threads);
  bool see_to_network();
  void take_installed();
  bool compute_next();
  Slot* early_start();
  void send_rows(std::uint32_t rows);
  void on_datagram(const Received& received);
  wire::DropReason judge(const Received& received);
  wire::DropReason on_echo(const wire::Datagram& datagram, const Received& received);
  wire::DropReason on_request(const wire::Datagram& datagram);
  wire::DropReason on_nack_reply(const wire::Datagram& datagram);
  wire::DropReason begin_request(Lane& lane, const wire::Datagram& datagram);
  wire::DropReason add_fragment(Slot& slot, const wire::Datagram& datagram);
  wire::DropReason check_place(const wire::DataHeader& header) const;
  void move_on(Lane& lane, std::uint32_t step);
  Slot* free_slot(Lane& lane, std::uint32_t step);
  void send_missing(Slot& slot);
  void send_again(Slot& slot, std::size_t vector, std::uint32_t begin, std::uint32_t end);
  void nack_late(Clock::time_point now);
  void log_drops(Clock::time_point now);
  std::chrono::nanoseconds until_next_event(Clock::time_point now) const;
  bool may_spin(Clock::time_point now) const;

  std::unique_ptr<Transport> transport_;
  const ThreadPlan plan_;
  DataCounters& counters_;
  std::mutex mutex_;
  std::condition_variable installed_;
  std::shared_ptr<Session> to_install_;
  std::atomic<bool> has_to_install_{false};
  std::atomic<bool> stop_{false};

  // The data thread's own.
  Outbox outbox_;
  std::shared_ptr<Session> session_;
  std::deque<Slot*> queue_;  // whole requests in the order in which they became whole
  Running running_;
  RowProgress progress_;
  Clock::time_point next_attendance_;
  Clock::time_point last_activity_;
  Clock::time_point next_drop_log_;
  std::uint64_t num_unlogged_ = 0;
  std::array<std::uint64_t, wire::kNumDropReasons> logged_drops_{};
  double echo_tokens_;
  Clock::time_point echo_refilled_;
  std::uint64_t next_epoch_ = 1;

  std::unique_ptr<Compute> compute_;
  const bool may_start_early_;
  std::thread thread_;
};

}  // namespace duckfleet::duckd
