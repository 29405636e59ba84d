#include "udp_transport.hpp"

#include <arpa/inet.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "page_buffer.hpp"

namespace duckfleet::duckd {
namespace {

constexpr std::size_t kReceiveBatch = 64;
constexpr std::size_t kSlotBytes = 65536;             // any UDP datagram
constexpr std::size_t kSlotStride = kSlotBytes + 4160;  // not a power of two: slots must not share cache sets
constexpr int kReceiveBufferBytes = 32 << 20;         // two requests of 128 tokens, with the kernel's own overhead
constexpr int kSendBufferBytes = 4 << 20;

// Segmentation offload (Linux UDP_SEGMENT): datagrams of one size cross the kernel as one.
constexpr std::size_t kMaxSegmentedBytes = 65'000;  // below the longest UDP payload

class Descriptor {
 public:
  Descriptor() noexcept = default;
  explicit Descriptor(int fd) noexcept : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// More than net.core.rmem_max allows where we may (CAP_NET_ADMIN), else as much as it allows.
void set_buffer(int fd, int force, int plain, int bytes) noexcept {
  if (setsockopt(fd, SOL_SOCKET, force, &bytes, sizeof bytes) != 0) {
    setsockopt(fd, SOL_SOCKET, plain, &bytes, sizeof bytes);
  }
}

Descriptor bound_socket(const std::string& address, std::uint16_t port, bool shared, std::string& error) {
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_port = htons(port);
  if (inet_pton(AF_INET, address.c_str(), &name.sin_addr) != 1) {
    error = "'" + address + "' is no IPv4 address";
    return {};
  }
  Descriptor fd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;
  if (fd && shared) setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (!fd || bind(fd.get(), reinterpret_cast<const sockaddr*>(&name), sizeof name) != 0) {
    error = "UDP " + address + ":" + std::to_string(port) + ": " + std::strerror(errno);
    return {};
  }
  set_buffer(fd.get(), SO_RCVBUFFORCE, SO_RCVBUF, kReceiveBufferBytes);
  set_buffer(fd.get(), SO_SNDBUFFORCE, SO_SNDBUF, kSendBufferBytes);
  return fd;
}

class UdpTransport final : public Transport {
 public:
  UdpTransport(Descriptor unicast, Descriptor broadcast, Descriptor wakeup, PageBuffer memory)
      : unicast_(std::move(unicast)), broadcast_(std::move(broadcast)), wakeup_(std::move(wakeup)),
        memory_(std::move(memory)) {
    for (std::size_t i = 0; i < kReceiveBatch; ++i) {
      vectors_[i] = {memory_.bytes().data() + i * kSlotStride, kSlotBytes};
      messages_[i] = {};
      messages_[i].msg_hdr.msg_iov = &vectors_[i];
      messages_[i].msg_hdr.msg_iovlen = 1;
      messages_[i].msg_hdr.msg_name = &from_[i];
    }
  }

  std::span<const Received> receive() override {
    // By turns, so that a flood on one socket does not starve the other.
    broadcast_first_ = !broadcast_first_;
    const int first = broadcast_first_ && broadcast_ ? broadcast_.get() : unicast_.get();
    std::size_t count = receive_from(first, 0);
    const int second = first == unicast_.get() ? broadcast_.get() : unicast_.get();
    if (count < kReceiveBatch && second >= 0) count += receive_from(second, count);
    return {received_.data(), count};
  }

  void wait(std::chrono::nanoseconds timeout) override {
    std::array<pollfd, 3> fds = {pollfd{wakeup_.get(), POLLIN, 0}, pollfd{unicast_.get(), POLLIN, 0},
                                 pollfd{broadcast_.get(), POLLIN, 0}};
    timespec limit{};
    limit.tv_sec = static_cast<time_t>(timeout.count() / 1'000'000'000);
    limit.tv_nsec = static_cast<long>(timeout.count() % 1'000'000'000);
    ppoll(fds.data(), broadcast_ ? 3 : 2, &limit, nullptr);
    if (fds[0].revents & POLLIN) {
      std::uint64_t count = 0;
      [[maybe_unused]] const auto got = read(wakeup_.get(), &count, sizeof count);
    }
  }

  void wake() noexcept override {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto put = write(wakeup_.get(), &one, sizeof one);
  }

  std::size_t send(std::span<const std::span<const std::byte>> datagrams, const Peer& to) noexcept override {
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_addr.s_addr = to.address;
    name.sin_port = to.port;
    std::size_t sent = 0;
    while (sent < datagrams.size()) {
      const auto batch = datagrams.subspan(sent, std::min(datagrams.size() - sent, kMaxSendBatch));
      const std::size_t count = send_once(batch, name);
      if (count > 0) {
        sent += count;
      } else if (errno == EAGAIN || errno == ENOBUFS) {
        pollfd room{unicast_.get(), POLLOUT, 0};
        if (poll(&room, 1, 100) <= 0) return sent;  // the host will ask again for what is missing
      } else if (segments_.load(std::memory_order_relaxed) && errno != EINTR && errno != ECONNREFUSED) {
        segments_.store(false, std::memory_order_relaxed);  // a kernel or a device that cannot take several as one
      } else if (errno != EINTR && errno != ECONNREFUSED) {
        return sent;
      }
    }
    return sent;
  }

  std::uint64_t num_overrun() const noexcept override { return overrun(unicast_) + overrun(broadcast_); }

  std::uint64_t receive_buffer_bytes() const noexcept override {
    int bytes = 0;
    socklen_t length = sizeof bytes;
    getsockopt(unicast_.get(), SOL_SOCKET, SO_RCVBUF, &bytes, &length);
    return static_cast<std::uint64_t>(bytes);
  }

 private:
  union Control {
    char bytes[CMSG_SPACE(sizeof(std::uint16_t))];
    cmsghdr align;
  };

  // Of at most kMaxSendBatch datagrams, how many the kernel took; 0 and errno.
  std::size_t send_once(std::span<const std::span<const std::byte>> datagrams, sockaddr_in& to) noexcept {
    std::array<mmsghdr, kMaxSendBatch> messages;
    std::array<iovec, kMaxSendBatch> vectors;
    std::array<Control, kMaxSendBatch> controls;
    std::size_t num_messages = 0;
    const bool segments = segments_.load(std::memory_order_relaxed);
    for (std::size_t first = 0; first < datagrams.size(); ++num_messages) {
      // All of one size but the last, which may be shorter.
      const std::size_t size = datagrams[first].size();
      std::size_t count = 0, bytes = 0;
      do {
        const auto& datagram = datagrams[first + count];
        vectors[first + count] = {const_cast<std::byte*>(datagram.data()), datagram.size()};
        bytes += datagram.size();
        ++count;
      } while (segments && first + count < datagrams.size() && vectors[first + count - 1].iov_len == size &&
               datagrams[first + count].size() <= size && bytes + size <= kMaxSegmentedBytes);
      msghdr& header = messages[num_messages].msg_hdr;
      header = {};
      header.msg_iov = &vectors[first];
      header.msg_iovlen = count;
      header.msg_name = &to;
      header.msg_namelen = sizeof to;
      if (count > 1) {
        header.msg_control = &controls[num_messages];
        header.msg_controllen = sizeof(Control);
        cmsghdr* const control = CMSG_FIRSTHDR(&header);
        control->cmsg_level = SOL_UDP;
        control->cmsg_type = UDP_SEGMENT;
        control->cmsg_len = CMSG_LEN(sizeof(std::uint16_t));
        const auto segment = static_cast<std::uint16_t>(size);
        std::memcpy(CMSG_DATA(control), &segment, sizeof segment);
      }
      first += count;
    }
    const int sent = sendmmsg(unicast_.get(), messages.data(), static_cast<unsigned>(num_messages), 0);
    std::size_t done = 0;
    for (int i = 0; i < sent; ++i) done += messages[static_cast<std::size_t>(i)].msg_hdr.msg_iovlen;
    return done;
  }

  std::size_t receive_from(int fd, std::size_t start) noexcept {
    for (std::size_t i = start; i < kReceiveBatch; ++i) messages_[i].msg_hdr.msg_namelen = sizeof(sockaddr_in);
    const int count = recvmmsg(fd, &messages_[start], static_cast<unsigned>(kReceiveBatch - start), MSG_DONTWAIT, nullptr);
    if (count <= 0) return 0;
    const std::size_t end = start + static_cast<std::size_t>(count);
    for (std::size_t i = start; i < end; ++i) {
      received_[i].bytes = {memory_.bytes().data() + i * kSlotStride, messages_[i].msg_len};
      received_[i].from = {from_[i].sin_addr.s_addr, from_[i].sin_port};
      received_[i].truncated = (messages_[i].msg_hdr.msg_flags & MSG_TRUNC) != 0;
    }
    return end - start;
  }

  static std::uint64_t overrun(const Descriptor& fd) noexcept {
    std::array<std::uint32_t, SK_MEMINFO_VARS> info{};
    socklen_t length = sizeof info;
    if (!fd || getsockopt(fd.get(), SOL_SOCKET, SO_MEMINFO, info.data(), &length) != 0) return 0;
    return info[SK_MEMINFO_DROPS];
  }

  Descriptor unicast_, broadcast_, wakeup_;
  bool broadcast_first_ = false;
  std::atomic<bool> segments_{true};  // until the kernel refuses
  PageBuffer memory_;  // kReceiveBatch slots
  std::array<iovec, kReceiveBatch> vectors_{};
  std::array<sockaddr_in, kReceiveBatch> from_{};
  std::array<mmsghdr, kReceiveBatch> messages_{};
  std::array<Received, kReceiveBatch> received_{};
};

}  // namespace

std::unique_ptr<Transport> open_udp(const TransportOptions& options, std::string& error) {
  Descriptor unicast = bound_socket(options.bind, options.port, false, error);
  if (!unicast) return nullptr;
  Descriptor broadcast;
  if (!options.broadcast.empty()) {
    broadcast = bound_socket(options.broadcast, options.port, true, error);
    if (!broadcast) return nullptr;
  }
  Descriptor wakeup(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wakeup) {
    error = std::string("eventfd: ") + std::strerror(errno);
    return nullptr;
  }
  auto memory = PageBuffer::anonymous(kReceiveBatch * kSlotStride);
  if (!memory) {
    error = "no memory for receive slots";
    return nullptr;
  }
  return std::make_unique<UdpTransport>(std::move(unicast), std::move(broadcast), std::move(wakeup), std::move(*memory));
}

}  // namespace duckfleet::duckd
