// CanonicalSum: whatever the order of arrival, the bits of the sum in rank order.
#include "canonical_sum.hpp"

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "check.hpp"

using duckfleet::fabric::CanonicalSum;
using duckfleet::fabric::SliceVectors;
using duckfleet::fabric::VectorSlot;

namespace {

struct Fragment {
  std::size_t vector;
  std::uint32_t offset;
  std::uint32_t bytes;
};

void check_random(unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  const std::size_t num_floats = 16 * (1 + random() % 600);
  const std::size_t num_slices = 1 + random() % 9;
  std::vector<std::vector<float>> contents;
  std::vector<std::unique_ptr<VectorSlot>> slots;
  std::vector<SliceVectors> slices(num_slices);
  std::vector<float> expected(num_floats);
  for (std::size_t s = 0; s < num_slices; ++s) {
    const std::size_t num_parts = random() % 3 == 0 ? 1 + random() % 8 : 1;
    std::vector<float> slice_sum(num_floats);
    for (std::size_t p = 0; p < num_parts; ++p) {
      std::vector<float> v(num_floats);
      for (float& f : v) f = normal(random) * (random() % 2 == 0 ? 1e6F : 1.0F);
      for (std::size_t i = 0; i < num_floats; ++i) slice_sum[i] = p == 0 ? v[i] : slice_sum[i] + v[i];
      slots.push_back(std::make_unique<VectorSlot>(num_floats));
      slots.back()->arm(num_floats);
      slices[s].vectors.push_back(slots.back().get());
      contents.push_back(std::move(v));
    }
    for (std::size_t i = 0; i < num_floats; ++i) expected[i] = s == 0 ? slice_sum[i] : expected[i] + slice_sum[i];
  }
  std::vector<Fragment> fragments;
  for (std::size_t v = 0; v < contents.size(); ++v) {
    const auto total = static_cast<std::uint32_t>(num_floats * sizeof(float));
    const std::uint32_t size = 64 * (1 + random() % 40);
    for (std::uint32_t at = 0; at < total; at += size) fragments.push_back({v, at, std::min(size, total - at)});
  }
  std::shuffle(fragments.begin(), fragments.end(), random);

  std::vector<float> out(num_floats, -1.0F);
  CanonicalSum sum(64);
  sum.begin(slices, out.data(), num_floats);
  for (std::size_t i = 0; i < fragments.size(); ++i) {
    CHECK(!sum.advance());
    const Fragment& f = fragments[i];
    const auto* bytes = reinterpret_cast<const std::byte*>(contents[f.vector].data());
    CHECK(slots[f.vector]->take(f.offset, {bytes + f.offset, f.bytes}) != VectorSlot::Take::kMisfit);
    CHECK(slots[f.vector]->take(f.offset, {bytes + f.offset, f.bytes}) == VectorSlot::Take::kDuplicate);
  }
  CHECK(sum.advance());
  CHECK(std::memcmp(out.data(), expected.data(), num_floats * sizeof(float)) == 0);
}

void misfits_are_refused() {
  VectorSlot slot(64);
  slot.arm(32);
  std::vector<std::byte> bytes(256);
  const auto refused = [&](std::uint32_t offset, std::size_t size) {
    return slot.take(offset, std::span(bytes).first(size)) == VectorSlot::Take::kMisfit;
  };
  CHECK(refused(0, 0));
  CHECK(refused(0, 132));
  CHECK(refused(128, 4));
  CHECK(refused(124, 8));
  CHECK(refused(2, 4));
  CHECK(refused(0, 6));
  CHECK(refused(0xFFFFFFFC, 8));
  CHECK(slot.received_bytes() == 0);
  CHECK(slot.take(0, std::span(bytes).first(128)) == VectorSlot::Take::kComplete);
}

}  // namespace

int main() {
  for (unsigned seed = 0; seed < 200; ++seed) check_random(seed);
  misfits_are_refused();
}
