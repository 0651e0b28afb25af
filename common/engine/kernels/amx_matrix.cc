// What of AMX runs on every CPU: amx.cc is compiled for those that have it.
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdint>

#include "common/engine/kernels/amx.h"

namespace baton::kernels {

// The kernel gives a process tiles only when it asks.
bool RunsAmx() {
  static const bool kRuns = [] {
    constexpr int kRequestPermission = 0x1023;
    constexpr int kTileData = 18;
    unsigned a = 0;
    unsigned b = 0;
    unsigned c = 0;
    unsigned d = 0;
    constexpr unsigned kTilesOfBf16 = (1U << 22) | (1U << 24);  // Leaf 7, EDX.
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & kTilesOfBf16) == kTilesOfBf16 &&
           syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  }();
  return kRuns;
}

size_t AmxSize(int outputs, int inputs) {
  const auto panels = static_cast<size_t>((outputs + kAmxPanel - 1) / kAmxPanel);
  return panels * kAmxPanel * static_cast<size_t>(AmxInputs(inputs));
}

namespace {

// The index of a row's first element; pairs are 2 * kAmxPanel apart.
size_t PlaceOf(size_t row, int inputs) {
  return row / kAmxPanel * kAmxPanel * static_cast<size_t>(AmxInputs(inputs)) + row % kAmxPanel * 2;
}

size_t Step(size_t input) { return input / 2 * 2 * kAmxPanel + input % 2; }

}  // namespace

void PackAmxInput(const Bf16* numbers, int row, int rows, int inputs, Bf16* x) {
  const int first = row / kAmxPass * kAmxPass;
  const auto step = static_cast<size_t>(std::min(rows - first, kAmxPass)) * kAmxBlock;
  Bf16* to = x + static_cast<size_t>(first) * static_cast<size_t>(AmxInputs(inputs)) +
             static_cast<size_t>(row - first) * kAmxBlock;
  int done = 0;
  for (; done + kAmxBlock <= inputs; done += kAmxBlock, to += step) {
    std::copy_n(numbers + done, kAmxBlock, to);
  }
  if (done == inputs) return;
  std::fill(std::copy_n(numbers + done, inputs - done, to), to + kAmxBlock, Bf16{});
}

void PackAmxRows(const Bf16* rows, int row_begin, int row_count, int inputs, Bf16* panels) {
  const auto columns = static_cast<size_t>(inputs);
  for (int row = 0; row < row_count; ++row) {
    Bf16* const to =
        panels + PlaceOf(static_cast<size_t>(row_begin) + static_cast<size_t>(row), inputs);
    const Bf16* const from = rows + static_cast<size_t>(row) * columns;
    for (size_t i = 0; i < columns; ++i) to[Step(i)] = from[i];
  }
}

void UnpackAmxRow(const AmxMatrix& w, int row, float* out) {
  const Bf16* const from = w.panels + PlaceOf(static_cast<size_t>(row), w.inputs);
  for (size_t i = 0; i < static_cast<size_t>(w.inputs); ++i) {
    out[i] = std::bit_cast<float>(uint32_t{from[Step(i)].bits} << 16);
  }
}

}  // namespace baton::kernels
