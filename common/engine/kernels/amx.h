// Products of bfloat16 numbers with sums in float32, by Intel's tiles: 16 rows of 32 inputs by 16
// outputs in one instruction, at 16 times the rate of float32.
//
// Batch invariance holds as in kernels.h: every output is computed by one chain of operations whose
// order depends on the number of inputs alone. It is another chain than kernels.h's, so that the
// last bits differ. Activations are rounded to bfloat16; what is subnormal counts as zero.
//
// Rejected: AVX512_BF16. On a Xeon with tiles it took 1.4 times as long as float32, and no other
// machine was at hand.
#ifndef COMMON_ENGINE_KERNELS_AMX_H_
#define COMMON_ENGINE_KERNELS_AMX_H_

#include <cstddef>

#include "common/engine/kernels/kernels.h"

namespace baton::kernels {

// Outputs of a panel, and inputs that are multiplied at once.
inline constexpr int kAmxPanel = 32;
inline constexpr int kAmxBlock = 32;

constexpr int AmxInputs(int inputs) { return (inputs + kAmxBlock - 1) / kAmxBlock * kAmxBlock; }

// A matrix [outputs, inputs] in panels, padded with zeros:
// [ceil(outputs / kAmxPanel)][AmxInputs(inputs) / 2][kAmxPanel][2], pairs of neighbouring inputs.
struct AmxMatrix {
  const Bf16* panels;
  int outputs;
  int inputs;
};

// Whether this CPU has tiles of bfloat16, and its kernel gives them to this process.
bool RunsAmx();

// Rows of x are read in passes of kAmxPass, the last of which may have fewer:
// [ceil(rows / kAmxPass)][AmxInputs(inputs) / kAmxBlock][rows of the pass][kAmxBlock]. What a pass
// multiplies at once is then side by side; rows a power of two apart would all be in the same sets
// of the first-level cache.
inline constexpr int kAmxPass = 32;

// Puts row `row` of `rows`, with `inputs` numbers, into its place in x, and zeros behind it.
void PackAmxInput(const Bf16* numbers, int row, int rows, int inputs, Bf16* x);

// y[r][0, outputs) = w x[r] for panels [panel_begin, panel_end) of w, if RunsAmx(); x has all rows
// as PackAmxInput puts them; y has y_stride floats a row. Threads take disjoint panels.
void LinearAmx(const AmxMatrix& w, const Bf16* x, int rows, int panel_begin, int panel_end,
               float* y, size_t y_stride);

// Elements of a packed [outputs, inputs] matrix.
size_t AmxSize(int outputs, int inputs);
// As PackRows and UnpackRow, on any CPU.
void PackAmxRows(const Bf16* rows, int row_begin, int row_count, int inputs, Bf16* panels);
void UnpackAmxRow(const AmxMatrix& w, int row, float* out);

}  // namespace baton::kernels

#endif  // COMMON_ENGINE_KERNELS_AMX_H_
