#include "services/decode/step_runner.h"

#include <span>
#include <utility>

#include "common/base/check.h"

namespace baton::decode {

StepRunner::StepRunner(Executor* executor, std::function<void(StepFinished, int64_t)> on_finished)
    : on_finished_(std::move(on_finished)), submissions_(executor) {}

void StepRunner::Run(Job job) {
  BATON_CHECK(job.samplings.size() == job.step.sequences.size())
      << job.samplings.size() << " samplings for " << job.step.sequences.size() << " sequences";
  const auto kept = std::make_shared<const Job>(std::move(job));
  Step step;
  step.keeps = kept;
  for (size_t i = 0; i < kept->samplings.size(); ++i) {
    const RunStep::Sequence& sequence = kept->step.sequences[i];
    SequenceSampling& sampling = *kept->samplings[i];
    SequenceStep& row = step.sequences.emplace_back();
    row.tokens = std::span(&sequence.token, 1);
    row.token_count = 1;
    row.prefix_length = sequence.position;
    row.pages = sequence.pages;
    row.draw = sampling.sampler.DrawOf(sequence.generated, &sampling.history);
    if (sequence.generated == 1 && !sampling.drawn.empty()) {
      sampling.drawn.push_back(sequence.token);
      row.draw->resumed = sampling.drawn;
    }
  }
  submissions_.Submit(std::move(step), [this, kept](StepResult result) {
    StepFinished finished{kept->step.step, std::move(result.status), {}};
    for (size_t i = 0; i < result.drawn.size(); ++i) {
      finished.outputs.push_back({kept->step.sequences[i].attempt_id, std::move(result.drawn[i])});
    }
    on_finished_(std::move(finished), result.compute_us);
  });
}

}  // namespace baton::decode
