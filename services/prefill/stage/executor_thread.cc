#include "services/prefill/stage/executor_thread.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/log.h"
#include "common/base/status.h"

namespace baton::prefill {

ExecutorThread::ExecutorThread(Executor* executor, std::function<void(StageEvent)> on_event)
    : executor_(executor), on_event_(std::move(on_event)), loop_("baton-compute") {
  if (executor->last_stage()) rows_.emplace(executor);
  loop_.Start();
}

ExecutorThread::~ExecutorThread() { Stop(); }

void ExecutorThread::Run(ComputeJob job) {
  // std::function needs what it holds to be copyable; a job is not worth copying.
  auto shared = std::make_shared<ComputeJob>(std::move(job));
  const bool posted = loop_.Post([this, shared] {
    running_since_us_ = NowUs();
    ComputeFinished finished = Compute(*shared);
    finished.compute_us = NowUs() - running_since_us_.load();
    running_since_us_ = 0;
    on_event_(std::move(finished));
  });
  if (!posted) {
    LOG(kInfo) << "plan " << shared->number << " is dropped: the executor has stopped";
  }
}

ComputeFinished ExecutorThread::Compute(const ComputeJob& job) {
  ComputeFinished finished{job.epoch, job.number, Failpoint("prefill.compute"), 0, {}, {}};
  if (!finished.status.ok()) return finished;
  const bool first = executor_->first_stage();
  const bool last = executor_->last_stage();
  Batch batch;
  finished.prompts.reserve(job.items.size());  // Its elements are pointed to.
  for (const ComputeJob::Item& item : job.items) {
    SequenceSlice slice;
    slice.token_count = item.token_count;
    slice.prefix_length = item.token_begin;
    slice.pages = item.pages;
    slice.wants_logits = last && item.final;
    if (first) {
      slice.tokens = std::span<const int32_t>(item.prompt->tokens)
                         .subspan(static_cast<size_t>(item.token_begin),
                                  static_cast<size_t>(item.token_count));
    }
    if (last && item.prompt->sampler.prompt_logprobs()) {
      finished.prompts.push_back({{item.attempt_id, item.token_begin + 1, {}}, absl::OkStatus()});
      slice.on_logits = [this, &item, prompt = &finished.prompts.back()](
                            int first_row, std::span<const float> logits) {
        Report(item, first_row, logits, *prompt);
      };
    }
    batch.slices.push_back(std::move(slice));
  }
  const auto vocab = static_cast<size_t>(executor_->config().vocab_size);
  logits_.resize(static_cast<size_t>(batch.LogitsCount()) * vocab);
  finished.status = executor_->Forward(batch, job.buffers.in, job.buffers.out, logits_);
  if (finished.status.ok() && last) finished.first_tokens = DrawFirstTokens(job);
  return finished;
}

void ExecutorThread::Report(const ComputeJob::Item& item, int first, std::span<const float> logits,
                            ComputeFinished::Prompt& prompt) {
  if (!prompt.status.ok()) return;
  const auto vocab = static_cast<size_t>(executor_->config().vocab_size);
  const std::vector<int32_t>& tokens = item.prompt->tokens;
  // The last row of a prompt has no token after it: its logits are the first token's.
  const auto after = static_cast<size_t>(item.token_begin) + static_cast<size_t>(first) + 1;
  const size_t count = std::min(logits.size() / vocab, tokens.size() - after);
  for (absl::StatusOr<SampledToken>& token :
       rows_->Report(logits.first(count * vocab), std::span(tokens).subspan(after, count),
                     item.prompt->sampler.prompt_top_logprobs())) {
    if (!token.ok()) {
      prompt.status = Annotate(token.status(), "log-probabilities of the prompt");
      return;
    }
    prompt.told.tokens.push_back(*std::move(token));
  }
}

std::vector<absl::StatusOr<SampledToken>> ExecutorThread::DrawFirstTokens(const ComputeJob& job) {
  const auto vocab = static_cast<size_t>(executor_->config().vocab_size);
  std::vector<TokenHistory> histories(job.items.size());
  std::vector<Sampler::Row> rows;
  for (size_t i = 0; i < job.items.size(); ++i) {
    if (!job.items[i].final) continue;
    const PromptContext& prompt = *job.items[i].prompt;
    if (prompt.sampler.params().NeedsPrompt()) histories[i].SetPrompt(prompt.tokens);
    const auto logits = std::span<const float>(logits_).subspan(rows.size() * vocab, vocab);
    rows.push_back(prompt.sampler.RowOf(logits, 0, &histories[i]));
  }
  return rows_->Draw(rows);
}

}  // namespace baton::prefill
