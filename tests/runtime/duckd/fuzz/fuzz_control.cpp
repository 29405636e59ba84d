// Any control frames, one after the other, into the handlers of a duck without sockets.
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "auth.hpp"
#include "chunk_store.hpp"
#include "control_frame.hpp"
#include "counters.hpp"
#include "handlers.hpp"
#include "log.hpp"
#include "placement.hpp"

namespace {

using namespace duckfleet;
using namespace duckfleet::duckd;
using wire::ControlType;

struct Duck {
  Counters counters;
  ChunkStore store{""};
  Placement placement{store, [](std::shared_ptr<Session>) {}};
  DuckContext context{.store = store,
                      .placement = placement,
                      .counters = counters,
                      .stats_json = [] { return std::string("{}"); },
                      .probe_json = [](const duckfleet::duckd::probe::Measuring&) { return std::string("{}"); },
                      .shut_down = [] {},
                      .fetch = [this](const auto&, const auto& take) { return answer(take); },
                      .kernels = "none",
                      .version = "0",
                      .hostname = "fuzz"};
  ControlHandlers handlers{context};

  void send(ControlType type, std::span<const std::byte> payload) {
    const auto bytes = wire::make_control_frame(type, 1, payload);
    wire::ControlFrame frame;
    if (wire::parse_control_frame(bytes, frame)) return;
    const auto answer = handlers.handle(frame);
    if (answer && answer->payload.size() > wire::kMaxControlPayload) std::abort();
  }

  // Another duck's answer: the frames that `peer` still has, as they come from a connection.
  std::string answer(const std::function<bool(const wire::ControlFrame&)>& take) {
    while (peer.size() >= 3) {
      const auto length = std::min<std::size_t>(peer.size() - 3, std::to_integer<std::size_t>(peer[1]) |
                                                                     std::to_integer<std::size_t>(peer[2]) << 8);
      const auto bytes = wire::make_control_frame(static_cast<ControlType>(peer[0]), 1, peer.subspan(3, length));
      peer = peer.subspan(3 + length);
      wire::ControlFrame frame;
      if (!wire::parse_control_frame(bytes, frame) && !take(frame)) return {};
    }
    return "no more";
  }

  // A fetch that is well formed, answered by any frames.
  void fetch(std::span<const std::byte> frames) {
    wire::ChunkFetch request{};
    request.silence_ms = request.limit_ms = 1;
    if (!wire::take(frames, request.digest)) return;
    peer = frames;
    send(ControlType::kChunkFetch, wire::bytes_of(request));
  }

  // The bytes as a chunk under its true digest, so that what they say is looked at.
  void put(std::span<const std::byte> content) {
    Hasher hasher;
    hasher.update(content);
    const Digest digest = hasher.finish();
    wire::ChunkBegin begin{};
    std::memcpy(begin.digest, digest.data(), digest.size());
    begin.total_bytes = content.size();
    send(ControlType::kChunkBegin, wire::bytes_of(begin));
    auto data = wire::bytes_of(wire::ChunkData{0});
    data.insert(data.end(), content.begin(), content.end());
    send(ControlType::kChunkData, data);
    send(ControlType::kChunkEnd, {});
    if (store.has(digest)) held.insert(held.end(), digest.begin(), digest.end());
  }

  // An assignment with the payload's fields over what is held.
  void assign(std::span<const std::byte> payload) {
    wire::Assign header{};
    if (!wire::take(payload, header)) return;
    header.num_chunks = static_cast<std::uint32_t>(held.size() / sizeof(Digest));
    auto bytes = wire::bytes_of(header);
    const auto* digests = reinterpret_cast<const std::byte*>(held.data());
    bytes.insert(bytes.end(), digests, digests + held.size());
    send(ControlType::kAssign, bytes);
  }

  std::vector<std::uint8_t> held;
  std::span<const std::byte> peer;
};

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  set_log_level(LogLevel::kError);
  return wire::initialise_crypto() ? 0 : 1;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto* raw = reinterpret_cast<const std::byte*>(data);
  wire::ControlFrame frame;
  wire::parse_control_frame({raw, size}, frame);
  Duck duck;
  while (size >= 3) {
    const std::size_t length = std::min<std::size_t>(size - 3, data[1] | data[2] << 8);
    const std::span payload(reinterpret_cast<const std::byte*>(data + 3), length);
    if (data[0] == 200) {
      duck.put(payload);
    } else if (data[0] == 201) {
      duck.assign(payload);
    } else if (data[0] == 202) {
      duck.fetch(payload);
    } else {
      duck.send(static_cast<ControlType>(data[0]), payload);
    }
    data += 3 + length;
    size -= 3 + length;
  }
  return 0;
}
