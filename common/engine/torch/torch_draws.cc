#include "common/engine/torch/torch_draws.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "common/engine/kernels/kernels.h"
#include "common/engine/requirements.h"

namespace baton {
namespace {

// Where the last bucket ends: the weight there is 0, as KernelTable::weigh has it.
constexpr double kLeastOctaves = -kernels::kWeightBuckets / kernels::kBucketsPerOctave;
constexpr int64_t kIdRange = int64_t{1} << 32;

// Rows of one kind, and what they ask for: columns [rows, 1].
struct Rows {
  at::Tensor logits;      // [rows, vocab]
  at::Tensor scale;       // float32
  at::Tensor top_k;       // int64; 0: all.
  at::Tensor top_p;       // float64
  at::Tensor least;       // int64
  at::Tensor uniform;     // float64
  int64_t most_kept = 0;  // The largest top_k.
  bool all_kept = false;  // Whether a row has no top_k.
};

// `logits` are those of the draws at `places`.
Rows RowsOf(const TorchDevice& device, const at::Tensor& logits, std::span<const RowDraw> draws,
            const std::vector<int64_t>& places) {
  constexpr int64_t kColumns = 5;
  Rows rows;
  std::vector<double> numbers;
  for (const int64_t place : places) {
    const RowDraw& draw = draws[static_cast<size_t>(place)];
    const int64_t top_k = draw.top_k < logits.size(1) ? draw.top_k : 0;
    rows.most_kept = std::max(rows.most_kept, top_k);
    rows.all_kept = rows.all_kept || top_k == 0;
    numbers.insert(numbers.end(), {double{draw.scale}, static_cast<double>(top_k), draw.top_p,
                                   static_cast<double>(draw.least_weight), draw.uniform});
  }
  const at::Tensor all = device.UploadNumbers(numbers).view({logits.size(0), kColumns});
  const auto column = [&all](int64_t i) { return all.narrow(1, i, 1); };
  rows.logits = logits;
  rows.scale = column(0).to(at::kFloat);
  rows.top_k = column(1).to(at::kLong);
  rows.top_p = column(2);
  rows.least = column(3).to(at::kLong);
  rows.uniform = column(4);
  return rows;
}

// [rows, vocab] int64, of which the highest logit has kUnitWeight.
at::Tensor Weigh(const Rows& rows) {
  const at::Tensor octaves = (rows.logits - rows.logits.amax({-1}, /*keepdim=*/true))
                                 .mul_(rows.scale)
                                 .clamp_min_(kLeastOctaves);
  return octaves.exp2_().mul_(double{kernels::kUnitWeight}).add_(0.5).to(at::kLong);
}

// The ids of each row's first `count` tokens by logit, the lowest id first among equals.
at::Tensor Rank(const at::Tensor& logits, int64_t count) {
  // A float's bits as an integer that is ordered as the floats are. 0 is added for -0.
  constexpr int32_t kMagnitude = 0x7fffffff;
  const at::Tensor bits = (logits + 0).view(at::kInt);
  const at::Tensor ordered =
      bits.bitwise_xor(bits.bitwise_right_shift(31).bitwise_and(kMagnitude)).to(at::kLong);
  const at::Tensor ids = at::arange(logits.size(1), ordered.options());
  const at::Tensor keys = ordered.mul_(kIdRange).sub_(ids);  // All are different.
  return std::get<0>(keys.topk(count, -1)).neg_().bitwise_and_(kIdRange - 1);
}

// The weights of ranked tokens, of those that top_k keeps.
at::Tensor KeptWeights(const Rows& rows, const at::Tensor& weights, const at::Tensor& ids) {
  const at::Tensor places = at::arange(ids.size(1), ids.options());
  const at::Tensor dropped = rows.top_k.gt(0).bitwise_and(places.ge(rows.top_k));
  return weights.gather(1, ids).masked_fill_(dropped, 0);
}

// The place of the row's draw in a weight of `whole`.
at::Tensor Share(const Rows& rows, const at::Tensor& whole) {
  return at::minimum((rows.uniform * whole).to(at::kLong), whole - 1);
}

// Where in each row of sums the one that contains `at` is; their number: in none.
at::Tensor Find(const at::Tensor& sums, const at::Tensor& at) {
  return at::searchsorted(sums, at, /*out_int32=*/false, /*right=*/true);
}

// Without top_p: tokens lie side by side in the order of their ids.
at::Tensor DrawById(const Rows& rows) {
  at::Tensor weights = Weigh(rows);
  if (rows.most_kept > 0) {
    const at::Tensor ids = Rank(rows.logits, rows.most_kept);
    at::Tensor kept = at::zeros_like(weights).scatter_(1, ids, KeptWeights(rows, weights, ids));
    weights = rows.all_kept ? at::where(rows.top_k.gt(0), kept, weights) : kept;
  }
  weights.masked_fill_(weights.lt(rows.least), 0);
  const at::Tensor sums = weights.cumsum(-1);
  const at::Tensor total = sums.narrow(1, sums.size(1) - 1, 1);
  return Find(sums, Share(rows, total)).squeeze(1);
}

// With top_p: in the order of the ranking, of which the first `candidates` are looked at.
at::Tensor DrawByRank(const Rows& rows, int64_t candidates) {
  const at::Tensor weights = Weigh(rows);
  const int64_t looked_at = std::min(std::max(candidates, rows.most_kept), rows.logits.size(1));
  const at::Tensor ids = Rank(rows.logits, looked_at);
  const at::Tensor sums = KeptWeights(rows, weights, ids).cumsum(-1);
  const at::Tensor of_first = sums.narrow(1, looked_at - 1, 1);
  const at::Tensor whole =
      at::where(rows.top_k.gt(0), of_first, weights.sum({-1}, /*keepdim=*/true));
  const at::Tensor needed = (rows.top_p * whole).ceil_().to(at::kLong).clamp_min_(1);
  const at::Tensor last = Find(sums, at::minimum(needed, whole) - 1);
  at::Tensor kept = sums.gather(1, last.clamp_max(looked_at - 1));
  const at::Tensor likely = weights.masked_fill(weights.lt(rows.least), 0);
  kept = at::minimum(kept, likely.sum({-1}, /*keepdim=*/true));
  const at::Tensor place = Find(sums, Share(rows, kept)).clamp_max_(looked_at - 1);
  return ids.gather(1, place).masked_fill_(last.ge(looked_at), kTooFewCandidates).squeeze(1);
}

// As DrawRows, of few rows: it takes kTorchDrawFloats for each logit.
at::Tensor DrawFewRows(const TorchDevice& device, const at::Tensor& logits,
                       std::span<const RowDraw> draws, int64_t candidates) {
  enum Kind { kGreedy, kById, kByRank, kKinds };
  std::vector<int64_t> places[kKinds];
  for (size_t i = 0; i < draws.size(); ++i) {
    const Kind kind = draws[i].scale == 0 ? kGreedy : draws[i].top_p < 1 ? kByRank : kById;
    places[kind].push_back(static_cast<int64_t>(i));
  }
  const auto draw = [&](Kind kind, const at::Tensor& rows) {
    if (kind == kGreedy) return rows.argmax(-1);
    const Rows asked = RowsOf(device, rows, draws, places[kind]);
    return kind == kById ? DrawById(asked) : DrawByRank(asked, candidates);
  };
  at::Tensor tokens;
  for (const Kind kind : {kGreedy, kById, kByRank}) {
    if (places[kind].empty()) continue;
    if (places[kind].size() == draws.size()) {
      tokens = draw(kind, logits);
      break;
    }
    if (!tokens.defined()) tokens = at::empty({logits.size(0)}, logits.options().dtype(at::kLong));
    const at::Tensor index = device.UploadNumbers(places[kind]);
    tokens.index_copy_(0, index, draw(kind, logits.index_select(0, index)));
  }
  return tokens.masked_fill_(logits.isfinite().all(-1).logical_not(), kNotFinite);
}

}  // namespace

at::Tensor DrawRows(const TorchDevice& device, const at::Tensor& logits,
                    std::span<const RowDraw> draws, int64_t candidates) {
  std::vector<at::Tensor> parts;
  for (size_t i = 0; i < draws.size(); i += kLogitRows) {
    const std::span<const RowDraw> part =
        draws.subspan(i, std::min<size_t>(kLogitRows, draws.size() - i));
    const at::Tensor rows =
        logits.narrow(0, static_cast<int64_t>(i), static_cast<int64_t>(part.size()));
    parts.push_back(DrawFewRows(device, rows, part, candidates));
  }
  return at::cat(parts);
}

std::vector<int32_t> DrawTokens(const TorchDevice& device, const at::Tensor& logits,
                                std::span<const RowDraw> draws, int64_t candidates) {
  const at::Tensor drawn = device.ToHost(DrawRows(device, logits, draws, candidates));
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < draws.size(); ++i) {
    int64_t token = drawn.data_ptr<int64_t>()[i];
    if (token == kTooFewCandidates) {  // Alone, since a ranking of all takes more memory.
      const at::Tensor row = logits.narrow(0, static_cast<int64_t>(i), 1);
      token =
          device.ToHost(DrawRows(device, row, draws.subspan(i, 1), logits.size(1))).item<int64_t>();
    }
    tokens.push_back(static_cast<int32_t>(token));
  }
  return tokens;
}

bool MayLackCandidates(const RowDraw& draw, int64_t vocab) {
  // The candidates are at least what any row's top_k keeps.
  return draw.scale != 0 && draw.top_p < 1 && (draw.top_k == 0 || draw.top_k >= vocab);
}

}  // namespace baton
