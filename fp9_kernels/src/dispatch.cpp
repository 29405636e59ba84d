#include "dispatch.hpp"

#include <cpuid.h>

#include <array>
#include <cstdlib>

#include "implementations.hpp"

namespace duckfleet::kernels {
namespace {

// Bits of XCR0: the register state that the operating system saves (Intel SDM vol. 1, 13.3).
std::uint64_t read_xcr0() noexcept {
  std::uint32_t low, high;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return std::uint64_t{high} << 32 | low;
}

struct Usable {
  std::array<const Kernels*, 2> list{};
  std::size_t count = 0;
  Usable() noexcept {
    const CpuFeatures cpu = cpu_features();
    list[count++] = &scalar_kernels();
    if (cpu.avx2 && cpu.fma && cpu.f16c) list[count++] = &avx2_kernels();
  }
};

}  // namespace

CpuFeatures cpu_features() noexcept {
  CpuFeatures features{};
  std::uint32_t eax, ebx, ecx, edx;
  if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx)) return features;
  features.aes = ecx & bit_AES;
  features.pclmul = ecx & bit_PCLMUL;
  if (!(ecx & bit_OSXSAVE)) return features;
  const std::uint64_t xcr0 = read_xcr0();
  const bool os_avx = (xcr0 & 0x6) == 0x6, os_avx512 = (xcr0 & 0xE6) == 0xE6;
  features.fma = os_avx && (ecx & bit_FMA);
  features.f16c = os_avx && (ecx & bit_F16C);
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) {
    features.avx2 = os_avx && (ebx & bit_AVX2);
    features.avx512f = os_avx512 && (ebx & bit_AVX512F);
    features.avx512bw = os_avx512 && (ebx & bit_AVX512BW);
    features.avx512vl = os_avx512 && (ebx & bit_AVX512VL);
    if (eax >= 1 && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx)) features.avx_vnni = os_avx && (eax & (1u << 4));
  }
  return features;
}

std::span<const Kernels* const> implementations() noexcept {
  static const Usable usable;
  return {usable.list.data(), usable.count};
}

Selected select(std::string_view name) {
  std::string origin = "kernel implementation";
  if (name.empty()) {
    const char* forced = std::getenv("DUCKFLEET_KERNELS");
    if (forced == nullptr || *forced == '\0') return {implementations().back(), {}};
    name = forced;
    origin = "kernel implementation (from DUCKFLEET_KERNELS)";
  }
  std::string usable;
  for (const Kernels* kernels : implementations()) {
    if (name == kernels->name) return {kernels, {}};
    usable += usable.empty() ? "" : ", ";
    usable += kernels->name;
  }
  return {nullptr, origin + " \"" + std::string(name) + "\" is unknown or not usable on this CPU; usable here: " + usable};
}

}  // namespace duckfleet::kernels
