#include "tests/sim/oracle.h"

#include "common/base/check.h"
#include "tests/sim/content.h"

namespace baton::sim {

// One page more whenever the last one is full: counted, not divided.
int Oracle::CountPages(int tokens) const {
  int pages = 0;
  int room = 0;
  for (int token = 0; token < tokens; ++token) {
    if (room == 0) {
      ++pages;
      room = page_size_;
    }
    --room;
  }
  return pages;
}

void Oracle::Extend(Sequence& sequence, std::vector<uint64_t>& sums, int64_t token) const {
  const int position = sequence.positions();
  const uint64_t weight =
      PageWeight(position / page_size_) * kTokenWeights[static_cast<size_t>(position % page_size_)];
  uint64_t x = Embed(token, position);
  sequence.x.push_back(x);
  for (uint64_t& sum : sums) {
    sum += weight * x;
    x = NextLayer(x, sum);
    sequence.x.push_back(x);
  }
}

void Oracle::Answer(Sequence& sequence, std::vector<uint64_t>& sums) const {
  const Inputs& inputs = sequence.inputs;
  const Stops stops = StopsOf(inputs.prompt_id);
  int context = inputs.prompt_tokens;
  while (true) {
    const auto draw = static_cast<int>(sequence.answer.size());
    const SampledToken token = DrawToken(sequence.x.back(), inputs.prompt_id, draw);
    sequence.answer.push_back(token);
    ++context;
    const bool wants_to_stop = (token.token == kStopToken && !stops.ignore_eos) ||
                               (token.token == kClientStopToken && stops.client_stop);
    // min_tokens other tokens come before one that stops.
    if (wants_to_stop && draw >= stops.min_tokens) {
      sequence.reason = FinishReason::kStop;
      return;
    }
    sequence.reason = FinishReason::kLength;
    if (draw + 1 == inputs.max_tokens || context == max_context_tokens_) return;
    Extend(sequence, sums, token.token);
  }
}

int64_t Oracle::TokenAt(uint64_t prompt_id, int position) {
  const Sequence& first = Of(FirstId(prompt_id));
  const int drawn = position - first.inputs.prompt_tokens;
  if (drawn < 0) return PromptTokenId(FirstId(prompt_id), position);
  return first.answer.at(static_cast<size_t>(drawn)).token;
}

// The same text, of which more has been read and less is to be drawn.
Oracle::Sequence Oracle::Resumed(uint64_t prompt_id) {
  const int drawn = DrawnOf(prompt_id);
  Sequence sequence = Of(FirstId(prompt_id));
  BATON_CHECK(static_cast<size_t>(drawn) < sequence.answer.size())
      << drawn << " tokens are no beginning of an answer of " << sequence.answer.size();
  sequence.inputs.prompt_id = prompt_id;
  sequence.inputs.prompt_tokens += drawn;
  sequence.inputs.max_tokens -= drawn;
  sequence.answer.erase(sequence.answer.begin(), sequence.answer.begin() + drawn);
  sequence.prompt_pages = CountPages(sequence.inputs.prompt_tokens);
  return sequence;
}

const Oracle::Sequence& Oracle::Of(uint64_t prompt_id) {
  const auto known = sequences_.find(prompt_id);
  if (known != sequences_.end()) return known->second;
  if (DrawnOf(prompt_id) > 0) return sequences_[prompt_id] = Resumed(prompt_id);
  const auto asked = inputs_.find(prompt_id);
  BATON_CHECK(asked != inputs_.end()) << "nobody asks prompt " << prompt_id;
  Sequence& sequence = sequences_[prompt_id];
  sequence.inputs = asked->second;
  sequence.layers = layers_;
  const Inputs& inputs = sequence.inputs;
  sequence.prompt_pages = CountPages(inputs.prompt_tokens);
  int longest = inputs.prompt_tokens;
  for (int i = 0; i < inputs.max_tokens && longest < max_context_tokens_; ++i) ++longest;
  sequence.pages = CountPages(longest);
  std::vector<uint64_t> sums(static_cast<size_t>(layers_), 0);
  sequence.x.reserve(static_cast<size_t>(longest) * static_cast<size_t>(layers_ + 1));
  for (int position = 0; position < inputs.prompt_tokens; ++position) {
    Extend(sequence, sums, PromptTokenId(prompt_id, position));
  }
  // A prompt that fills the context is refused.
  if (inputs.prompt_tokens < max_context_tokens_) Answer(sequence, sums);
  return sequence;
}

}  // namespace baton::sim
