#include "services/prefill/stage/cost_sweep.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <memory>
#include <numeric>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/sync.h"
#include "common/chunking/stage_cost.h"

namespace baton::prefill {
namespace {

// Of the largest plan.
constexpr int kShares[] = {8, 2, 4};
constexpr size_t kTurns = 3;
constexpr size_t kLeastSamples = 6;  // For four coefficients.
constexpr int kRounds = 4;           // In which the fit sees the samples.
constexpr double kSlower = 1.5;  // A chunk than those before by the token: its prefix is longer.

// The prompt, and memory for a chunk's activations.
class Prompt {
 public:
  static absl::StatusOr<std::unique_ptr<Prompt>> Create(Executor& executor, int tokens,
                                                        int chunk_tokens) {
    std::unique_ptr<Prompt> prompt(new Prompt(executor, tokens));
    const size_t bytes = static_cast<size_t>(chunk_tokens) *
                         static_cast<size_t>(executor.activation_columns()) *
                         ElementBytes(executor.activation_type());
    if (!executor.first_stage()) {
      BATON_ASSIGN_OR_RETURN(prompt->in_, executor.AllocateActivations(bytes));
      const MemorySpan& in = prompt->in_.span();
      // Elsewhere they are whatever they are: what arithmetic makes of them takes no other time.
      if (in.ReadableByHost()) std::memset(in.data, 0, in.bytes);
    }
    if (!executor.last_stage()) {
      BATON_ASSIGN_OR_RETURN(prompt->out_, executor.AllocateActivations(bytes));
    }
    return prompt;
  }

  // The next chunk. Waits.
  absl::StatusOr<SweepSample> Run(int tokens) {
    SequenceStep sequence;
    sequence.token_count = tokens;
    sequence.prefix_length = done_tokens_;
    sequence.pages = pages_;
    if (executor_.first_stage()) {
      sequence.tokens = std::span<const int32_t>(ids_).subspan(static_cast<size_t>(done_tokens_),
                                                               static_cast<size_t>(tokens));
    }
    Step step;
    step.sequences.push_back(sequence);
    step.in = View(in_, tokens);
    step.out = View(out_, tokens);
    StepResult ended;
    Notification end;
    executor_.Submit(std::move(step), [&](StepResult result) {
      ended = std::move(result);
      end.Notify();
    });
    end.WaitForNotification();
    BATON_RETURN_IF_ERROR(ended.status);
    const SweepSample sample{done_tokens_, tokens, ended.compute_us};
    done_tokens_ += tokens;
    return sample;
  }

 private:
  Prompt(Executor& executor, int tokens) : executor_(executor), ids_(static_cast<size_t>(tokens)) {
    const int vocabulary = executor.config().vocab_size;
    for (int i = 0; i < tokens; ++i) ids_[static_cast<size_t>(i)] = i % vocabulary;
    const int page = executor.kv().page_size;
    pages_.resize(static_cast<size_t>((tokens + page - 1) / page));
    std::iota(pages_.begin(), pages_.end(), 0);
  }

  TensorView View(const MemoryBuffer& buffer, int rows) const {
    if (buffer.span().empty()) return {};
    TensorView view{buffer.span(), executor_.activation_type(), rows,
                    executor_.activation_columns()};
    view.memory = view.memory.Sub(0, view.bytes());
    return view;
  }

  Executor& executor_;
  std::vector<int32_t> ids_;
  std::vector<int32_t> pages_;
  MemoryBuffer in_;
  MemoryBuffer out_;
  int done_tokens_ = 0;
};

// Of a chunk, by the slowest so far.
int64_t ExpectedMicros(const std::vector<SweepSample>& samples, int tokens) {
  double slowest = 0;
  for (const SweepSample& sample : samples) {
    slowest = std::max(slowest, static_cast<double>(sample.micros) / sample.tokens);
  }
  return static_cast<int64_t>(kSlower * slowest * tokens);
}

absl::Status Measure(Prompt& prompt, int page_size, const std::vector<int>& chunks,
                     int64_t budget_us, std::vector<SweepSample>& samples) {
  const int64_t end_us = NowUs() + budget_us;
  BATON_ASSIGN_OR_RETURN(const SweepSample cold, prompt.Run(page_size));
  // It took longer than it will, so it stands for no time, but for what to expect of the next.
  std::vector<SweepSample> seen = {cold};
  for (const int tokens : chunks) {
    if (NowUs() + ExpectedMicros(seen, tokens) > end_us) break;
    BATON_ASSIGN_OR_RETURN(const SweepSample sample, prompt.Run(tokens));
    if (samples.empty()) seen.clear();
    samples.push_back(sample);
    seen.push_back(sample);
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<int> SweepChunks(int page_size, int page_count, const SweepLimits& limits) {
  std::vector<int> sizes;
  for (const int share : kShares) {
    const int pages = limits.max_chunk_tokens / share / page_size;
    if (pages < 1) return {};
    sizes.push_back(pages * page_size);
  }
  const int64_t room = std::min<int64_t>(
      int64_t{page_count} * page_size, int64_t{limits.max_context_tokens} / page_size * page_size);
  int64_t left = room - page_size;  // Behind the first page.
  std::vector<int> chunks;
  while (chunks.size() < kTurns * sizes.size()) {
    const int tokens = sizes[chunks.size() % sizes.size()];
    if (tokens > left) break;
    chunks.push_back(tokens);
    left -= tokens;
  }
  return chunks.size() < kLeastSamples ? std::vector<int>() : chunks;
}

SweepResult FitSamples(std::vector<SweepSample> samples) {
  SweepResult result;
  result.samples = std::move(samples);
  if (result.samples.size() < kLeastSamples) {
    result.missing = absl::StrCat("only ", result.samples.size(), " chunks in the time for it");
    return result;
  }
  // The fit leaves its first plan out, which here was: so that it is none of these, it sees the
  // last one twice.
  CostFit fit;
  const auto add = [&fit](const SweepSample& sample) {
    PlanWork work;
    work.Add(sample.prefix_length, sample.tokens);
    fit.Add(work, sample.micros);
  };
  add(result.samples.back());
  for (int round = 0; round < kRounds; ++round) {
    for (const SweepSample& sample : result.samples) add(sample);
  }
  const std::optional<StageCost> cost = fit.cost();
  if (!cost) {
    result.missing = fit.missing();
    return result;
  }
  double off = 0;
  for (const SweepSample& sample : result.samples) {
    const auto micros = static_cast<double>(std::max<int64_t>(sample.micros, 1));
    off += std::min(std::abs(cost->Micros(sample.prefix_length, sample.tokens) / micros - 1), 1.0);
  }
  const double error = off / static_cast<double>(result.samples.size());
  if (error > CostFit::kLargestError) {
    result.missing = "chunks take other times than their sizes say";
    return result;
  }
  result.cost = {*cost, error};
  return result;
}

SweepResult SweepCosts(Executor& executor, const SweepLimits& limits) {
  const int page_size = executor.kv().page_size;
  const std::vector<int> chunks = SweepChunks(page_size, executor.kv().page_count, limits);
  if (chunks.empty()) return {std::nullopt, "no room for chunks of different sizes", {}};
  const int tokens = std::accumulate(chunks.begin(), chunks.end(), page_size);
  const int largest = *std::max_element(chunks.begin(), chunks.end());
  auto prompt = Prompt::Create(executor, tokens, largest);
  if (!prompt.ok()) return {std::nullopt, std::string(prompt.status().message()), {}};
  std::vector<SweepSample> samples;
  const absl::Status status = Measure(**prompt, page_size, chunks, limits.budget_us, samples);
  if (!status.ok()) return {std::nullopt, std::string(status.message()), std::move(samples)};
  return FitSamples(std::move(samples));
}

}  // namespace baton::prefill
