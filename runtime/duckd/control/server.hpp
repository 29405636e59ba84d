// The control plane's listener: a thread a connection, a limit on their number, nobody able to keep others out.
//
// Connections that have not proved themselves are at most kMaxUnproved; one more ends the oldest of them. Those that
// have are at most kMaxProved; one more ends one that has been idle for a while, or is refused.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "connection.hpp"
#include "handlers.hpp"
#include "handshake.hpp"

namespace duckfleet::duckd {

class ControlServer {
 public:
  ControlServer(DuckContext& duck, std::optional<wire::DuckKeys> keys, ControlTimeouts timeouts);
  ~ControlServer();
  ControlServer(const ControlServer&) = delete;
  ControlServer& operator=(const ControlServer&) = delete;

  // Listens and starts to accept. False, and `error`, when the port cannot be had.
  bool start(const std::string& address, std::uint16_t port, std::string& error);

  // Ends every connection and waits for their threads.
  void stop();

 private:
  using Clock = std::chrono::steady_clock;

  struct Connection {
    int fd = -1;
    std::string peer;
    bool proved = false;
    bool evicted = false;   // shut down, its thread will see
    bool finished = false;  // its thread is about to end
    Clock::time_point last_frame;
    std::thread thread;
  };

  void accept_loop();
  void serve(Connection& connection);
  bool admit(Connection& connection);
  void reap();
  void make_room();

  DuckContext& duck_;
  const std::optional<wire::DuckKeys> keys_;
  const ControlTimeouts timeouts_;
  int listener_ = -1;
  int wakeup_ = -1;
  std::thread acceptor_;

  std::mutex mutex_;
  std::list<Connection> connections_;  // oldest first
  bool stopping_ = false;
};

}  // namespace duckfleet::duckd
