// Any datagrams, one after the other, through classify() and into an assembly, as the network thread does it.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "assembly.hpp"
#include "parse.hpp"

namespace {

using namespace duckfleet;
using duckd::Assembly;

constexpr std::uint32_t kHidden = 40;

void require(bool holds) {
  if (!holds) std::abort();
}

void check_promises(const wire::Datagram& datagram) {
  const wire::DataHeader& h = datagram.header;
  require(datagram.payload.size() == h.fragment_bytes);
  require(std::uint64_t{h.offset} + h.fragment_bytes <= h.message_bytes);
  if (datagram.kind() == wire::DataKind::kRequest) require(h.message_bytes == wire::request_bytes(h));
  if (datagram.kind() == wire::DataKind::kReply) require(h.message_bytes == wire::reply_bytes(h));
}

class Lane {
 public:
  Lane() { require(assembly_.reserve(kHidden, wire::WireDtype::kF32)); }

  void take(const wire::Datagram& datagram) {
    const wire::DataHeader& h = datagram.header;
    if (datagram.kind() != wire::DataKind::kRequest || h.hidden != kHidden || h.wire_dtype != 0) return;
    if (!begun_ || h.step != assembly_.header().step) {
      assembly_.begin(h);
      begun_ = true;
    }
    const bool was_complete = assembly_.complete();
    const auto added = assembly_.add(h, datagram.payload);
    require(!(was_complete && (added == Assembly::Added::kNew || added == Assembly::Added::kComplete)));
    require(assembly_.missing().empty() == assembly_.complete());
    require((assembly_.columns_ready() == kHidden && assembly_.has_routes()) == assembly_.complete());
    if (added == Assembly::Added::kComplete) {
      duckd::routes_ascend(assembly_.routes(), assembly_.header().top_k);
      std::uint64_t sum = 0;
      for (const std::byte byte : assembly_.activations()) sum += static_cast<std::uint64_t>(byte);
      asm volatile("" : : "r"(sum));
    }
  }

 private:
  Assembly assembly_;
  bool begun_ = false;
};

// Every other datagram is lifted over the first hurdles, so that the later ones are tried as well.
void lift(std::vector<std::byte>& bytes) {
  if (bytes.size() < sizeof(wire::DataHeader)) return;
  wire::DataHeader h;
  std::memcpy(&h, bytes.data(), sizeof h);
  h.magic = wire::kDataMagic;
  h.version = wire::kVersion;
  h.kind = static_cast<std::uint8_t>(1 + h.kind % 7);
  h.lane &= 1;
  h.wire_dtype = 0;
  h.hidden = kHidden;
  h.num_tokens = static_cast<std::uint16_t>(1 + h.num_tokens % 5);
  h.top_k %= 4;
  h.step %= 3;
  h.message_bytes = static_cast<std::uint32_t>(wire::request_bytes(h));
  h.offset = h.offset % 16 * 64;
  h.fragment_bytes = static_cast<std::uint32_t>(bytes.size() - sizeof h);
  std::memcpy(bytes.data(), &h, sizeof h);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Lane lane;
  while (size >= 2) {
    const bool lifted = data[0] & 1;
    const std::size_t length = std::min<std::size_t>(size - 2, (data[0] >> 1) * 4u + data[1]);
    const auto* begin = reinterpret_cast<const std::byte*>(data + 2);
    std::vector<std::byte> bytes(begin, begin + length);
    if (lifted) lift(bytes);
    const wire::Datagram datagram = wire::classify(bytes);
    if (datagram.ok()) {
      check_promises(datagram);
      lane.take(datagram);
    }
    data += 2 + length;
    size -= 2 + length;
  }
  return 0;
}
