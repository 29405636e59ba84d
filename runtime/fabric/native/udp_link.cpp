#include "udp_link.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/udp.h>
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

// Segmentation offload (Linux UDP_SEGMENT and UDP_GRO): datagrams of one size to one address cross the kernel as one.
constexpr std::size_t kMaxSegments = 64;        // of one send; the kernel's own limit in its first versions
constexpr std::size_t kMaxSendBytes = 65'000;   // of one send, below the longest UDP payload
constexpr std::size_t kReceiveBytes = 65'536;   // whatever one receive can bring
constexpr std::size_t kReceiveStride = kReceiveBytes + 4'160;  // not a power of two: buffers must not share cache sets
constexpr int kUdpGro = 104;                    // UDP_GRO of <linux/udp.h>, which clashes with <netinet/udp.h>

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
        longest_datagram_(sizeof(wire::DataHeader) + domain.fragment_bytes),
        receive_memory_(kReceiveStride * kReceiveBatch) {
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
    // Not every kernel has it; then datagrams come one by one.
    ::setsockopt(socket_.get(), SOL_UDP, kUdpGro, &on, sizeof on);
    for (std::size_t i = 0; i < kReceiveBatch; ++i) {
      in_vectors_[i] = {receive_memory_.data() + i * kReceiveStride, kReceiveBytes};
      in_headers_[i].msg_hdr = msghdr{};
      in_headers_[i].msg_hdr.msg_name = &in_names_[i];
      in_headers_[i].msg_hdr.msg_iov = &in_vectors_[i];
      in_headers_[i].msg_hdr.msg_iovlen = 1;
      in_headers_[i].msg_hdr.msg_control = &in_controls_[i];
    }
    in_datagrams_.reserve(kReceiveBatch * kReceiveBytes / sizeof(wire::DataHeader));
  }

  std::size_t send(std::span<const OutDatagram> datagrams) override {
    std::size_t done = 0;
    while (done < datagrams.size()) {
      const auto rest = datagrams.subspan(done, std::min(kSendBatch, datagrams.size() - done));
      const std::size_t num_messages = prepare(rest);
      const int sent = ::sendmmsg(socket_.get(), out_headers_.data(), static_cast<unsigned>(num_messages), MSG_DONTWAIT);
      if (sent > 0) {
        for (std::size_t i = 0; i < static_cast<std::size_t>(sent); ++i) done += count_sent(datagrams.subspan(done), i);
        continue;
      }
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS) return done;
      if (segments_ && out_segments_[0] > 1) {
        // A device without checksum offload cannot take them as one.
        segments_ = false;
        continue;
      }
      // One destination that cannot be reached must not keep the others from being asked: it counts as a lost
      // datagram, and the deadline names the duck.
      counters_.last_send_errno = errno;
      ++counters_.send_errors;
      ++done;
    }
    return done;
  }

  std::span<const InDatagram> receive() override {
    for (mmsghdr& h : in_headers_) {
      h.msg_hdr.msg_namelen = sizeof(sockaddr_in);
      h.msg_hdr.msg_controllen = sizeof(Control);
    }
    const int n = ::recvmmsg(socket_.get(), in_headers_.data(), kReceiveBatch, MSG_DONTWAIT, nullptr);
    in_datagrams_.clear();
    for (int i = 0; i < n; ++i) take_apart(static_cast<std::size_t>(i));
    counters_.received_datagrams += in_datagrams_.size();
    return in_datagrams_;
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
  union Control {
    char bytes[CMSG_SPACE(sizeof(int))];
    cmsghdr align;
  };

  // Messages for sendmmsg out of datagrams, as few as may be; how many datagrams each holds is in out_segments_.
  std::size_t prepare(std::span<const OutDatagram> datagrams) {
    std::size_t num_messages = 0;
    for (std::size_t first = 0; first < datagrams.size(); ++num_messages) {
      const OutDatagram& head = datagrams[first];
      std::size_t count = 0;
      std::size_t bytes = 0;
      // All of one size but the last, which may be shorter.
      while (first + count < datagrams.size()) {
        const OutDatagram& d = datagrams[first + count];
        const bool fits = count == 0 || (segments_ && count < kMaxSegments && bytes + d.bytes <= kMaxSendBytes &&
                                         d.to == head.to && d.bytes <= head.bytes &&
                                         datagrams[first + count - 1].bytes == head.bytes);
        if (!fits) break;
        out_vectors_[first + count] = {const_cast<std::byte*>(d.data), d.bytes};
        bytes += d.bytes;
        ++count;
      }
      msghdr& h = out_headers_[num_messages].msg_hdr;
      h = msghdr{};
      out_names_[num_messages] = to_sockaddr(head.to);
      h.msg_name = &out_names_[num_messages];
      h.msg_namelen = sizeof(sockaddr_in);
      h.msg_iov = &out_vectors_[first];
      h.msg_iovlen = count;
      if (count > 1) {
        h.msg_control = &out_controls_[num_messages];
        h.msg_controllen = CMSG_SPACE(sizeof(std::uint16_t));
        cmsghdr* const c = CMSG_FIRSTHDR(&h);
        c->cmsg_level = SOL_UDP;
        c->cmsg_type = UDP_SEGMENT;
        c->cmsg_len = CMSG_LEN(sizeof(std::uint16_t));
        const auto segment = static_cast<std::uint16_t>(head.bytes);
        std::memcpy(CMSG_DATA(c), &segment, sizeof segment);
      }
      out_segments_[num_messages] = count;
      first += count;
    }
    return num_messages;
  }

  std::size_t count_sent(std::span<const OutDatagram> datagrams, std::size_t message) {
    const std::size_t count = out_segments_[message];
    for (const OutDatagram& d : datagrams.first(count)) counters_.sent_bytes += d.bytes;
    counters_.sent_datagrams += count;
    return count;
  }

  // One receive is one datagram, or several of one size from one address.
  void take_apart(std::size_t index) {
    msghdr& h = in_headers_[index].msg_hdr;
    const std::size_t bytes = in_headers_[index].msg_len;
    std::size_t segment = bytes;
    for (cmsghdr* c = CMSG_FIRSTHDR(&h); c != nullptr; c = CMSG_NXTHDR(&h, c)) {
      if (c->cmsg_level != SOL_UDP || c->cmsg_type != kUdpGro) continue;
      int size = 0;
      std::memcpy(&size, CMSG_DATA(c), sizeof size);
      if (size > 0) segment = static_cast<std::size_t>(size);
    }
    counters_.received_bytes += bytes;
    const Endpoint from{in_names_[index].sin_addr.s_addr, in_names_[index].sin_port};
    const bool cut_off = (h.msg_flags & MSG_TRUNC) != 0;
    std::size_t at = 0;
    do {
      const std::size_t size = std::min(segment, bytes - at);
      if (in_datagrams_.size() == in_datagrams_.capacity()) return;  // a flood of the smallest: lost, as on the wire
      in_datagrams_.push_back({receive_memory_.data() + index * kReceiveStride + at, static_cast<std::uint32_t>(size), from,
                               cut_off || size > longest_datagram_});
      at += size;
    } while (at < bytes);
  }

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
  std::size_t longest_datagram_;
  bool segments_ = true;  // until the kernel refuses
  std::vector<std::byte> receive_memory_;
  std::array<mmsghdr, kReceiveBatch> in_headers_{};
  std::array<iovec, kReceiveBatch> in_vectors_{};
  std::array<sockaddr_in, kReceiveBatch> in_names_{};
  std::array<Control, kReceiveBatch> in_controls_{};
  std::vector<InDatagram> in_datagrams_;
  std::array<mmsghdr, kSendBatch> out_headers_{};
  std::array<iovec, kSendBatch> out_vectors_{};
  std::array<sockaddr_in, kSendBatch> out_names_{};
  std::array<Control, kSendBatch> out_controls_{};
  std::array<std::size_t, kSendBatch> out_segments_{};
};

}  // namespace

std::unique_ptr<Link> open_udp_link(const DomainConfig& domain) { return std::make_unique<UdpLink>(domain); }

}  // namespace duckfleet::fabric
