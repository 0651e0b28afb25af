#include "services/prefill/stage/plan_computer.h"

#include <algorithm>
#include <memory>
#include <span>
#include <utility>

namespace baton::prefill {
namespace {

// A result as the core's event. Reports come in the order of the items that asked for one.
ComputeFinished FinishedOf(const ComputeJob& job, StepResult result) {
  ComputeFinished finished{
      job.epoch, job.number, std::move(result.status), result.compute_us, std::move(result.drawn),
      {}};
  auto report = result.reported.begin();
  for (const ComputeJob::Item& item : job.items) {
    if (report == result.reported.end()) break;
    if (!item.reports()) continue;
    ComputeFinished::Prompt& prompt = finished.prompts.emplace_back();
    prompt.told.attempt_id = item.run.item.attempt_id;
    prompt.told.first = item.run.item.token_begin + 1;
    prompt.status = report->status();
    if (report->ok()) prompt.told.tokens = *std::move(*report);
    ++report;
  }
  return finished;
}

// What was drawn before: by an earlier attempt, and here before the request was retracted.
void AddContinuation(const PromptContext& prompt, Draw& draw) {
  if (prompt.tokens.empty()) {  // No earlier attempt has drawn any.
    draw.resumed = prompt.drawn;
    return;
  }
  const std::span<const int32_t> tokens = prompt.tokens;
  const size_t drawn = static_cast<size_t>(prompt.sampler.drawn_tokens()) + prompt.drawn.size();
  draw.prompt = tokens.first(tokens.size() - drawn);
  draw.resumed = tokens.last(drawn);
}

// What an earlier attempt has drawn, and the first token of this one, which is fed.
std::vector<int32_t> AdoptedText(const ComputeJob::Item& item) {
  const std::span<const int32_t> tokens = item.prompt->tokens;
  if (tokens.empty()) return {};
  const auto drawn = tokens.last(static_cast<size_t>(item.prompt->sampler.drawn_tokens()));
  std::vector<int32_t> text(drawn.begin(), drawn.end());
  text.push_back(item.run.item.token);
  return text;
}

}  // namespace

PromptContextPtr Resumed(const PromptContext& first, const std::vector<int32_t>& drawn) {
  PromptContext context{first.tokens, first.sampling, first.sampler, first.trace, {}, 0, drawn};
  // A later stage that needs no tokens has none.
  if (!first.tokens.empty())
    context.tokens.insert(context.tokens.end(), drawn.begin(), drawn.end());
  return std::make_shared<const PromptContext>(std::move(context));
}

PlanComputer::PlanComputer(Executor* executor, std::function<void(StageEvent)> on_event)
    : executor_(executor), on_event_(std::move(on_event)), submissions_(executor) {}

SequenceStep PlanComputer::StepOf(const ComputeJob::Item& job_item) const {
  const PromptContext& prompt = *job_item.prompt;
  const PlanItem& item = job_item.run.item;
  const auto begin = static_cast<size_t>(item.token_begin);
  const auto count = static_cast<size_t>(item.token_count);
  SequenceStep step;
  step.token_count = item.token_count;
  step.prefix_length = item.token_begin;
  step.pages = job_item.run.pages;
  if (job_item.decodes()) {
    // The last stage's draw looks at it, too.
    step.tokens = std::span(item.token == kTokenAhead ? &prompt.last_drawn : &item.token, 1);
  } else if (executor_->first_stage()) {
    step.tokens = std::span(prompt.tokens).subspan(begin, count);
  }
  if (!executor_->last_stage()) return step;
  if (job_item.reports()) {
    const size_t following = std::min(count, prompt.tokens.size() - begin - 1);
    step.report = PromptReport{std::span(prompt.tokens).subspan(begin + 1, following),
                               prompt.sampler.prompt_top_logprobs()};
  }
  if (item.final || item.draws) {
    step.draw = prompt.sampler.DrawOf(job_item.run.generated, &prompt.history);
    step.drawn = &prompt.last_drawn;
    if (!job_item.decodes()) AddContinuation(prompt, *step.draw);
    step.draw->resumed = job_item.run.adopts ? job_item.adopted : step.draw->resumed;
    if (!job_item.adopted.empty()) {
      const std::span<const int32_t> tokens = prompt.tokens;
      step.draw->prompt = tokens.first(tokens.size() - (job_item.adopted.size() - 1));
    }
  }
  return step;
}

void PlanComputer::Run(ComputeJob job) {
  const auto kept = std::make_shared<ComputeJob>(std::move(job));
  Step step;
  step.keeps = kept;
  step.in = kept->buffers.in;
  step.out = kept->buffers.out;
  for (ComputeJob::Item& item : kept->items) {
    if (item.run.adopts) item.adopted = AdoptedText(item);
    step.sequences.push_back(StepOf(item));
  }
  submissions_.Submit(std::move(step), [this, kept](StepResult result) {
    // Mostly it has held long ago. What has been computed from a damaged input ends here. Failed
    // computations wait as well: the input's buffer is free only when all of it has come.
    if (kept->buffers.check != nullptr) {
      const absl::Status checked = kept->buffers.check->Await();
      if (result.status.ok()) result.status = checked;
    }
    on_event_(FinishedOf(*kept, std::move(result)));
  });
}

}  // namespace baton::prefill
