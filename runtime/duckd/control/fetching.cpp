#include "fetching.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "connection.hpp"

namespace duckfleet::duckd {

// A socket that stop() can end while somebody waits for it.
class PeerFetcher::Socket {
 public:
  explicit Socket(PeerFetcher& owner) : owner_(owner), fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
    const std::lock_guard lock(owner_.mutex_);
    if (fd_ < 0) return;
    if (owner_.stopping_) ::shutdown(fd_, SHUT_RDWR);
    owner_.sockets_.insert(fd_);
  }
  ~Socket() {
    if (fd_ < 0) return;
    {
      const std::lock_guard lock(owner_.mutex_);
      owner_.sockets_.erase(fd_);
    }
    close(fd_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  int fd() const noexcept { return fd_; }

  // 0, or what went wrong.
  int connect_to(const sockaddr_in& name, std::chrono::milliseconds timeout) const noexcept {
    if (fd_ < 0) return errno;
    if (connect(fd_, reinterpret_cast<const sockaddr*>(&name), sizeof name) == 0) return 0;
    if (errno != EINPROGRESS) return errno;
    pollfd one{fd_, POLLOUT, 0};
    if (poll(&one, 1, static_cast<int>(timeout.count())) <= 0) return ETIMEDOUT;
    int error = 0;
    socklen_t length = sizeof error;
    getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &length);
    return error;
  }

 private:
  PeerFetcher& owner_;
  const int fd_;
};

void PeerFetcher::stop() {
  const std::lock_guard lock(mutex_);
  stopping_ = true;
  for (const int fd : sockets_) ::shutdown(fd, SHUT_RDWR);
}

std::string PeerFetcher::fetch(const wire::ChunkFetch& request,
                               const std::function<bool(const wire::ControlFrame&)>& take) {
  const std::uint32_t silence_ms = request.silence_ms, limit_ms = request.limit_ms;  // a packed field has no address
  const std::chrono::milliseconds silence(std::min(silence_ms, limit_ms));
  ControlTimeouts timeouts{silence, silence, silence, std::chrono::milliseconds(0)};
  timeouts.end = std::chrono::steady_clock::now() + std::chrono::milliseconds(limit_ms);
  const Socket socket(*this);
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_port = htons(request.port);
  std::memcpy(&name.sin_addr, request.address, sizeof name.sin_addr);
  if (const int error = socket.connect_to(name, silence)) return std::string("it cannot be reached: ") + std::strerror(error);
  const int on = 1;
  setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);

  wire::TicketSecret secret;
  std::ranges::copy(request.secret, secret.begin());
  wire::PeerCall call(request.ticket, secret);
  sodium_memzero(secret.data(), secret.size());
  ControlCounters uncounted;  // the chunk that did not come is what counts
  ControlConnection io(socket.fd(), nullptr, timeouts, uncounted, "peer");
  if (!io.call(call)) return io.why();
  if (!io.send(wire::ControlType::kChunkGet, 1, {})) return "it takes nothing";
  wire::ControlFrame frame;
  while (io.receive(frame)) {
    if (!take(frame)) return {};
  }
  return io.why();
}

}  // namespace duckfleet::duckd
