#include "common/engine/executors/row_sampler.h"

#include <algorithm>
#include <new>

namespace baton {

RowSampler::RowSampler(StageModel* model) : model_(model) {
  samplers_.reserve(static_cast<size_t>(model->threads()));
  for (int i = 0; i < model->threads(); ++i) {
    samplers_.emplace_back(model->config().vocab_size);
  }
}

std::vector<RowSampler::Result> RowSampler::ForEach(
    size_t rows, const std::function<Result(Sampler&, size_t)>& row) {
  std::vector<Result> results(rows, absl::InternalError("the row was not drawn"));
  // ParallelFor splits parts, not rows: each part has a sampler of its own.
  const size_t parts = std::min(samplers_.size(), rows);
  const auto draw = [&](size_t i, size_t part) {
    try {
      results[i] = row(samplers_[part], i);
    } catch (const std::bad_alloc&) {  // On a pool thread it would end the process.
      results[i] = absl::ResourceExhaustedError("out of memory while drawing a token");
    }
  };
  model_->ParallelFor(static_cast<int>(parts), [&](int begin, int end) {
    for (auto part = static_cast<size_t>(begin); part < static_cast<size_t>(end); ++part) {
      for (size_t i = part * rows / parts; i < (part + 1) * rows / parts; ++i) draw(i, part);
    }
  });
  return results;
}

std::vector<RowSampler::Result> RowSampler::Draw(const std::vector<Sampler::Row>& rows) {
  return ForEach(rows.size(), [&](Sampler& sampler, size_t i) { return sampler.Sample(rows[i]); });
}

std::vector<RowSampler::Result> RowSampler::Report(std::span<const float> logits,
                                                   std::span<const int32_t> tokens, int top) {
  const auto vocab = static_cast<size_t>(model_->config().vocab_size);
  return ForEach(tokens.size(), [&](Sampler& sampler, size_t i) {
    return sampler.Report(logits.subspan(i * vocab, vocab), tokens[i], top);
  });
}

}  // namespace baton
