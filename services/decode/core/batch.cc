#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/coverage.h"
#include "common/base/status.h"
#include "services/decode/core/decode_state.h"

namespace baton::decode {

void DecodeCore::State::On(const StreamOpened& event) {
  const auto refuse = [this, &event](absl::Status status) {
    Emit(RefuseStream{event.attempt_id, event.generation, Own(std::move(status))});
  };
  const auto found = requests.find(event.attempt_id);
  if (found == requests.end()) {
    Covered<"decode: a stream comes for no reservation">();
    const std::string what = absl::StrCat("attempt ", event.attempt_id, " is not held");
    // Its ticket was on its way to the router when the drain's time ended it.
    refuse(draining ? EndedByDrain(absl::UnavailableError(absl::StrCat(what, ": a drain ended it")))
                    : absl::NotFoundError(what));
    return;
  }
  Request& request = found->second;
  const bool stale = request.generation != event.generation;
  const bool no_ticket = request.phase == Phase::kWaiting || request.phase == Phase::kGranting;
  if (no_ticket || stale) {
    refuse(absl::FailedPreconditionError(absl::StrCat("generation ", event.generation,
                                                      " is not that of attempt ", event.attempt_id,
                                                      "'s ticket")));
    return;
  }
  if (request.stream_open) {
    Covered<"decode: a second stream">();
    refuse(absl::AlreadyExistsError(
        absl::StrCat("attempt ", event.attempt_id, " has a stream already")));
    return;
  }
  Disarm(event.attempt_id);
  request.stream_open = true;
  Arm(event.attempt_id);
  int index = 0;
  for (SampledToken& token : request.kept) {
    Emit(DeliverToken{event.attempt_id, index++, std::move(token)});
  }
  request.kept.clear();
  if (request.phase != Phase::kEnded) return;
  Covered<"decode: a stream comes after the end">();
  Emit(Finish{event.attempt_id, *std::move(request.outcome)});
  Erase(event.attempt_id);
}

void DecodeCore::State::StartStep() {
  if (running_step.has_value()) return;
  RunStep step;
  for (const uint64_t attempt_id : batch) {
    Request& request = requests.at(attempt_id);
    // Without a stream nothing is computed: only the first token is kept.
    if (!request.stream_open || LacksPage(request)) continue;
    RunStep::Sequence sequence;
    sequence.attempt_id = attempt_id;
    sequence.slot = request.slot;
    sequence.generation = request.generation;
    sequence.token = request.last_token;
    sequence.generated = request.generated;
    sequence.position = request.prompt_tokens + request.generated - 1;
    sequence.pages.assign(request.pages.begin(),
                          request.pages.begin() + limits.layout.PagesFor(sequence.position + 1));
    sequence.new_page = std::exchange(request.new_page, -1);
    in_step.emplace(request.generation, attempt_id);
    step.sequences.push_back(std::move(sequence));
  }
  if (step.sequences.empty()) return;
  step.step = ++last_step;
  running_step = step.step;
  Emit(std::move(step));
}

void DecodeCore::State::On(const StepFinished& event) {
  BATON_CHECK(running_step == event.step) << "step " << event.step << " was not running";
  running_step.reset();
  // The others' collectives wait for nothing any more; only together they begin again.
  if (!event.status.ok() && limits.ranks > 1) {
    Covered<"decode: a failed step parts the ranks">();
    Emit(PartRanks{event.status});
  }
  const absl::Status failure = FailureOf(event.status);
  const std::map<uint64_t, uint64_t> members = std::exchange(in_step, {});
  std::map<uint64_t, const absl::StatusOr<SampledToken>*> outputs;
  for (const StepFinished::Output& output : event.outputs) {
    outputs.emplace(output.attempt_id, &output.token);
  }
  for (const auto& [generation, attempt_id] : members) {
    // Ended meanwhile: its output is dropped, though the attempt may have come again.
    if (!granted.contains(generation)) {
      Covered<"decode: a request ends under a step">();
      holds.at(generation).in_step = false;
      ReleaseIfUnused(generation);
      continue;
    }
    const auto output = outputs.find(attempt_id);
    if (!event.status.ok()) {
      Covered<"decode: a step fails">();
      EndWith(attempt_id, Own(Annotate(failure, "the decode step failed")));
    } else if (output == outputs.end()) {
      EndWith(attempt_id, Own(absl::InternalError("the decode step gave no token")));
    } else if (!output->second->ok()) {
      EndWith(attempt_id, Own(output->second->status()));
    } else {
      Take(attempt_id, **output->second);
    }
  }
}

// The token counts, is emitted (a stop token too: the router, which knows special tokens, decides
// whether its text is shown) and may be the last.
void DecodeCore::State::Take(uint64_t attempt_id, const SampledToken& token) {
  Request& request = requests.at(attempt_id);
  if (!IsInVocabulary(token.token)) {
    Covered<"decode: a token is outside the vocabulary">();
    EndWith(attempt_id, Own(absl::InternalError(absl::StrCat("sampled token ", token.token,
                                                             " is outside the vocabulary of ",
                                                             limits.vocab_size))));
    return;
  }
  const bool stops = request.stop.Stops(request.generated, token.token);
  const int index = request.generated++;
  request.last_token = token.token;
  if (request.tokens != nullptr) request.text.push_back(token.token);
  if (request.stream_open) {
    Emit(DeliverToken{attempt_id, index, token});
  } else {
    Covered<"decode: a token is kept for its stream">();
    request.kept.push_back(token);
  }
  if (stops) {
    Complete(attempt_id, FinishReason::kStop);
  } else if (request.generated >= request.token_limit) {
    Complete(attempt_id, FinishReason::kLength);
  }
}

}  // namespace baton::decode
