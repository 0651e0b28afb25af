#include "common/engine/executors/threaded_executor.h"

#include <algorithm>
#include <cstddef>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/status.h"
#include "common/device/queue.h"
#include "common/engine/stage_model.h"

namespace baton {
namespace {

// `draws`: whether this executor draws the tokens, not another rank's.
absl::Status CheckSequence(const SequenceStep& sequence, bool draws) {
  if (sequence.draw.has_value() && draws) {
    const Draw& draw = *sequence.draw;
    if (draw.params == nullptr || (draw.params->NeedsHistory() && draw.history == nullptr)) {
      return absl::InvalidArgumentError("a draw without parameters or history");
    }
    if (!draw.resumed.empty() && draw.resumed.size() != static_cast<size_t>(draw.position)) {
      return absl::InvalidArgumentError(
          absl::StrCat(draw.resumed.size(), " tokens before draw ", draw.position));
    }
    const bool follows = draw.position > 0 && draw.resumed.empty();
    if (draw.params->NeedsHistory() && follows && sequence.tokens.size() != 1) {
      return absl::InvalidArgumentError("a draw without the token before it");
    }
    if (follows && sequence.token_count != 1) {
      return absl::InvalidArgumentError(
          absl::StrCat(sequence.token_count, " tokens before draw ", draw.position, ", must be 1"));
    }
  }
  if (sequence.report.has_value()) {
    const auto following = static_cast<int64_t>(sequence.report->following.size());
    if (following != sequence.token_count && following != sequence.token_count - 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          following, " tokens follow ", sequence.token_count, ", must be as many or one less"));
    }
  }
  return absl::OkStatus();
}

// To the steps behind. What could not be drawn leaves the token before, which any step may feed:
// whose text that would be has failed.
void PassOnDrawn(const Step& step, const StepResult& result) {
  auto drawn = result.drawn.begin();
  for (const SequenceStep& sequence : step.sequences) {
    if (!sequence.draw.has_value() || drawn == result.drawn.end()) continue;
    if (sequence.drawn != nullptr && drawn->ok()) *sequence.drawn = (*drawn)->token;
    ++drawn;
  }
}

}  // namespace

ThreadedExecutor::ThreadedExecutor(std::unique_ptr<StageModel> model, std::string failpoint)
    : model_(std::move(model)),
      failpoint_(std::move(failpoint)),
      loop_(QueueThreadName(Queue::kCompute)) {
  if (model_->tells_logits()) rows_.emplace(model_.get());
  if (model_->begins()) ends_.emplace("baton-steps").Start();
  loop_.Start();
}

void ThreadedExecutor::Stop() {
  loop_.Stop();
  if (ends_.has_value()) ends_->Stop();
}

void ThreadedExecutor::Submit(Step step, std::function<void(StepResult)> done) {
  // std::function requires a copyable callable; sharing the step avoids copying it.
  auto shared = std::make_shared<const Step>(std::move(step));
  const bool taken =
      loop_.Post([this, shared, done, submitted_us = NowUs()] { Run(shared, submitted_us, done); });
  if (taken) return;
  StepResult refused;
  refused.status = absl::CancelledError("the executor takes no more steps");
  done(std::move(refused));
}

void ThreadedExecutor::JoinGroup(std::shared_ptr<Communicator> group,
                                 const std::function<void(absl::Status)>& done) {
  const bool taken = loop_.Post([this, group = std::move(group), done] {
    AwaitEnds(0);
    done(GuardLibraries([&] { return model_->JoinGroup(group); }));
  });
  if (!taken) done(absl::CancelledError("the executor joins no group any more"));
}

void ThreadedExecutor::Run(const std::shared_ptr<const Step>& step, int64_t submitted_us,
                           const std::function<void(StepResult)>& done) {
  absl::Status status = Failpoint(failpoint_);
  if (status.ok() && ends_.has_value()) {
    const auto begun = GuardLibraries([&] { return Begin(*step, submitted_us); });
    if (begun.ok() && *begun != nullptr) {
      const bool taken =
          ends_->PostCompletion([this, step, begun = *begun, done] { End(*step, *begun, done); });
      BATON_CHECK(taken) << "ends stop after steps";
      return;
    }
    status = begun.status();
  }
  AwaitEnds(0);
  begun_draws_.clear();
  done(RunAlone(*step, submitted_us, std::move(status)));
}

StepResult ThreadedExecutor::RunAlone(const Step& step, int64_t submitted_us, absl::Status status) {
  const int64_t begun_us = NowUs();
  running_since_us_ = begun_us;
  StepResult result;
  result.status = std::move(status);
  if (result.status.ok()) {
    result.status = GuardLibraries([&] { return Compute(step, submitted_us, result); });
  }
  if (!result.status.ok()) {
    result.drawn.clear();
    result.reported.clear();
    // All ranks refuse a step that is not well-formed, so no rank waits for this one.
    if (!absl::IsInvalidArgument(result.status)) model_->EndGroup(result.status);
  }
  running_since_us_ = 0;
  result.compute_us = NowUs() - begun_us;
  return result;
}

absl::Status ThreadedExecutor::Compose(const Step& step, int64_t submitted_us, Composed& composed) {
  Batch& batch = composed.batch;
  batch.submitted_us = submitted_us;
  composed.drawn.resize(step.sequences.size());
  composed.reported.reserve(step.sequences.size());  // Its elements are pointed to.
  for (const SequenceStep& sequence : step.sequences) {
    BATON_RETURN_IF_ERROR(CheckSequence(sequence, rows_.has_value()));
    SequenceSlice slice{TokenRun(sequence), sequence.draw.has_value()};
    if (const std::optional<RowDraw> draw = ModelsDraw(sequence); draw.has_value()) {
      slice.wants_logits = false;
      slice.draw = *draw;
      slice.drawn = &composed.drawn[batch.slices.size()];
    }
    if (sequence.report.has_value()) {
      auto* const told = &composed.reported.emplace_back(std::vector<SampledToken>());
      slice.on_logits = [this, report = *sequence.report, told](int first,
                                                                std::span<const float> logits) {
        Report(report, first, logits, *told);
      };
    }
    batch.slices.push_back(std::move(slice));
  }
  return absl::OkStatus();
}

absl::Status ThreadedExecutor::Compute(const Step& step, int64_t submitted_us, StepResult& result) {
  Composed composed;
  BATON_RETURN_IF_ERROR(Compose(step, submitted_us, composed));
  const Batch& batch = composed.batch;
  const bool silent = last_stage() && !model_->tells_logits();  // Another rank draws.
  BATON_ASSIGN_OR_RETURN(const std::span<float> logits,
                         LogitsOf(silent ? 0 : static_cast<size_t>(batch.LogitsCount())));
  BATON_RETURN_IF_ERROR(model_->Forward(batch, step.in, step.out, logits));
  if (!silent) result.reported = std::move(composed.reported);
  if (rows_.has_value()) DrawTokens(step, batch, logits, result);
  PassOnDrawn(step, result);
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<ThreadedExecutor::Begun>> ThreadedExecutor::Begin(
    const Step& step, int64_t submitted_us) {
  auto begun = std::make_shared<Begun>();
  Batch& batch = begun->composed.batch;
  BATON_RETURN_IF_ERROR(Compose(step, submitted_us, begun->composed));
  FollowDraws(step, batch);
  AwaitEnds(kBegunBatches - 1);
  begun->begun_us = NowUs();
  BATON_ASSIGN_OR_RETURN(begun->batch, model_->Begin(batch));
  if (begun->batch == nullptr) return nullptr;
  begun_draws_.clear();
  for (size_t i = 0; i < batch.slices.size(); ++i) {
    if (batch.slices[i].drawn != nullptr) begun_draws_.push_back(step.sequences[i].drawn);
  }
  MutexLock lock(&mutex_);
  ++begun_;
  if (running_since_us_ == 0) running_since_us_ = begun->begun_us;
  return begun;
}

void ThreadedExecutor::FollowDraws(const Step& step, Batch& batch) const {
  static constexpr int32_t kAnyToken = 0;
  for (size_t i = 0; i < step.sequences.size(); ++i) {
    const std::span<const int32_t> tokens = step.sequences[i].tokens;
    if (tokens.size() != 1) continue;
    // Mostly at the same place: those before it have seldom ended.
    const bool same = i < begun_draws_.size() && begun_draws_[i] == tokens.data();
    const auto found = same ? begun_draws_.begin() + static_cast<std::ptrdiff_t>(i)
                            : std::find(begun_draws_.begin(), begun_draws_.end(), tokens.data());
    if (found == begun_draws_.end()) continue;
    batch.slices[i].tokens = std::span(&kAnyToken, 1);
    batch.slices[i].follows = static_cast<int>(found - begun_draws_.begin());
  }
}

void ThreadedExecutor::End(const Step& step, Begun& begun,
                           const std::function<void(StepResult)>& done) {
  StepResult result;
  result.status = GuardLibraries([&] {
    BATON_RETURN_IF_ERROR(begun.batch->End());
    DrawTokens(step, begun.composed.batch, {}, result);
    PassOnDrawn(step, result);
    return absl::OkStatus();
  });
  if (!result.status.ok()) result.drawn.clear();
  const int64_t now_us = NowUs();
  result.compute_us = now_us - std::max(begun.begun_us, ended_us_);
  ended_us_ = now_us;
  {
    MutexLock lock(&mutex_);
    running_since_us_ = begun_ > 1 ? now_us : 0;
  }
  done(std::move(result));
  MutexLock lock(&mutex_);
  --begun_;
}

void ThreadedExecutor::AwaitEnds(int count) {
  MutexLock lock(&mutex_);
  mutex_.Await([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return begun_ <= count; });
}

std::optional<RowDraw> ThreadedExecutor::ModelsDraw(const SequenceStep& sequence) const {
  if (!sequence.draw.has_value() || !rows_.has_value()) return std::nullopt;
  const Draw& draw = *sequence.draw;
  const std::optional<RowDraw> of_row = Sampler::RowDrawOf(*draw.params, draw.seed, draw.position);
  return of_row.has_value() && model_->Draws(*of_row) ? of_row : std::nullopt;
}

// In memory that a device copies to at full speed.
absl::StatusOr<std::span<float>> ThreadedExecutor::LogitsOf(size_t rows) {
  const size_t count = rows * static_cast<size_t>(config().vocab_size);
  if (logits_.span().bytes < count * sizeof(float)) {
    BATON_ASSIGN_OR_RETURN(logits_, model_->AllocateActivations(count * sizeof(float)));
  }
  return std::span(reinterpret_cast<float*>(logits_.span().data), count);
}

void ThreadedExecutor::Report(const PromptReport& report, int first, std::span<const float> logits,
                              absl::StatusOr<std::vector<SampledToken>>& told) {
  if (!told.ok()) return;
  const auto vocab = static_cast<size_t>(config().vocab_size);
  // No token of the prompt follows its last row. The logits of that row are those of the first
  // generated token.
  const auto begin = static_cast<size_t>(first);
  const size_t count = begin < report.following.size()
                           ? std::min(logits.size() / vocab, report.following.size() - begin)
                           : 0;
  for (absl::StatusOr<SampledToken>& token : rows_->Report(
           logits.first(count * vocab), report.following.subspan(begin, count), report.top)) {
    if (!token.ok()) {
      told = Annotate(token.status(), "log-probabilities of the prompt");
      return;
    }
    told->push_back(*std::move(token));
  }
}

void ThreadedExecutor::DrawTokens(const Step& step, const Batch& batch,
                                  std::span<const float> logits, StepResult& result) {
  const auto vocab = static_cast<size_t>(config().vocab_size);
  std::vector<Sampler::Row> rows;
  std::vector<size_t> places;  // The rows' places among the results.
  for (size_t i = 0; i < step.sequences.size(); ++i) {
    const SequenceStep& sequence = step.sequences[i];
    if (!sequence.draw.has_value()) continue;
    if (const int32_t* const drawn = batch.slices[i].drawn; drawn != nullptr) {
      SampledToken token;
      token.token = *drawn;
      result.drawn.push_back(*drawn >= 0 ? absl::StatusOr<SampledToken>(token)
                                         : absl::InternalError("a logit is not finite"));
      continue;
    }
    places.push_back(result.drawn.size());
    result.drawn.push_back(absl::InternalError("the row was not drawn"));
    const Draw& draw = *sequence.draw;
    if (draw.params->NeedsHistory()) {
      if (!draw.prompt.empty() && draw.params->NeedsPrompt()) draw.history->SetPrompt(draw.prompt);
      std::span<const int32_t> added = draw.resumed;
      if (draw.position > 0 && added.empty()) added = sequence.tokens.first(1);
      const bool constrained = draw.params->constraint != nullptr;
      if (constrained && added.empty()) draw.history->Follow(*draw.params, std::nullopt);
      for (const int32_t token : added) {
        draw.history->Add(token);
        if (constrained) draw.history->Follow(*draw.params, token);
      }
    }
    rows.push_back({logits.subspan(rows.size() * vocab, vocab), draw.params, draw.seed,
                    draw.position, draw.history});
  }
  if (rows.empty()) return;
  auto drawn = rows_->Draw(rows);
  for (size_t i = 0; i < places.size(); ++i) result.drawn[places[i]] = std::move(drawn[i]);
}

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
