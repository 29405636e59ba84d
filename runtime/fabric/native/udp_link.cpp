#include "udp_link.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

namespace duckfleet::fabric {
namespace {

constexpr std::size_t kSendBatch = 64;
constexpr std::size_t kReceiveBatch = 32;
constexpr int kWantedBufferBytes = 64 << 20;

sockaddr_in to_sockaddr(const Endpoint& e) {
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_addr.s_addr = e.address_be;
  a.sin_port = e.port_be;
  return a;
}

std::string text_of(const Endpoint& e) {
  char text[INET_ADDRSTRLEN] = {};
  in_addr a{e.address_be};
  inet_ntop(AF_INET, &a, text, sizeof text);
  return std::string(text) + ":" + std::to_string(ntohs(e.port_be));
}

class Fd {
 public:
  explicit Fd(int fd) : fd_(fd) {}
  ~Fd() {
    if (fd_ >= 0) ::close(fd_);
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  [[nodiscard]] int get() const { return fd_; }

 private:
  int fd_;
};

class UdpLink final : public Link {
 public:
  explicit UdpLink(const DomainConfig& domain)
      : socket_(::socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)),
        wake_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
        // One byte more than the longest datagram, so that a longer one shows itself.
        slot_bytes_((sizeof(wire::DataHeader) + domain.fragment_bytes + 1 + 63) / 64 * 64),
        receive_memory_(slot_bytes_ * kReceiveBatch) {
    const std::string where = "domain " + domain.name + ", host address " + text_of(domain.host) + ": ";
    if (socket_.get() < 0 || wake_.get() < 0) throw LinkError(where + std::strerror(errno));
    const int on = 1;
    if (::setsockopt(socket_.get(), SOL_SOCKET, SO_BROADCAST, &on, sizeof on) != 0) {
      throw LinkError(where + "broadcast is not allowed: " + std::strerror(errno));
    }
    widen(SO_RCVBUFFORCE, SO_RCVBUF);
    widen(SO_SNDBUFFORCE, SO_SNDBUF);
    const sockaddr_in local = to_sockaddr(domain.host);
    if (::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&local), sizeof local) != 0) {
      throw LinkError(where + "cannot bind: " + std::strerror(errno) +
                      "; check host_address in the site file against `ip address`");
    }
    for (std::size_t i = 0; i < kReceiveBatch; ++i) {
      in_vectors_[i] = {receive_memory_.data() + i * slot_bytes_, slot_bytes_};
      in_headers_[i].msg_hdr = msghdr{};
      in_headers_[i].msg_hdr.msg_name = &in_names_[i];
      in_headers_[i].msg_hdr.msg_iov = &in_vectors_[i];
      in_headers_[i].msg_hdr.msg_iovlen = 1;
    }
    for (std::size_t i = 0; i < kSendBatch; ++i) {
      out_headers_[i].msg_hdr = msghdr{};
      out_headers_[i].msg_hdr.msg_name = &out_names_[i];
      out_headers_[i].msg_hdr.msg_namelen = sizeof(sockaddr_in);
      out_headers_[i].msg_hdr.msg_iov = &out_vectors_[i];
      out_headers_[i].msg_hdr.msg_iovlen = 1;
    }
  }

  std::size_t send(std::span<const OutDatagram> datagrams) override {
    std::size_t done = 0;
    while (done < datagrams.size()) {
      const std::size_t n = std::min(kSendBatch, datagrams.size() - done);
      for (std::size_t i = 0; i < n; ++i) {
        const OutDatagram& d = datagrams[done + i];
        out_names_[i] = to_sockaddr(d.to);
        out_vectors_[i] = {const_cast<std::byte*>(d.data), d.bytes};
      }
      const int sent = ::sendmmsg(socket_.get(), out_headers_.data(), static_cast<unsigned>(n), MSG_DONTWAIT);
      if (sent > 0) {
        for (int i = 0; i < sent; ++i) counters_.sent_bytes += datagrams[done + static_cast<std::size_t>(i)].bytes;
        counters_.sent_datagrams += static_cast<std::uint64_t>(sent);
        done += static_cast<std::size_t>(sent);
        continue;
      }
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS) return done;
      // One destination that cannot be reached must not keep the others from being asked: it counts as a lost
      // datagram, and the deadline names the duck.
      counters_.last_send_errno = errno;
      ++counters_.send_errors;
      ++done;
    }
    return done;
  }

  std::span<const InDatagram> receive() override {
    for (mmsghdr& h : in_headers_) h.msg_hdr.msg_namelen = sizeof(sockaddr_in);
    const int n = ::recvmmsg(socket_.get(), in_headers_.data(), kReceiveBatch, MSG_DONTWAIT, nullptr);
    if (n <= 0) return {};
    for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
      in_datagrams_[i] = {receive_memory_.data() + i * slot_bytes_, in_headers_[i].msg_len,
                          Endpoint{in_names_[i].sin_addr.s_addr, in_names_[i].sin_port},
                          (in_headers_[i].msg_hdr.msg_flags & MSG_TRUNC) != 0};
      counters_.received_bytes += in_headers_[i].msg_len;
    }
    counters_.received_datagrams += static_cast<std::uint64_t>(n);
    return {in_datagrams_.data(), static_cast<std::size_t>(n)};
  }

  void wait(std::uint64_t timeout_us, bool for_room) override {
    pollfd fds[2] = {{socket_.get(), static_cast<short>(POLLIN | (for_room ? POLLOUT : 0)), 0},
                     {wake_.get(), POLLIN, 0}};
    block(fds, 2, timeout_us);
  }

  void sleep(std::uint64_t timeout_us) override {
    pollfd fds[1] = {{wake_.get(), POLLIN, 0}};
    block(fds, 1, timeout_us);
  }

  void wake() override {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t n = ::write(wake_.get(), &one, sizeof one);
  }

  [[nodiscard]] Endpoint local() const override {
    sockaddr_in name{};
    socklen_t length = sizeof name;
    ::getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&name), &length);
    return {name.sin_addr.s_addr, name.sin_port};
  }

  [[nodiscard]] std::size_t receive_buffer_bytes() const override {
    int bytes = 0;
    socklen_t length = sizeof bytes;
    ::getsockopt(socket_.get(), SOL_SOCKET, SO_RCVBUF, &bytes, &length);
    return static_cast<std::size_t>(bytes);
  }

 private:
  // The last of `fds` is the wake-up.
  void block(pollfd* fds, nfds_t count, std::uint64_t timeout_us) {
    const timespec timeout = {static_cast<time_t>(timeout_us / 1'000'000),
                              static_cast<long>(timeout_us % 1'000'000 * 1000)};
    if (::ppoll(fds, count, &timeout, nullptr) > 0 && (fds[count - 1].revents & POLLIN) != 0) {
      std::uint64_t wakes = 0;
      [[maybe_unused]] const ssize_t n = ::read(wake_.get(), &wakes, sizeof wakes);
    }
  }

  // As large as allowed: past the system's limit where we have the right to, up to it where not.
  void widen(int forced, int plain) {
    if (::setsockopt(socket_.get(), SOL_SOCKET, forced, &kWantedBufferBytes, sizeof kWantedBufferBytes) != 0) {
      ::setsockopt(socket_.get(), SOL_SOCKET, plain, &kWantedBufferBytes, sizeof kWantedBufferBytes);
    }
  }

  Fd socket_;
  Fd wake_;
  std::size_t slot_bytes_;
  std::vector<std::byte> receive_memory_;
  std::array<mmsghdr, kReceiveBatch> in_headers_{};
  std::array<iovec, kReceiveBatch> in_vectors_{};
  std::array<sockaddr_in, kReceiveBatch> in_names_{};
  std::array<InDatagram, kReceiveBatch> in_datagrams_{};
  std::array<mmsghdr, kSendBatch> out_headers_{};
  std::array<iovec, kSendBatch> out_vectors_{};
  std::array<sockaddr_in, kSendBatch> out_names_{};
};

}  // namespace

std::unique_ptr<Link> open_udp_link(const DomainConfig& domain) { return std::make_unique<UdpLink>(domain); }

}  // namespace duckfleet::fabric
