#include "services/prefill/stage/executor_thread.h"

#include <memory>
#include <utility>

#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/log.h"

namespace baton::prefill {

ExecutorThread::ExecutorThread(Executor* executor, std::function<void(StageEvent)> on_event)
    : executor_(executor), on_event_(std::move(on_event)), loop_("baton-compute") {
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
  ComputeFinished finished{job.epoch, job.number, Failpoint("prefill.compute"), 0, {}};
  if (!finished.status.ok()) return finished;
  const bool first = executor_->first_stage();
  const bool last = executor_->last_stage();
  Batch batch;
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
    batch.slices.push_back(slice);
  }
  const auto vocab = static_cast<size_t>(executor_->config().vocab_size);
  logits_.resize(static_cast<size_t>(batch.LogitsCount()) * vocab);
  finished.status = executor_->Forward(batch, job.buffers.in, job.buffers.out, logits_);
  if (!finished.status.ok() || !last) return finished;
  size_t row = 0;
  for (const ComputeJob::Item& item : job.items) {
    if (!item.final) continue;
    const auto logits = std::span<const float>(logits_).subspan(row++ * vocab, vocab);
    finished.first_tokens.push_back(item.prompt->sampler.Draw(logits, 0));
  }
  return finished;
}

}  // namespace baton::prefill
