// The engine's arithmetic: one table of functions per instruction set, all compiled from the same
// source (kernels-inl.h). CPUID decides once per process which table is used.
//
// Batch invariance. Every output element is computed by one chain of operations whose order depends
// on the model alone:
//   - linear: one fused multiply-add per input, in input order. No kernel splits the inputs, so
//     neither the number of rows nor the tile of a row matters.
//   - attention: per query row, keys in blocks of kKeyBlock from position 0 on, or from the block
//     where the row's window begins. Neither the chunk of the row nor the page size matters.
// The price: a single row can't spread one dot product over vector lanes. Instead weights are
// packed so that lanes hold different outputs, which costs nothing. Tables of different instruction
// sets round differently (the scalar one doesn't fuse), so their results are only close.
//
// Weights, keys and values may be bfloat16 in memory, weights also FP8 with scales. They are
// widened in registers, which is exact, and then go through the same operations, so the results
// equal those of the widened float32 bit for bit.
//
// All matrices are row-major, and float32 unless stated otherwise; pointers need no alignment.
// Functions don't allocate, are thread-safe, and trust their arguments: the executor has checked
// them.
#ifndef COMMON_ENGINE_KERNELS_KERNELS_H_
#define COMMON_ENGINE_KERNELS_KERNELS_H_

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace baton::kernels {

// Attention processes kKeyBlock keys at once, in kKeyBlock / kKeyTile tiles. Page sizes are
// multiples of kKeyTile.
inline constexpr int kKeyTile = 16;
inline constexpr int kKeyBlock = 64;

// The largest head_dim that attention supports; it must be a multiple of kKeyTile. The rows of
// DeepSeek's latent attention have so many elements.
inline constexpr int kMaxHeadDim = 576;

// A bfloat16 number: the upper half of a float32.
struct Bf16 {
  uint16_t bits;
};

// A weight matrix [outputs, inputs] in panels: [ceil(outputs / width)][inputs][width], the last
// panel padded with zeros. `width` is the table's panel_width. A column of Bf16, [width], is in the
// order 0, width / 2, 1, width / 2 + 1, ...: a vector of 32-bit lanes then holds one half of the
// panel in the lower halves of its lanes and the other in the upper halves. One shift and one mask
// widen them; a column in order would need twice the instructions.
template <typename Element>
struct Packed {
  const Element* panels;
  int outputs;
  int inputs;
};
// An FP8 number: sign, four bits of exponent (bias 7), three of mantissa. It has no infinities;
// what would be NaN is never in a matrix.
struct E4m3 {
  uint8_t bits;
};

// A matrix of E4m3 whose element in row r and column c is worth panels' element times
// scales[r / width][(c + offset) / kScaleBlock][r % width], rounded to float32. Columns are in
// order.
inline constexpr int kScaleBlock = 128;
template <>
struct Packed<E4m3> {
  const E4m3* panels;
  int outputs;
  int inputs;
  const float* scales;
  int offset;  // Below kScaleBlock: the columns of the first block that belong to others.
  int blocks() const { return (offset + inputs + kScaleBlock - 1) / kScaleBlock; }
};

using PackedMatrix = Packed<float>;
using PackedE4m3Matrix = Packed<E4m3>;
using PackedBf16Matrix = Packed<Bf16>;

// One KV head's keys and values of a sequence, cut into tiles of kKeyTile tokens: tile i holds the
// tokens [i * kKeyTile, (i + 1) * kKeyTile) as [token][dim], for keys and for values.
template <typename Element>
struct KvTiles {
  const Element* const* keys;
  const Element* const* values;
};

// Attention of consecutive query tokens of one sequence, for the query heads that share a KV head.
template <typename Element>
struct AttentionArgs {
  const float* query;  // Token t, head h at query + t * query_stride + h * head_dim.
  float* output;       // The same layout, with output_stride and value_dim.
  size_t query_stride;
  size_t output_stride;
  int tokens;
  int heads;  // Query heads of this KV head.
  int head_dim;
  // A value is the first so many elements of its row, which has head_dim; 0: all. A multiple of
  // kKeyTile.
  int value_dim = 0;
  int first_position;  // Token 0's; token t attends to positions up to first_position + t,
  int window = 0;      // and to so many at most, the last ones; 0: to all.
  float scale;
  float softcap = 0;  // Scores become softcap * tanh(score / softcap); 0: they stay.
  KvTiles<Element> kv;
};

// Weights for drawing tokens, in fixed point: kUnitWeight is the weight of the most probable token.
// Sums of integers are exact, so neither lanes nor the order of additions matter. A token less than
// 2^-31 times as probable as the best one has weight 0.
inline constexpr uint32_t kUnitWeight = uint32_t{1} << 30;
// Tokens are put into buckets by weight, the heaviest first: so many buckets for a factor of two.
inline constexpr int kBucketsPerOctave = 64;
inline constexpr int kWeightBuckets = 32 * kBucketsPerOctave;

struct KernelTable {
  const char* name;  // "scalar", "avx2", "avx512".
  int panel_width;   // Outputs per panel of PackedMatrix.

  // y[r] = x[r] / sqrt(mean(x[r]^2) + eps) * weight, for `rows` rows of `dim`. x == y is allowed.
  void (*rms_norm)(const float* x, const float* weight, float eps, int rows, int dim, float* y);

  // Rotates `heads` heads of `head_dim` at `x` in place, halves paired as Hugging Face does:
  // (x[i], x[i + dim/2]) by the angle whose cosine and sine are cos[i], sin[i], i < dim/2.
  void (*rope)(float* x, const float* cos, const float* sin, int heads, int head_dim);

  // y[r][i] = silu(gate_up[r][i]) * gate_up[r][dim + i]; gate_up is [rows, 2 * dim].
  void (*silu_mul)(const float* gate_up, int rows, int dim, float* y);

  // The same with GELU, by its approximation with tanh, in place of silu.
  void (*gelu_mul)(const float* gate_up, int rows, int dim, float* y);

  // x = cap * tanh(x / cap).
  void (*soft_cap)(float cap, size_t count, float* x);

  // y += x.
  void (*add)(const float* x, size_t count, float* y);

  // y += scale * x, each by one fused multiply-add where the table fuses.
  void (*add_scaled)(const float* x, float scale, size_t count, float* y);

  // y[r] += bias for `rows` rows of `dim`.
  void (*add_bias)(const float* bias, int rows, int dim, float* y);

  // y[r][0, outputs) = w x[r] for panels [panel_begin, panel_end) of w; x is [rows, inputs], y has
  // y_stride floats per row. Threads take disjoint panels.
  void (*linear)(const PackedMatrix& w, const float* x, int rows, int panel_begin, int panel_end,
                 float* y, size_t y_stride);
  void (*linear_bf16)(const PackedBf16Matrix& w, const float* x, int rows, int panel_begin,
                      int panel_end, float* y, size_t y_stride);
  void (*linear_e4m3)(const PackedE4m3Matrix& w, const float* x, int rows, int panel_begin,
                      int panel_end, float* y, size_t y_stride);

  // Causal attention with online softmax; keys before all tokens' windows are not read; no score
  // matrix beyond a few rows by kKeyBlock.
  void (*attention)(const AttentionArgs<float>& args);
  void (*attention_bf16)(const AttentionArgs<Bf16>& args);

  // y = x rounded to nearest, ties to even; infinities and NaN stay infinities and NaN. Every table
  // rounds alike.
  void (*to_bf16)(const float* x, size_t count, Bf16* y);
  // y = x, exactly.
  void (*from_bf16)(const Bf16* x, size_t count, float* y);
  // Replaces x by the result of to_bf16 followed by from_bf16.
  void (*round_to_bf16)(float* x, size_t count);

  // Whether all of x are finite. `max` is the largest that is not NaN; -infinity if there is none.
  bool (*max_of)(const float* x, size_t count, float* max);

  // The sum of exp(x - max), where no x is larger than max; each exponential in float, the sum in
  // double.
  double (*sum_exp)(const float* x, size_t count, float max);

  // weights[i] = kUnitWeight * 2^((x[i] - max) * scale), rounded, and the bucket of each; returns
  // the weights' sum. No x is larger than max; -infinity is allowed. scale >= 0, finite.
  uint64_t (*weigh)(const float* x, size_t count, float max, float scale, uint32_t* weights,
                    uint16_t* buckets);

  // Runs `rounds` rounds of independent multiply-adds in registers and returns the number of
  // floating-point operations. Its time gives the peak against which the other kernels are
  // measured.
  double (*multiply_adds)(int rounds);
};

// The table named "scalar", "avx2" or "avx512", or the best one for "". nullptr if there is no such
// table or this CPU can't run it.
const KernelTable* FindKernels(std::string_view name);

// The tables that this CPU runs, scalar first.
std::vector<const KernelTable*> AvailableKernels();

// The number of elements of a packed [outputs, inputs] matrix with panels of `panel_width`.
size_t PackedSize(int outputs, int inputs, int panel_width);

// Writes rows [row_begin, row_begin + row_count) of the matrix [outputs, inputs], given at `rows`,
// into `panels`, for float, Bf16 and E4m3. `panels` must be zero in the padding. Of scales, [rows,
// blocks], `inputs` are the blocks.
template <typename Element>
void PackRows(const Element* rows, int row_begin, int row_count, int inputs, int panel_width,
              Element* panels);

// Exactly; NaN for the two codes that are none of a matrix's.
float Widened(E4m3 value);

// Row `row` of a packed matrix, widened: out has w.inputs elements.
void UnpackRow(const PackedMatrix& w, int row, int panel_width, float* out);
void UnpackRow(const PackedBf16Matrix& w, int row, int panel_width, float* out);
void UnpackRow(const PackedE4m3Matrix& w, int row, int panel_width, float* out);

}  // namespace baton::kernels

#endif  // COMMON_ENGINE_KERNELS_KERNELS_H_
