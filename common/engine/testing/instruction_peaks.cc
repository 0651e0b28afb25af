#include "common/engine/testing/instruction_peaks.h"

#include <asm/prctl.h>
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <iterator>

// Written as assembly: no compiler may keep, merge or move what is measured, and this file needs no
// flags for instructions that the CPU may lack.

namespace baton {
namespace {

constexpr uint16_t kOne = 0x3f80;  // In bfloat16.

struct CpuFeatures {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

CpuFeatures FeaturesOf(unsigned subleaf) {
  CpuFeatures features;
  __get_cpuid_count(7, subleaf, &features.eax, &features.ebx, &features.ecx, &features.edx);
  return features;
}

bool HasAvx512Bf16() {
  return __builtin_cpu_supports("avx512f") && ((FeaturesOf(1).eax >> 5) & 1) != 0;
}

double RunAvx512Bf16(int rounds) {
  uint16_t ones[32];
  std::fill(std::begin(ones), std::end(ones), kOne);
  asm volatile(
      "vzeroall\n"  // Sums of something tiny would be slow.
      "vmovups (%0), %%zmm12\n vmovups (%0), %%zmm13"
      :
      : "r"(ones)
      : "memory", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",
        "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
  for (int round = 0; round < rounds; ++round) {
    // Twelve chains: more than two units times the latency.
    asm volatile(
        "vdpbf16ps %%zmm12, %%zmm13, %%zmm0\n vdpbf16ps %%zmm12, %%zmm13, %%zmm1\n"
        "vdpbf16ps %%zmm12, %%zmm13, %%zmm2\n vdpbf16ps %%zmm12, %%zmm13, %%zmm3\n"
        "vdpbf16ps %%zmm12, %%zmm13, %%zmm4\n vdpbf16ps %%zmm12, %%zmm13, %%zmm5\n"
        "vdpbf16ps %%zmm12, %%zmm13, %%zmm6\n vdpbf16ps %%zmm12, %%zmm13, %%zmm7\n"
        "vdpbf16ps %%zmm12, %%zmm13, %%zmm8\n vdpbf16ps %%zmm12, %%zmm13, %%zmm9\n"
        "vdpbf16ps %%zmm12, %%zmm13, %%zmm10\n vdpbf16ps %%zmm12, %%zmm13, %%zmm11"
        :
        :
        : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",
          "xmm11");
  }
  asm volatile("vzeroupper");
  return 2.0 * 32 * 12 * rounds;
}

// Linux gives the tiles' state to processes that ask for it.
bool HasAmxBf16() {
  constexpr unsigned kTileData = 18;
  const unsigned edx = FeaturesOf(0).edx;
  const bool present = ((edx >> 22) & 1) != 0 && ((edx >> 24) & 1) != 0;
  return present && syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, kTileData) == 0;
}

constexpr int kTileRows = 16;
constexpr int kTileRowBytes = 64;

// As ldtilecfg reads it.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

double RunAmxBf16(int rounds) {
  TileConfig config;
  std::fill_n(config.row_bytes, 8, kTileRowBytes);
  std::fill_n(config.rows, 8, kTileRows);
  uint16_t ones[kTileRows * (kTileRowBytes / 2)];
  std::fill(std::begin(ones), std::end(ones), kOne);
  const int64_t stride = kTileRowBytes;
  asm volatile(
      "ldtilecfg %0\n"
      "tilezero %%tmm0\n tilezero %%tmm1\n tilezero %%tmm2\n tilezero %%tmm3\n"
      "tileloadd (%1,%2,1), %%tmm4\n tileloadd (%1,%2,1), %%tmm5\n"
      "tileloadd (%1,%2,1), %%tmm6\n tileloadd (%1,%2,1), %%tmm7"
      :
      : "m"(config), "r"(ones), "r"(stride)
      : "memory");
  for (int round = 0; round < rounds; ++round) {
    asm volatile(
        "tdpbf16ps %tmm6, %tmm4, %tmm0\n tdpbf16ps %tmm7, %tmm4, %tmm1\n"
        "tdpbf16ps %tmm6, %tmm5, %tmm2\n tdpbf16ps %tmm7, %tmm5, %tmm3");
  }
  asm volatile("tilerelease");
  // Each adds to 16 x 16 sums the products of 32 pairs.
  return 2.0 * 16 * 16 * 32 * 4 * rounds;
}

}  // namespace

const InstructionPeak kAvx512Bf16Peak = {"vdpbf16ps", HasAvx512Bf16, RunAvx512Bf16};
const InstructionPeak kAmxBf16Peak = {"tdpbf16ps", HasAmxBf16, RunAmxBf16};

}  // namespace baton
