#include "server.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "giving.hpp"
#include "log.hpp"

namespace duckfleet::duckd {
namespace {

constexpr std::size_t kMaxUnproved = 32;
constexpr std::size_t kMaxProved = 16;
constexpr auto kIdleEnough = std::chrono::seconds(10);

std::string peer_text(const sockaddr_in& name) {
  std::array<char, INET_ADDRSTRLEN> text{};
  inet_ntop(AF_INET, &name.sin_addr, text.data(), text.size());
  return std::string(text.data()) + ":" + std::to_string(ntohs(name.sin_port));
}

}  // namespace

ControlServer::ControlServer(DuckContext& duck, std::optional<wire::DuckKeys> keys, ControlTimeouts timeouts)
    : duck_(duck), keys_(std::move(keys)), timeouts_(timeouts) {}

ControlServer::~ControlServer() {
  stop();
  if (listener_ >= 0) close(listener_);
  if (wakeup_ >= 0) close(wakeup_);
}

bool ControlServer::start(const std::string& address, std::uint16_t port, std::string& error) {
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_port = htons(port);
  if (inet_pton(AF_INET, address.c_str(), &name.sin_addr) != 1) {
    error = "'" + address + "' is no IPv4 address";
    return false;
  }
  const int on = 1;
  listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  wakeup_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (listener_ < 0 || wakeup_ < 0 || setsockopt(listener_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      bind(listener_, reinterpret_cast<const sockaddr*>(&name), sizeof name) != 0 || listen(listener_, 128) != 0) {
    error = "TCP " + address + ":" + std::to_string(port) + ": " + std::strerror(errno);
    return false;
  }
  acceptor_ = std::thread([this] { accept_loop(); });
  return true;
}

void ControlServer::stop() {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(stopping_, true)) return;
    // Reading ends; an answer that is being sent still gets out.
    for (Connection& connection : connections_) ::shutdown(connection.fd, SHUT_RD);
  }
  if (!acceptor_.joinable()) return;
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto put = write(wakeup_, &one, sizeof one);
  acceptor_.join();
  for (Connection& connection : connections_) {
    connection.thread.join();
    close(connection.fd);
  }
  connections_.clear();
}

void ControlServer::accept_loop() {
  for (;;) {
    std::array<pollfd, 2> fds = {pollfd{listener_, POLLIN, 0}, pollfd{wakeup_, POLLIN, 0}};
    if (poll(fds.data(), fds.size(), -1) < 0 && errno != EINTR) return;
    std::uint64_t count = 0;
    [[maybe_unused]] const auto got = read(wakeup_, &count, sizeof count);
    sockaddr_in name{};
    socklen_t length = sizeof name;
    const int fd = accept4(listener_, reinterpret_cast<sockaddr*>(&name), &length, SOCK_CLOEXEC);
    const std::lock_guard lock(mutex_);
    if (stopping_) {
      if (fd >= 0) close(fd);
      return;
    }
    reap();
    if (fd < 0) {
      if (errno == EMFILE || errno == ENFILE || errno == ENOMEM) {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the backlog waits; spinning would not help
      }
      continue;
    }
    const int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    duck_.counters.control.connections.add();
    make_room();
    Connection& connection = connections_.emplace_back();
    connection.fd = fd;
    connection.peer = peer_text(name);
    connection.thread = std::thread([this, &connection] { serve(connection); });
  }
}

// Threads that have ended are joined and their descriptors closed. Only here, so that no descriptor is reused while
// somebody else may still shut it down.
void ControlServer::reap() {
  for (auto it = connections_.begin(); it != connections_.end();) {
    if (!it->finished) {
      ++it;
      continue;
    }
    it->thread.join();
    close(it->fd);
    it = connections_.erase(it);
  }
}

void ControlServer::make_room() {
  const auto unproved = [](const Connection& c) { return !c.proved && !c.evicted && !c.finished; };
  if (static_cast<std::size_t>(std::ranges::count_if(connections_, unproved)) < kMaxUnproved) return;
  const auto oldest = std::ranges::find_if(connections_, unproved);
  log_debug("control_evicted").with("peer", oldest->peer);
  duck_.counters.control.evicted.add();
  ::shutdown(oldest->fd, SHUT_RDWR);
  oldest->evicted = true;
}

bool ControlServer::admit(Connection& connection) {
  const std::lock_guard lock(mutex_);
  if (stopping_) return false;
  connection.last_frame = Clock::now();
  if (connection.proved) return true;
  const auto proved = [](const Connection& c) { return c.proved && !c.evicted && !c.finished; };
  if (static_cast<std::size_t>(std::ranges::count_if(connections_, proved)) >= kMaxProved) {
    auto idlest = connections_.end();
    for (auto it = connections_.begin(); it != connections_.end(); ++it) {
      if (proved(*it) && (idlest == connections_.end() || it->last_frame < idlest->last_frame)) idlest = it;
    }
    if (idlest == connections_.end() || Clock::now() - idlest->last_frame < kIdleEnough) return false;
    duck_.counters.control.evicted.add();
    ::shutdown(idlest->fd, SHUT_RDWR);
    idlest->evicted = true;
  }
  connection.proved = true;
  return true;
}

void ControlServer::serve(Connection& connection) {
  ControlConnection io(connection.fd, keys_ ? &*keys_ : nullptr, timeouts_, duck_.counters.control, connection.peer);
  if (io.greet(duck_.offers)) {
    ControlHandlers handlers(duck_);
    wire::ControlFrame frame;
    while (io.receive(frame)) {
      if (!admit(connection)) {
        duck_.counters.control.refused.add();
        io.send(wire::ControlType::kError, frame.header.request_id,
                wire::error_payload({wire::ErrorCode::kTooManyConnections, "all places for connections are taken; try again"}));
        break;
      }
      if (io.ticket()) {
        give_chunk(io, duck_, frame);
        break;
      }
      const auto answer = handlers.handle(frame);
      if (answer && !io.send(answer->type, frame.header.request_id, answer->payload)) break;
    }
  }
  io.finish();
  duck_.counters.control.closed.add();
  ::shutdown(connection.fd, SHUT_RDWR);
  const std::lock_guard lock(mutex_);
  connection.finished = true;
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto put = write(wakeup_, &one, sizeof one);  // to be reaped
}

}  // namespace duckfleet::duckd
