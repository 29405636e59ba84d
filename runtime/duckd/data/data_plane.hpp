// The network thread: judges what arrives, fills slots, hands whole requests to compute, answers for what is done.
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
#include "reply_sender.hpp"
#include "session.hpp"
#include "transport.hpp"

namespace duckfleet::duckd {

class DataPlane {
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
  // A piece of a result that is still to be sent.
  struct Outgoing {
    std::shared_ptr<Session> session;
    Slot* slot;
    std::uint64_t epoch;
    std::size_t vector;
    std::uint32_t begin, end;
    bool first_time;  // not a repetition
  };

  void run();
  void take_installed();
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
  void plan_send(Slot& slot, std::size_t vector, std::uint32_t begin, std::uint32_t end, bool first_time);
  void take_finished();
  bool send_burst(Clock::time_point now);
  void nack_late(Clock::time_point now);
  void log_drops(Clock::time_point now);
  std::chrono::nanoseconds until_next_event(Clock::time_point now) const;
  bool may_spin(Clock::time_point now) const;

  std::unique_ptr<Transport> transport_;
  const ThreadPlan plan_;
  DataCounters& counters_;
  ReplySender sender_;

  std::mutex mutex_;
  std::condition_variable installed_;
  std::shared_ptr<Session> to_install_;
  bool has_to_install_ = false;
  std::atomic<bool> stop_{false};
  std::atomic<bool> waiting_{false};

  // The network thread's own.
  std::shared_ptr<Session> session_;
  std::deque<Outgoing> outbox_;
  Clock::time_point next_send_;
  Clock::time_point last_activity_;
  Clock::time_point next_drop_log_;
  std::uint64_t num_unlogged_ = 0;
  std::array<std::uint64_t, wire::kNumDropReasons> logged_drops_{};
  double echo_tokens_;
  Clock::time_point echo_refilled_;
  std::uint64_t next_epoch_ = 1;

  std::unique_ptr<Compute> compute_;
  std::thread thread_;
};

}  // namespace duckfleet::duckd
