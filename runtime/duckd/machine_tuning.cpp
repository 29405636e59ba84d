#include "machine_tuning.hpp"

#include <cpuid.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>

#include "log.hpp"
#include "page_buffer.hpp"
#include "team.hpp"
#include "tuning.hpp"

namespace duckfleet::duckd {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFile = "/tuning.json";
constexpr const char* kPrefetch = "prefetch_bytes";

// The brand string (Intel SDM vol. 2, CPUID, leaves 80000002H to 80000004H).
std::string cpu_name() {
  std::array<std::uint32_t, 12> words{};
  for (std::uint32_t i = 0; i < 3; ++i) {
    std::uint32_t* const to = words.data() + std::size_t{4} * i;
    if (!__get_cpuid(0x80000002 + i, to, to + 1, to + 2, to + 3)) return "unknown";
  }
  const auto* const text = reinterpret_cast<const char*>(words.data());
  return {text, strnlen(text, sizeof words)};
}

// What a kept figure was measured for.
Json machine(const kernels::Kernels& kernels, unsigned num_threads) {
  return {{"cpu", cpu_name()}, {"kernels", kernels.name}, {"threads", num_threads}};
}

std::optional<std::uint32_t> read_kept(const std::string& path, const Json& wanted) {
  std::string error;
  const auto file = PageBuffer::map_file(path, error);
  if (!file) return std::nullopt;
  const auto* const text = reinterpret_cast<const char*>(file->bytes().data());
  const Json kept = Json::parse(text, text + file->size(), nullptr, false);
  if (!kept.is_object() || kept.value("machine", Json()) != wanted) return std::nullopt;
  const Json bytes = kept.value(kPrefetch, Json());
  if (!bytes.is_number_unsigned() || std::ranges::count(kernels::kPrefetchDistances, bytes.get<std::uint64_t>()) == 0) {
    return std::nullopt;
  }
  return bytes.get<std::uint32_t>();
}

void keep(const std::string& path, const Json& machine, std::uint32_t prefetch_bytes) {
  const std::string text = Json{{"machine", machine}, {kPrefetch, prefetch_bytes}}.dump() + "\n";
  const std::string partial = path + ".partial";
  std::string error;
  auto file = PageBuffer::create_file(partial, text.size(), error);
  if (file) {
    std::memcpy(file->bytes().data(), text.data(), text.size());
    if (std::rename(partial.c_str(), path.c_str()) == 0) return;
    error = std::strerror(errno);
  }
  log_warn("tuning_not_kept").with("file", path).with("reason", error);
}

}  // namespace

std::uint32_t tuned_prefetch(const std::string& directory, const kernels::Kernels& kernels, unsigned num_threads,
                             const ThreadPlan& plan) {
  if (!kernels.prefetches) return kernels::kDefaultPrefetchBytes;
  const Json wanted = machine(kernels, num_threads);
  const std::string file = directory + kFile;
  std::optional<std::uint32_t> bytes;
  if (!directory.empty()) bytes = read_kept(file, wanted);
  const bool was_kept = bytes.has_value();
  if (!was_kept) {
    kernels::Team team(num_threads, plan.cpus, plan.spin_us);
    bytes = kernels::fastest_prefetch(kernels, team);
    if (!directory.empty()) keep(file, wanted, *bytes);
  }
  log_info("tuned").with(kPrefetch, *bytes).with("source", was_kept ? "kept" : "measured");
  return *bytes;
}

}  // namespace duckfleet::duckd
