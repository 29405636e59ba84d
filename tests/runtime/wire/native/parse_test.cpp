// classify(): every bound by name, and that what passes keeps the promises of parse.hpp.
#include "parse.hpp"

#include <cstring>
#include <random>
#include <set>
#include <string_view>
#include <vector>

#include "check.hpp"

namespace {

using namespace duckfleet::wire;

DataHeader good_request() {
  DataHeader h{};
  h.magic = kDataMagic;
  h.version = kVersion;
  h.kind = static_cast<std::uint8_t>(DataKind::kRequest);
  h.num_tokens = 3;
  h.top_k = 2;
  h.hidden = 80;
  h.slice = kAsAssigned;
  h.rank = kAnyRank;
  h.message_bytes = 3 * 2 * 8 + 3 * 80 * 4;
  h.offset = 128;
  h.fragment_bytes = 256;
  return h;
}

DropReason judge(const DataHeader& header, std::size_t payload_bytes) {
  std::vector<std::byte> bytes(sizeof header + payload_bytes);
  std::memcpy(bytes.data(), &header, sizeof header);
  return classify(bytes).drop;
}

template <typename F>
DropReason judge_changed(F change) {
  DataHeader header = good_request();
  change(header);
  return judge(header, header.fragment_bytes <= 4096 ? header.fragment_bytes : 256);
}

void bounds_of_a_request() {
  CHECK(judge(good_request(), 256) == DropReason::kNone);
  CHECK(judge(good_request(), 255) == DropReason::kBadLength);
  CHECK(judge(good_request(), 257) == DropReason::kBadLength);
  CHECK(judge_changed([](DataHeader& h) { h.magic ^= 1; }) == DropReason::kBadMagic);
  CHECK(judge_changed([](DataHeader& h) { h.version = 0; }) == DropReason::kBadVersion);
  CHECK(judge_changed([](DataHeader& h) { h.kind = 0; }) == DropReason::kBadKind);
  CHECK(judge_changed([](DataHeader& h) { h.kind = 8; }) == DropReason::kBadKind);
  CHECK(judge_changed([](DataHeader& h) { h.lane = 2; }) == DropReason::kBadField);
  CHECK(judge_changed([](DataHeader& h) { h.wire_dtype = 3; }) == DropReason::kBadField);
  CHECK(judge_changed([](DataHeader& h) { h.num_tokens = 0; }) == DropReason::kBadField);
  CHECK(judge_changed([](DataHeader& h) { h.num_tokens = kMaxTokens + 1; }) == DropReason::kBadField);
  CHECK(judge_changed([](DataHeader& h) { h.top_k = kMaxTopK + 1; }) == DropReason::kBadField);
  CHECK(judge_changed([](DataHeader& h) { h.hidden = 0; }) == DropReason::kBadField);
  CHECK(judge_changed([](DataHeader& h) { h.hidden = kMaxHidden + 1; }) == DropReason::kBadField);
  CHECK(judge_changed([](DataHeader& h) { h.hidden = 0xFFFFFFFF; }) == DropReason::kBadField);
  CHECK(judge_changed([](DataHeader& h) { h.slice = 1; }) == DropReason::kBadField);  // with a mask of no parts
  CHECK(judge_changed([](DataHeader& h) { h.message_bytes += 64; }) == DropReason::kBadLength);
  CHECK(judge_changed([](DataHeader& h) { h.top_k = 3; }) == DropReason::kBadLength);
  CHECK(judge_changed([](DataHeader& h) { h.wire_dtype = 1; }) == DropReason::kBadLength);
  CHECK(judge_changed([](DataHeader& h) { h.fragment_bytes = 0; }) == DropReason::kBadLength);
  CHECK(judge_changed([](DataHeader& h) { h.offset = 960; }) == DropReason::kBadLength);
  CHECK(judge_changed([](DataHeader& h) { h.offset = 0xFFFFFFC0; }) == DropReason::kBadLength);
  CHECK(judge_changed([](DataHeader& h) { h.offset = 100; }) == DropReason::kBadFragment);
  CHECK(judge_changed([](DataHeader& h) { h.fragment_bytes = 200; }) == DropReason::kBadFragment);
  CHECK(judge_changed([](DataHeader& h) { h.offset = 896, h.fragment_bytes = 112; }) == DropReason::kNone);  // the end
}

void bounds_of_the_other_kinds() {
  DataHeader h = good_request();
  h.kind = static_cast<std::uint8_t>(DataKind::kReply);
  h.slice = 5;
  h.part = kWholeSlice;
  h.message_bytes = 3 * 80 * 4;
  CHECK(judge(h, 256) == DropReason::kNone);
  h.part = 8;
  CHECK(judge(h, 256) == DropReason::kBadField);
  h.part = 7;
  CHECK(judge(h, 256) == DropReason::kNone);
  h.slice = kMaxTp;
  CHECK(judge(h, 256) == DropReason::kBadField);

  for (const DataKind kind : {DataKind::kNackRequest, DataKind::kNackReply}) {
    DataHeader nack = good_request();
    nack.kind = static_cast<std::uint8_t>(kind);
    nack.offset = 0;
    for (const std::uint32_t size : {0u, 8u, 8u * kMaxNackRanges}) {
      nack.message_bytes = nack.fragment_bytes = size;
      CHECK(judge(nack, size) == DropReason::kNone);
    }
    for (const std::uint32_t size : {4u, 12u, 8u * kMaxNackRanges + 8}) {
      nack.message_bytes = nack.fragment_bytes = size;
      CHECK(judge(nack, size) == DropReason::kBadLength);
    }
    nack.message_bytes = 64;
    nack.fragment_bytes = 8;
    CHECK(judge(nack, 8) == DropReason::kBadLength);
    nack.offset = 8;
    nack.message_bytes = 8;
    CHECK(judge(nack, 8) == DropReason::kBadLength);
  }

  DataHeader busy = good_request();
  busy.kind = static_cast<std::uint8_t>(DataKind::kBusy);
  busy.offset = busy.message_bytes = busy.fragment_bytes = 0;
  CHECK(judge(busy, 0) == DropReason::kNone);
  busy.message_bytes = busy.fragment_bytes = 8;
  CHECK(judge(busy, 8) == DropReason::kBadLength);
}

void lengths() {
  const std::vector<std::byte> zeros(70000);
  for (std::size_t size = 0; size < sizeof(DataHeader); ++size) {
    CHECK(classify(std::span(zeros).first(size)).drop == DropReason::kTooShort);
  }
  CHECK(classify(std::span(zeros).first(sizeof(DataHeader))).drop == DropReason::kBadMagic);
  CHECK(classify(std::span(zeros).first(kMaxDatagramBytes)).drop == DropReason::kBadMagic);
  CHECK(classify(std::span(zeros).first(kMaxDatagramBytes + 1)).drop == DropReason::kTooLong);
}

void largest_sizes_fit_their_fields() {
  DataHeader h{};
  h.num_tokens = kMaxTokens;
  h.top_k = kMaxTopK;
  h.hidden = kMaxHidden;
  CHECK(request_bytes(h) < (1u << 26));
  CHECK(reply_bytes(h) < (1u << 26));
}

// Random fields, mostly within bounds: whatever passes keeps the promises.
void promises() {
  std::mt19937 random(7);
  int passed = 0;
  for (int i = 0; i < 200000; ++i) {
    DataHeader h = good_request();
    h.kind = static_cast<std::uint8_t>(1 + random() % 7);
    h.num_tokens = static_cast<std::uint16_t>(1 + random() % 3);
    h.top_k = static_cast<std::uint16_t>(random() % 3);
    h.slice = static_cast<std::uint16_t>(random() % 70);
    h.part = static_cast<std::uint8_t>(random() % 10);
    const bool reply = h.kind == static_cast<std::uint8_t>(DataKind::kReply);
    h.message_bytes = static_cast<std::uint32_t>(random() % 4 != 0 ? (reply ? reply_bytes(h) : request_bytes(h)) : random() % 300);
    h.offset = random() % 24 * 64 + (random() % 16 == 0);
    h.fragment_bytes = random() % 2 ? random() % 8 * 64 : random() % 500;
    if (random() % 2) h.offset = 0, h.message_bytes = h.fragment_bytes;
    std::vector<std::byte> bytes(sizeof h + h.fragment_bytes);
    std::memcpy(bytes.data(), &h, sizeof h);
    const Datagram datagram = classify(bytes);
    if (!datagram.ok()) continue;
    ++passed;
    CHECK(datagram.payload.size() == h.fragment_bytes);
    CHECK(datagram.payload.data() == bytes.data() + sizeof h);
    CHECK(std::uint64_t{h.offset} + h.fragment_bytes <= h.message_bytes);
    const DataKind kind = datagram.kind();
    if (kind == DataKind::kRequest) CHECK(h.message_bytes == request_bytes(h) && h.fragment_bytes > 0);
    if (kind == DataKind::kReply) CHECK(h.message_bytes == reply_bytes(h) && h.slice < kMaxTp);
    if (kind == DataKind::kRequest || kind == DataKind::kReply) CHECK(h.offset % kFragmentUnitBytes == 0);
  }
  CHECK(passed > 10000);
}

void names_are_distinct() {
  std::set<std::string_view> names;
  for (std::size_t i = 0; i < kNumDropReasons; ++i) names.insert(name(static_cast<DropReason>(i)));
  CHECK(names.size() == kNumDropReasons);
  CHECK(!names.contains("unknown"));
  CHECK(name(DropReason::kCount) == "unknown");
}

}  // namespace

int main() {
  bounds_of_a_request();
  bounds_of_the_other_kinds();
  lengths();
  largest_sizes_fit_their_fields();
  promises();
  names_are_distinct();
}
