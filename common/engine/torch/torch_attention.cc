#include "common/engine/torch/torch_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/softmax.h>
#include <torch/version.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <vector>

#include "common/engine/requirements.h"

#if TORCH_VERSION_MAJOR >= 2
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#endif

namespace baton {
namespace {

// Instead of infinity, with which a row that sees nothing would have no number.
constexpr double kUnseen = -1e30;

// By plain operators: right for every device, type and shape.
Attended AttendPlainly(const at::Tensor& query, const at::Tensor& keys, const at::Tensor& values,
                       const at::Tensor& unseen, const ScoreForm& form, bool merged) {
  std::vector<int64_t> shape = query.sizes().vec();
  const int64_t key_dim = shape.back();
  shape.back() = keys.size(-2);
  std::vector<int64_t> flat(shape.begin(), shape.end() - 3);
  flat.push_back(query.size(-3) * query.size(-2));  // Rows that share keys.
  flat.push_back(key_dim);
  at::Tensor scores = at::matmul(query.reshape(flat), keys.transpose(-1, -2)).view(shape);
  scores = scores.scalar_type() == at::kFloat ? scores.mul_(form.scale)
                                              : scores.to(at::kFloat) * form.scale;
  if (form.softcap > 0) scores.div_(form.softcap).tanh_().mul_(form.softcap);
  if (unseen.defined()) scores.masked_fill_(unseen, kUnseen);
  const at::Tensor shares = at::softmax(scores, -1);
  // The share of the highest score says the sum: exp(highest - log_sum).
  at::Tensor log_sum;
  if (merged) {
    log_sum = scores.amax({-1}, /*keepdim=*/true) - shares.amax({-1}, /*keepdim=*/true).log_();
  }
  flat.back() = shape.back();
  shape.back() = values.size(-1);
  return {at::matmul(shares.to(query.scalar_type()).view(flat), values).view(shape), log_sum};
}

#if TORCH_VERSION_MAJOR >= 2

at::Tensor ForGroups(const at::Tensor& keys, int64_t group) {  // [.., group, length, columns]
  std::vector<int64_t> shape = keys.sizes().vec();
  shape.insert(shape.end() - 2, group);
  return keys.unsqueeze(-3).expand(shape);
}

// libtorch's own blocks, on a CPU: [batch, heads, rows, dim] with batch = all leading dimensions.
Attended AttendOnCpu(const at::Tensor& query, const at::Tensor& keys, const at::Tensor& values,
                     const at::Tensor& unseen, double scale) {
  const int64_t group = query.size(-3);
  const auto flat = [](const at::Tensor& tensor) {
    return tensor.dim() == 4 ? tensor : tensor.flatten(0, tensor.dim() - 4);
  };
  std::optional<at::Tensor> mask;
  if (unseen.defined()) {
    std::vector<int64_t> shape = query.sizes().vec();
    shape.back() = keys.size(-2);
    const at::Tensor added =
        at::zeros(unseen.sizes(), query.options()).masked_fill_(unseen, kUnseen);
    mask = flat(added.expand(shape));
  }
  auto [output, log_sum] = at::_scaled_dot_product_flash_attention_for_cpu(
      flat(query), flat(ForGroups(keys, group)), flat(ForGroups(values, group)),
      /*dropout_p=*/0.0, /*is_causal=*/false, mask, scale);
  std::vector<int64_t> shape = query.sizes().vec();
  shape.back() = 1;
  log_sum = log_sum.to(at::kFloat).reshape(shape);
  shape.back() = values.size(-1);
  return {output.reshape(shape), log_sum};
}

#endif

// The rows [begin, end) of a chunk and the keys [first, last) of its sequence.
class Piece {
 public:
  Piece(const ChunkShape& shape, int64_t begin, int64_t end)
      : shape_(shape), begin_(begin), end_(end) {}

  // Whether no row sees any of the keys.
  bool Empty(int64_t first, int64_t last) const {
    return first >= shape_.prefix + end_ || last <= Lowest(begin_);
  }
  // Keys that no row sees are at the end.
  int64_t Clip(int64_t last) const { return std::min(last, shape_.prefix + end_); }
  // True where a row does not see a key; undefined if all rows see all keys.
  at::Tensor Unseen(int64_t first, int64_t last, const at::Tensor& like) const {
    const bool ahead = last > shape_.prefix + begin_ + 1;
    const bool behind = first < Lowest(end_ - 1);
    if (!ahead && !behind) return {};
    const auto options = at::TensorOptions(at::kLong).device(like.device());
    const at::Tensor distance =  // From the key to the row.
        at::arange(shape_.prefix + begin_, shape_.prefix + end_, options).unsqueeze(1) -
        at::arange(first, last, options).unsqueeze(0);
    if (!behind) return distance.lt(0);
    if (!ahead) return distance.ge(shape_.window);
    return distance.lt(0).logical_or_(distance.ge(shape_.window));
  }

 private:
  // The first key that a row sees.
  int64_t Lowest(int64_t row) const {
    return shape_.window > 0 ? std::max<int64_t>(0, shape_.prefix + row + 1 - shape_.window) : 0;
  }

  const ChunkShape& shape_;
  const int64_t begin_;
  const int64_t end_;
};

KeyBlock Narrow(const KeyBlock& keys, int64_t begin, int64_t end) {
  if (begin == 0 && end == keys.first.size(1)) return keys;
  return {keys.first.narrow(1, begin, end - begin), keys.second.narrow(1, begin, end - begin)};
}

}  // namespace

Attended AttendBlock(const at::Tensor& query, const at::Tensor& keys, const at::Tensor& values,
                     const at::Tensor& unseen, const ScoreForm& form, bool merged) {
#if TORCH_VERSION_MAJOR >= 2
  if (query.is_cpu() && keys.size(-1) == values.size(-1) && form.softcap == 0) {
    return AttendOnCpu(query, keys, values, unseen, form.scale);
  }
#endif
  return AttendPlainly(query, keys, values, unseen, form, merged);
}

void Merge(Attended more, Attended& sum) {
  if (!sum.output.defined()) {
    sum = std::move(more);
    return;
  }
  const at::Tensor highest = at::maximum(sum.log_sum, more.log_sum);
  const at::Tensor before = (sum.log_sum - highest).exp_();
  const at::Tensor after = (more.log_sum - highest).exp_();
  const at::Tensor both = before + after;
  const at::Tensor wide = sum.output.to(at::kFloat) * (before / both);
  sum.output = wide.addcmul_(more.output.to(at::kFloat), after / both);
  sum.log_sum = highest + both.log();
}

at::Tensor AttendChunk(const ChunkShape& shape, const at::Tensor& query, const KeyBlock& own,
                       const GetKeys& prefix) {
  const int64_t first = shape.first_key();
  const int64_t heads = query.size(0) * query.size(1);
  const int64_t key_block =
      std::max<int64_t>(1, kTorchKeyBlock / shape.page_size) * shape.page_size;
  const int64_t row_block = std::max<int64_t>(1, kTorchScoreElements / (heads * key_block));
  const bool several = first < shape.prefix || shape.tokens > key_block;
  std::vector<Attended> sums(static_cast<size_t>((shape.tokens + row_block - 1) / row_block));
  const auto add = [&](const KeyBlock& keys, int64_t begin, int64_t end) {
    for (size_t i = 0; i < sums.size(); ++i) {
      const int64_t row = static_cast<int64_t>(i) * row_block;
      const int64_t rows = std::min(row_block, shape.tokens - row);
      const Piece piece(shape, row, row + rows);
      if (piece.Empty(begin, end)) continue;
      const int64_t clipped = piece.Clip(end);
      const KeyBlock seen = Narrow(keys, 0, clipped - begin);
      Merge(AttendBlock(query.narrow(2, row, rows), seen.first, seen.second,
                        piece.Unseen(begin, clipped, query), shape.form, several),
            sums[i]);
    }
  };
  for (int64_t begin = first; begin < shape.prefix; begin += key_block) {
    const int64_t end = std::min(shape.prefix, begin + key_block);
    add(prefix(begin, end), begin, end);
  }
  for (int64_t begin = 0; begin < shape.tokens; begin += key_block) {
    const int64_t end = std::min(shape.tokens, begin + key_block);
    add(Narrow(own, begin, end), shape.prefix + begin, shape.prefix + end);
  }
  std::vector<at::Tensor> outputs;
  outputs.reserve(sums.size());
  for (const Attended& sum : sums) outputs.push_back(sum.output.to(query.scalar_type()));
  return outputs.size() == 1 ? outputs[0] : at::cat(outputs, 2);
}

}  // namespace baton
