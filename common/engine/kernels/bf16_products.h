// Products of bfloat16 numbers with sums in float32, by the instructions that some processors have
// for them: Intel's tiles (AMX), 16 rows of 32 inputs by 16 outputs at 16 times the rate of
// float32; or AVX512_BF16, pairs of inputs at twice the rate of float32.
//
// Batch invariance holds as in kernels.h: every output is computed by one chain of operations whose
// order depends on the number of inputs alone. Each instruction set has a chain of its own, so that
// the last bits differ from kernels.h's and from each other's. Activations are rounded to bfloat16;
// what is subnormal counts as zero.
#ifndef COMMON_ENGINE_KERNELS_BF16_PRODUCTS_H_
#define COMMON_ENGINE_KERNELS_BF16_PRODUCTS_H_

#include <cstddef>
#include <vector>

#include "common/engine/kernels/kernels.h"

namespace baton::kernels {

// Outputs of a panel, and inputs that are multiplied at once.
inline constexpr int kPairPanel = 32;
inline constexpr int kPairBlock = 32;

constexpr int PaddedInputs(int inputs) {
  return (inputs + kPairBlock - 1) / kPairBlock * kPairBlock;
}

// A matrix [outputs, inputs] in panels, padded with zeros:
// [ceil(outputs / kPairPanel)][PaddedInputs(inputs) / 2][kPairPanel][2], pairs of neighbouring
// inputs.
using PairedMatrix = Packed<Bf16>;

// A matrix of FP8 numbers in such panels, and their scales, as PackedE4m3Matrix has them with
// panels of kPairPanel. The bytes of a pair of inputs are in the order of outputs 0 to 3, 16 to 19,
// 4 to 7, 20 to 23, ...: widened by halves of 16 bytes they are in order. `offset` is even.
using PairedE4m3Matrix = Packed<E4m3>;

// Rows of x are read in passes of kPairPass, the last of which may have fewer:
// [ceil(rows / kPairPass)][PaddedInputs(inputs) / kPairBlock][rows of the pass][kPairBlock]. What a
// pass multiplies at once is then side by side; rows a power of two apart would all be in the same
// sets of the first-level cache.
inline constexpr int kPairPass = 32;

struct Bf16Products {
  const char* name;  // "amx", "avx512_bf16".
  // y[r][0, outputs) = w x[r] for panels [panel_begin, panel_end) of w; x has all rows as
  // PackPairedInput puts them; y has y_stride floats a row. Threads take disjoint panels.
  void (*linear)(const PairedMatrix& w, const Bf16* x, int rows, int panel_begin, int panel_end,
                 float* y, size_t y_stride);
  // The same of FP8 weights, which bfloat16 holds exactly. The inputs that share scales are added
  // up before they are scaled.
  void (*linear_e4m3)(const PairedE4m3Matrix& w, const Bf16* x, int rows, int panel_begin,
                      int panel_end, float* y, size_t y_stride);
  // kernels.h's attention with such products: queries and weights are rounded to bfloat16.
  void (*attention)(const AttentionArgs<Bf16>& args);
};

// Theirs: amx*.cc and avx512_bf16*.cc.
void LinearAmx(const PairedMatrix& w, const Bf16* x, int rows, int panel_begin, int panel_end,
               float* y, size_t y_stride);
void LinearE4m3Amx(const PairedE4m3Matrix& w, const Bf16* x, int rows, int panel_begin,
                   int panel_end, float* y, size_t y_stride);
void LinearAvx512Bf16(const PairedMatrix& w, const Bf16* x, int rows, int panel_begin,
                      int panel_end, float* y, size_t y_stride);
void LinearE4m3Avx512Bf16(const PairedE4m3Matrix& w, const Bf16* x, int rows, int panel_begin,
                          int panel_end, float* y, size_t y_stride);
void AttentionAmx(const AttentionArgs<Bf16>& args);
void AttentionAvx512Bf16(const AttentionArgs<Bf16>& args);

// Those that this CPU runs.
std::vector<const Bf16Products*> AvailableBf16Products();

// The one that is faster than float32; nullptr: none is. Decided by the CPU's model and not by a
// measurement, so that equal machines compute alike: AVX512_BF16 alone is used on AMD's CPUs. On a
// Xeon it took 1.4 times as long as float32.
const Bf16Products* FastestBf16Products();

// Puts row `row` of `rows`, with `inputs` numbers, into its place in x, and zeros behind it.
void PackPairedInput(const Bf16* numbers, int row, int rows, int inputs, Bf16* x);

// Elements of a packed [outputs, inputs] matrix.
size_t PairedSize(int outputs, int inputs);
// As PackRows and UnpackRow, on any CPU.
template <typename Element>
void PackPairedRows(const Element* rows, int row_begin, int row_count, int inputs, Element* panels);
void UnpackPairedRow(const PairedMatrix& w, int row, float* out);
void UnpackPairedRow(const PairedE4m3Matrix& w, int row, float* out);

}  // namespace baton::kernels

#endif  // COMMON_ENGINE_KERNELS_BF16_PRODUCTS_H_
