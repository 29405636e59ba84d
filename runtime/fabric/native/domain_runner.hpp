// One broadcast domain at work: its protocol, its link and its thread.
//
// Who moves datagrams depends on `Attendance`. kWorker: the domain's thread does, so that several domains are
// served at the same time. kWaiter: the thread that waits for a forward does it itself, without a hand-over; the
// domain's thread then only looks in now and again, for the time in which nobody waits.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "completion.hpp"
#include "config.hpp"
#include "domain_protocol.hpp"
#include "link.hpp"

namespace duckfleet::fabric {

enum class Attendance { kWorker, kWaiter };

class DomainRunner {
 public:
  // Throws std::invalid_argument.
  DomainRunner(const SessionConfig& session, const DomainConfig& domain, std::unique_ptr<Link> link,
               std::uint32_t spin_us, Attendance attendance, std::array<Completion, kNumLanes>& completions);
  ~DomainRunner();
  DomainRunner(const DomainRunner&) = delete;
  DomainRunner& operator=(const DomainRunner&) = delete;

  void start();
  void stop();

  // Start a request: its datagrams go out from here (kWaiter) or from the domain's thread.
  void begin(unsigned lane, const Request& request, std::shared_ptr<const DomainDuties> duties);
  void end(unsigned lane);

  // For kWaiter: move datagrams until something may have changed, at most until `until_us`. Spins while
  // `spin_until_us` has not passed. Returns at once when another thread is at it already: false.
  bool attend(std::uint64_t spin_until_us, std::uint64_t until_us);

  [[nodiscard]] const VectorSlot& slot(unsigned lane, std::size_t vector) const { return protocol_.slot(lane, vector); }
  void report_missing(unsigned lane, std::vector<VectorReport>& out);
  void report_silent(unsigned lane, std::uint64_t silence_us, std::vector<VectorReport>& out);

  // As in DomainProtocol; whoever has a request under way is not disturbed.
  void make_room(const DomainDuties& duties);
  void rekey(std::size_t duck, std::uint32_t key_id, const KeyBytes& key);

  struct Snapshot {
    ProtocolCounters protocol;
    LinkCounters link;
    std::vector<DuckCounters> ducks;
  };
  [[nodiscard]] Snapshot snapshot();
  [[nodiscard]] std::size_t receive_buffer_bytes() const { return link_->receive_buffer_bytes(); }
  [[nodiscard]] Endpoint endpoint() const { return link_->local(); }

 private:
  bool step();         // takes the lock
  bool step_locked();  // receive, timers, send; true when anything happened
  void flush_locked(std::uint64_t now);
  void work();
  void look_in();
  [[nodiscard]] std::uint64_t sleep_us(std::uint64_t until_us);

  std::unique_ptr<Link> link_;
  const std::uint32_t spin_us_;
  const Attendance attendance_;
  std::array<Completion, kNumLanes>& completions_;
  const std::size_t batch_limit_;

  std::mutex mutex_;  // over protocol, batch and the link's sending and receiving
  DomainProtocol protocol_;
  std::array<OutDatagram, DomainProtocol::kMaxBatch> batch_;
  std::size_t batch_begin_ = 0;
  std::size_t batch_end_ = 0;

  std::atomic<bool> stopping_{false};
  std::atomic<bool> blocked_{false};          // the thread sleeps, or is about to
  std::atomic<std::uint32_t> posted_{0};      // counts begin() and end(), so that no sleep misses one
  std::atomic<bool> attended_{false};         // a waiter is inside attend()
  std::atomic<std::uint64_t> last_begin_us_{0};
  std::thread thread_;
};

}  // namespace duckfleet::fabric
