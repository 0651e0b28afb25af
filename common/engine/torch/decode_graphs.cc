#include "common/engine/torch/decode_graphs.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "common/base/check.h"

namespace baton {
namespace {

// Sections of one number for each row, in this order. kFollowed: where a row's token is, among the
// rows' own ones and the draws behind them.
enum Section : int { kTokens, kPositions, kPages, kSlots, kLengths, kStarts, kFollowed, kSections };

// Page ids of all rows of a step: 2 MiB.
constexpr int64_t kMostPages = int64_t{1} << 18;

}  // namespace

std::vector<int> DecodeGraphs::Sizes(int most_rows) {
  std::vector<int> sizes;
  for (int rows = 1; rows < most_rows; rows *= 2) sizes.push_back(rows);
  if (most_rows > 0) sizes.push_back(most_rows);
  return sizes;
}

DecodeGraphs::DecodeGraphs(const TorchDevice& device, DeviceKernels& kernels,
                           const Options& options, const Compute& compute)
    : device_(device), options_(options) {
  const int64_t count = kSections * options.most_rows + kMostPages;
  const auto on_device = at::TensorOptions(device.device());
  for (at::Tensor& host : host_) {
    host = device.AllocateStaging(static_cast<size_t>(count) * sizeof(int64_t)).view(at::kLong);
  }
  numbers_ = at::zeros({count}, on_device.dtype(at::kLong));
  if (options.input_columns > 0) {
    input_ = at::zeros({options.most_rows, options.input_columns}, on_device.dtype(at::kBFloat16));
  }
  // Large ones first: their memory serves the others.
  const std::vector<int> sizes = Sizes(options.most_rows);
  captured_.resize(sizes.size());
  for (size_t i = sizes.size(); i-- > 0;) {
    captured_[i].rows = sizes[i];
    Capture(kernels, compute, captured_[i]);
  }
}

TorchStep DecodeGraphs::StepOf(int64_t rows) const {
  const auto section = [&](int which) { return numbers_.narrow(0, which * rows, rows); };
  TorchStep step;
  step.tokens = section(kTokens);
  step.positions = section(kPositions);
  step.page = section(kPages);
  step.slot = section(kSlots);
  step.decode_rows = at::arange(rows, numbers_.options());
  step.paged = {section(kLengths), section(kStarts),
                numbers_.narrow(0, kSections * rows, kMostPages)};
  return step;
}

void DecodeGraphs::Capture(DeviceKernels& kernels, const Compute& compute,
                           Captured& captured) const {
  const int64_t rows = captured.rows;
  numbers_.zero_();
  numbers_.narrow(0, kPages * rows, rows).fill_(-1);
  const at::Tensor input = input_.defined() ? input_.narrow(0, 0, rows) : at::Tensor();
  const std::function<void()> work = [&captured, compute, step = StepOf(rows), input]() mutable {
    captured.output = compute(step, input);
  };
  work();  // Libraries allocate what they need at their first call.
  captured.output.reset();
  device_.Finish(Queue::kCompute);
  captured.graph = kernels.Capture(work);
}

bool DecodeGraphs::Takes(const Batch& batch) const {
  if (batch.slices.empty() || batch.slices.size() > static_cast<size_t>(options_.most_rows)) {
    return false;
  }
  int64_t pages = 0;
  for (const SequenceSlice& slice : batch.slices) {
    if (slice.token_count != 1 || slice.on_logits != nullptr) return false;
    pages += PagesSeenBy(slice, options_.page_size, options_.window).count();
  }
  return pages <= kMostPages;
}

at::Tensor DecodeGraphs::Run(const Batch& batch, const at::Tensor& input, const at::Tensor& drawn) {
  const auto count = static_cast<int64_t>(batch.slices.size());
  const auto chosen =
      std::find_if(captured_.begin(), captured_.end(),
                   [&](const Captured& captured) { return captured.rows >= count; });
  BATON_CHECK(chosen != captured_.end()) << count << " rows";
  const int64_t rows = chosen->rows;
  const at::Tensor& host = host_[turn_];
  turn_ = 1 - turn_;
  auto* const numbers = host.data_ptr<int64_t>();
  std::fill(numbers, numbers + kSections * rows, 0);
  std::fill(numbers + kPages * rows, numbers + (kPages + 1) * rows, -1);
  int64_t ids = 0;
  bool follow = false;
  for (int64_t row = 0; row < count; ++row) {
    const SequenceSlice& slice = batch.slices[static_cast<size_t>(row)];
    const int64_t position = slice.prefix_length;
    const SeenPages seen = PagesSeenBy(slice, options_.page_size, options_.window);
    const auto put = [&](int section, int64_t value) { numbers[section * rows + row] = value; };
    put(kTokens, slice.tokens.empty() ? 0 : slice.tokens[0]);
    put(kPositions, position);
    put(kPages, seen.pages.back());
    put(kSlots, position % options_.page_size);
    put(kLengths, seen.end);
    put(kStarts, ids);
    put(kFollowed, slice.follows.has_value() ? rows + *slice.follows : row);
    follow = follow || slice.follows.has_value();
    std::copy(seen.pages.begin(), seen.pages.end(), numbers + kSections * rows + ids);
    ids += seen.count();
  }
  const int64_t used = kSections * rows + ids;
  numbers_.narrow(0, 0, used).copy_(host.narrow(0, 0, used), /*non_blocking=*/true);
  if (follow) {
    at::Tensor tokens = numbers_.narrow(0, kTokens * rows, rows);
    // A row that could not be drawn has no token: its text ends, and any may be fed.
    const at::Tensor all = at::cat({tokens, drawn}).clamp_min_(0);
    at::index_select_out(tokens, all, 0, numbers_.narrow(0, kFollowed * rows, rows));
  }
  if (input_.defined()) input_.narrow(0, 0, count).copy_(input, /*non_blocking=*/true);
  chosen->graph->Replay();
  return chosen->output.narrow(0, 0, count);
}

}  // namespace baton
