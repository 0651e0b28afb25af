// Which products the CPU runs, and packing, which runs on every one.
#include "common/engine/kernels/bf16_products.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

namespace baton::kernels {

namespace {

constexpr Bf16Products kAmx = {"amx", LinearAmx, LinearE4m3Amx, AttentionAmx};
constexpr Bf16Products kAvx512 = {"avx512_bf16", LinearAvx512Bf16, LinearE4m3Avx512Bf16,
                                  AttentionAvx512Bf16};

bool RunsAvx512Bf16() {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  constexpr unsigned kBf16 = 1U << 5;  // Leaf 7, subleaf 1, EAX.
  // What widens FP8 looks up bytes.
  return __builtin_cpu_supports("avx512vbmi") && __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 &&
         (a & kBf16) != 0;
}

// The kernel gives a process tiles only when it asks.
bool RunsAmx() {
  constexpr int kRequestPermission = 0x1023;
  constexpr int kTileData = 18;
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  constexpr unsigned kTilesOfBf16 = (1U << 22) | (1U << 24);  // Leaf 7, EDX.
  // Attention rounds and arranges by AVX512_BF16, which every CPU with tiles has.
  return RunsAvx512Bf16() && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 &&
         (d & kTilesOfBf16) == kTilesOfBf16 &&
         syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

std::vector<const Bf16Products*> AvailableBf16Products() {
  static const std::vector<const Bf16Products*> kFound = [] {
    std::vector<const Bf16Products*> found;
    if (RunsAmx()) found.push_back(&kAmx);
    if (RunsAvx512Bf16()) found.push_back(&kAvx512);
    return found;
  }();
  return kFound;
}

const Bf16Products* FastestBf16Products() {
  for (const Bf16Products* products : AvailableBf16Products()) {
    if (products == &kAmx || __builtin_cpu_is("amd")) return products;
  }
  return nullptr;
}

size_t PairedSize(int outputs, int inputs) {
  const auto panels = static_cast<size_t>((outputs + kPairPanel - 1) / kPairPanel);
  return panels * kPairPanel * static_cast<size_t>(PaddedInputs(inputs));
}

namespace {

// Where an output's pair begins among those of its panel.
size_t PlaceInPanel(const Bf16* /*panels*/, size_t output) { return 2 * output; }
size_t PlaceInPanel(const E4m3* /*panels*/, size_t output) {
  const size_t half = output / 16;
  const size_t in_half = output % 16;
  return in_half / 4 * 16 + half * 8 + in_half % 4 * 2;
}

// The index of a row's first element; pairs are 2 * kPairPanel apart.
template <typename Element>
size_t PlaceOf(const Element* panels, size_t row, int inputs) {
  return row / kPairPanel * kPairPanel * static_cast<size_t>(PaddedInputs(inputs)) +
         PlaceInPanel(panels, row % kPairPanel);
}

size_t Step(size_t input) { return input / 2 * 2 * kPairPanel + input % 2; }

}  // namespace

void PackPairedInput(const Bf16* numbers, int row, int rows, int inputs, Bf16* x) {
  const int first = row / kPairPass * kPairPass;
  const auto step = static_cast<size_t>(std::min(rows - first, kPairPass)) * kPairBlock;
  Bf16* to = x + static_cast<size_t>(first) * static_cast<size_t>(PaddedInputs(inputs)) +
             static_cast<size_t>(row - first) * kPairBlock;
  int done = 0;
  for (; done + kPairBlock <= inputs; done += kPairBlock, to += step) {
    std::copy_n(numbers + done, kPairBlock, to);
  }
  if (done == inputs) return;
  std::fill(std::copy_n(numbers + done, inputs - done, to), to + kPairBlock, Bf16{});
}

template <typename Element>
void PackPairedRows(const Element* rows, int row_begin, int row_count, int inputs,
                    Element* panels) {
  const auto columns = static_cast<size_t>(inputs);
  for (int row = 0; row < row_count; ++row) {
    const size_t output = static_cast<size_t>(row_begin) + static_cast<size_t>(row);
    Element* const to = panels + PlaceOf(panels, output, inputs);
    const Element* const from = rows + static_cast<size_t>(row) * columns;
    for (size_t i = 0; i < columns; ++i) to[Step(i)] = from[i];
  }
}
template void PackPairedRows(const Bf16*, int, int, int, Bf16*);
template void PackPairedRows(const E4m3*, int, int, int, E4m3*);

void UnpackPairedRow(const PairedMatrix& w, int row, float* out) {
  const Bf16* const from = w.panels + PlaceOf(w.panels, static_cast<size_t>(row), w.inputs);
  for (size_t i = 0; i < static_cast<size_t>(w.inputs); ++i) {
    out[i] = std::bit_cast<float>(uint32_t{from[Step(i)].bits} << 16);
  }
}

void UnpackPairedRow(const PairedE4m3Matrix& w, int row, float* out) {
  const auto place = static_cast<size_t>(row);
  const E4m3* const from = w.panels + PlaceOf(w.panels, place, w.inputs);
  const float* const scales = w.scales +
                              place / kPairPanel * kPairPanel * static_cast<size_t>(w.blocks()) +
                              place % kPairPanel;
  for (int i = 0; i < w.inputs; ++i) {
    const auto block = static_cast<size_t>((i + w.offset) / kScaleBlock);
    out[i] = Widened(from[Step(static_cast<size_t>(i))]) * scales[block * kPairPanel];
  }
}

}  // namespace baton::kernels
