#include "services/decode/step_runner.h"

#include <span>
#include <utility>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/log.h"

namespace baton::decode {

StepRunner::StepRunner(Executor* executor, std::function<void(StepFinished, int64_t)> on_finished)
    : executor_(executor),
      on_finished_(std::move(on_finished)),
      rows_(executor),
      loop_("baton-compute") {
  loop_.Start();
}

StepRunner::~StepRunner() { Stop(); }

void StepRunner::Run(Job job) {
  BATON_CHECK(job.samplings.size() == job.step.sequences.size())
      << job.samplings.size() << " samplings for " << job.step.sequences.size() << " sequences";
  // std::function needs what it holds to be copyable; a job is not worth copying.
  auto shared = std::make_shared<const Job>(std::move(job));
  const bool posted = loop_.Post([this, shared] {
    const int64_t begun_us = NowUs();
    running_since_us_ = begun_us;
    StepFinished finished = Compute(*shared);
    running_since_us_ = 0;
    on_finished_(std::move(finished), NowUs() - begun_us);
  });
  if (!posted) {
    LOG(kInfo) << "step " << shared->step.step << " is dropped: stopping";
  }
}

StepFinished StepRunner::Compute(const Job& job) {
  const std::vector<RunStep::Sequence>& sequences = job.step.sequences;
  StepFinished finished{job.step.step, Failpoint("decode.step"), {}};
  if (!finished.status.ok()) return finished;
  Batch batch;
  for (const RunStep::Sequence& sequence : sequences) {
    SequenceSlice slice;
    slice.tokens = std::span(&sequence.token, 1);
    slice.token_count = 1;
    slice.prefix_length = sequence.position;
    slice.pages = sequence.pages;
    slice.wants_logits = true;
    batch.slices.push_back(slice);
  }
  const auto vocab = static_cast<size_t>(executor_->config().vocab_size);
  logits_.resize(sequences.size() * vocab);
  finished.status = executor_->Forward(batch, {}, {}, logits_);
  if (!finished.status.ok()) return finished;
  std::vector<Sampler::Row> rows;
  for (size_t i = 0; i < sequences.size(); ++i) {
    SequenceSampling& sampling = *job.samplings[i];
    if (sampling.sampler.params().NeedsHistory()) sampling.history.Add(sequences[i].token);
    rows.push_back(sampling.sampler.RowOf(std::span<const float>(logits_).subspan(i * vocab, vocab),
                                          sequences[i].generated, &sampling.history));
  }
  std::vector<absl::StatusOr<SampledToken>> tokens = rows_.Draw(rows);
  for (size_t i = 0; i < sequences.size(); ++i) {
    finished.outputs.push_back({sequences[i].attempt_id, std::move(tokens[i])});
  }
  return finished;
}

}  // namespace baton::decode
