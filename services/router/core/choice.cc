// How Pairing chooses: which pairs are candidates, and what is known of each. The policy picks one
// (policies/).
#include <algorithm>
#include <limits>
#include <utility>

#include "common/base/status.h"
#include "services/router/core/pairing.h"
#include "services/router/core/prefix_keys.h"

namespace baton::router {
namespace {

constexpr size_t kDecodesOfOne = 8;  // If pairs are not few, so many with one chain.
constexpr size_t kHolders = 4;       // Chains that have the prompt's beginning.
constexpr size_t kRandomOnes = 2;
constexpr double kAnswerTokenUs = 10'000;
constexpr double kHeldUs = 1'000'000;

// Few of thousands of workers are in the processor's cache: what is needed soon is asked for all at
// once, for one after the other it takes as many times as long.
void Fetch(const void* object, size_t bytes) {
  constexpr size_t kLine = 64;
  for (size_t at = 0; at < bytes; at += kLine) {
    __builtin_prefetch(static_cast<const char*>(object) + at);
  }
}

bool Fits(int64_t output_room, const Ask& ask) {
  return output_room >= (ask.clip ? 1 : ask.max_tokens);
}

void AddNew(std::vector<size_t>& slots, size_t slot) {
  if (std::find(slots.begin(), slots.end(), slot) == slots.end()) slots.push_back(slot);
}

}  // namespace

std::optional<Pairing::Half> Pairing::ChainHalf(size_t slot, const Ask& ask) const {
  const Slot& kept = chains_[slot];
  const PairLimits& limits = kept.limits;
  if (kept.account == nullptr || ask.prompt_tokens > limits.max_prompt_tokens) return std::nullopt;
  Half half = {.slot = slot, .kept = &kept};
  half.room = HasRoom(*kept.account, limits);
  if (!limits.colocated) return half;
  const int64_t room = limits.max_context_tokens - ask.prompt_tokens;
  if (!Fits(room, ask)) return std::nullopt;
  const int64_t output = std::min<int64_t>(ask.max_tokens, room);
  half.clipped = ask.max_tokens - output;
  half.full = SeemsFull(*kept.account, limits, limits.AtFirst(ask.prompt_tokens, output));
  return half;
}

std::optional<Pairing::Half> Pairing::DecodeHalf(size_t slot, const Ask& ask) const {
  const Slot& kept = decodes_[slot];
  const PairLimits& limits = kept.limits;
  const int64_t room = limits.max_context_tokens - ask.prompt_tokens;
  if (kept.account == nullptr || !Fits(room, ask)) return std::nullopt;
  const int64_t output = std::min<int64_t>(ask.max_tokens, room);
  const int64_t context_tokens = limits.AtFirst(ask.prompt_tokens, output);
  Half half = {.slot = slot, .kept = &kept};
  half.clipped = ask.max_tokens - output;
  half.room = HasRoom(*kept.account, limits, context_tokens);
  half.full = SeemsFull(*kept.account, limits, context_tokens);
  return half;
}

bool Pairing::MayPair(const Roster& roster, const Half& chain, const Half& decode) {
  return roster.MayPair(*roster.chains.At(chain.slot), *roster.decodes.At(decode.slot));
}

void Pairing::LookAtPrompt(Half& chain, const Ask& ask, std::span<const uint64_t> prefix) const {
  const uint64_t key = ask.key();
  chain.cached_tokens = PrefixTokens(index_.Held(chain.slot, prefix));
  chain.ring_distance = key == 0 ? 0 : HashRing::Distance(chain.kept->owner, key);
}

void Pairing::AddCandidate(const Half& chain, const Half& decode, const Ask& ask,
                           const FailedPair* failed) {
  const Assigned& of_chain = *chain.kept->account;
  const Assigned& of_decode = *decode.kept->account;
  Candidate candidate;
  candidate.chain = chain.slot;
  candidate.decode = decode.slot;
  candidate.full = decode.full;
  candidate.beside = failed != nullptr && (failed->leg == Role::kDecode ? chain.same : decode.same);
  candidate.cached_tokens = chain.cached_tokens;
  candidate.ring_distance = chain.ring_distance;
  candidate.queued_tokens = of_chain.prompt_tokens + of_chain.others_prompt_tokens;
  candidate.chain_requests = of_chain.all_requests();
  candidate.requests = of_decode.all_requests();
  candidate.decode_slots = std::max(1, decode.kept->limits.decode_slots);
  candidate.chain_used = of_chain.last_used;
  candidate.decode_used = of_decode.last_used;
  candidate.place = chain.kept->place;
  // What is queued is prompts of a mean size; other routers' count as one.
  const double pace = PromptCost::PaceOf(of_chain.pace);
  const auto own = static_cast<double>(of_chain.work_tokens);
  const auto prompts = static_cast<double>(std::max(1, of_chain.prompts));
  candidate.queue_us = pace * (prompts * prompt_cost_.Of(own / prompts) +
                               prompt_cost_.Of(static_cast<double>(of_chain.others_prompt_tokens)));
  candidate.prompt_us =
      pace * prompt_cost_.Of(std::max(1, ask.prompt_tokens - chain.cached_tokens));
  candidate.exposed_us = of_decode.exposed_us.Or(0);
  candidate.token_us = of_decode.token_us.Or(kAnswerTokenUs);
  if (decode.full) {
    const auto requests = static_cast<double>(std::max<int64_t>(1, candidate.requests));
    candidate.wait_us = of_decode.held_us.Or(kHeldUs) / requests * (1 + of_decode.ungranted);
  }
  candidates_.push_back(candidate);
}

std::vector<size_t> Pairing::SampleChains(const Ask& ask,
                                          const std::vector<PrefixIndex::Found>& holders) {
  std::vector<size_t> slots;
  const bool only_random = policy_ == Policy::kRandom || policy_ == Policy::kPowerOfTwo;
  if (chain_loads_.size() == 0) return slots;
  if (!only_random) {
    slots.reserve(kHolders + kRandomOnes + 2);
    for (const PrefixIndex::Found& found : holders) slots.push_back(found.holder);
    AddNew(slots, chain_loads_.Least());
    const std::optional<size_t> owner = ask.key() == 0 ? std::nullopt : ring_.OwnerOf(ask.key());
    if (owner.has_value()) AddNew(slots, *owner);
    if (!by_name_.empty()) {
      const auto place = static_cast<size_t>(LengthPlace(ask.prompt_tokens) *
                                             static_cast<double>(by_name_.size()));
      AddNew(slots, by_name_[std::min(place, by_name_.size() - 1)]);
    }
  }
  for (size_t i = 0; i < kRandomOnes; ++i) {
    AddNew(slots, chain_loads_.At(random_.Below(chain_loads_.size())));
  }
  return slots;
}

std::vector<size_t> Pairing::SampleDecodes() {
  std::vector<size_t> slots;
  const bool only_random = policy_ == Policy::kRandom || policy_ == Policy::kPowerOfTwo;
  if (decode_loads_.size() == 0) return slots;
  if (!only_random) slots.push_back(decode_loads_.Least());
  for (size_t i = 0; i < kRandomOnes; ++i) {
    AddNew(slots, decode_loads_.At(random_.Below(decode_loads_.size())));
  }
  return slots;
}

void Pairing::Prefetch(const std::vector<Slot>& slots, const std::vector<size_t>& wanted) {
  for (const size_t slot : wanted) Fetch(&slots[slot], sizeof(Slot));
  for (const size_t slot : wanted) Fetch(slots[slot].account, kReadOften);
}

void Pairing::Sample(const Roster& roster, const Ask& ask) {
  const int64_t most_room =
      std::max(roster.decodes.most_context(), roster.chains.most_context()) - ask.prompt_tokens;
  const int64_t least_clipped = std::max<int64_t>(0, ask.max_tokens - most_room);
  const std::vector<size_t> decode_slots = SampleDecodes();
  const std::vector<PrefixIndex::Found> holders = index_.FindHolders(ask.prefix, kHolders);
  const std::vector<size_t> chain_slots = SampleChains(ask, holders);
  Prefetch(chains_, chain_slots);
  Prefetch(decodes_, decode_slots);
  // No other chain has more.
  const auto known = ask.prefix.first(holders.empty() ? 0 : holders.front().keys);
  std::vector<Half> decodes;
  for (const size_t slot : decode_slots) {
    const std::optional<Half> half = DecodeHalf(slot, ask);
    if (half.has_value() && half->room && half->clipped == least_clipped) decodes.push_back(*half);
  }
  for (const size_t slot : chain_slots) {
    std::optional<Half> half = ChainHalf(slot, ask);
    if (!half.has_value() || !half->room) continue;
    LookAtPrompt(*half, ask, known);
    if (half->kept->limits.colocated) {
      if (half->clipped == least_clipped) AddCandidate(*half, *half, ask, nullptr);
      continue;
    }
    for (const Half& decode : decodes) {
      if (MayPair(roster, *half, decode)) AddCandidate(*half, decode, ask, nullptr);
    }
  }
}

// From the chain and the decode service after `begin` on, and round.
template <typename Look>
void Pairing::VisitPairs(const Roster& roster, const Halves& halves, size_t begin, Look look) {
  for (const Half& alone : halves.alone) {
    if (look(alone, alone) == Next::kStop) return;
  }
  for (size_t i = 0; i < halves.chains.size(); ++i) {
    const Half& chain = halves.chains[(begin + i) % halves.chains.size()];
    for (size_t j = 0; j < halves.decodes.size(); ++j) {
      const Half& decode = halves.decodes[(begin + j) % halves.decodes.size()];
      if (!MayPair(roster, chain, decode)) continue;
      const Next next = look(chain, decode);
      if (next == Next::kStop) return;
      if (next == Next::kChain) break;
    }
  }
}

Pairing::Halves Pairing::AllHalves(const Roster& roster, const Ask& ask,
                                   const FailedPair* failed) const {
  Halves halves;
  for (size_t slot = 0; slot < roster.chains.slots(); ++slot) {
    std::optional<Half> half = ChainHalf(slot, ask);
    if (!half.has_value()) continue;
    half->same = failed != nullptr && failed->HasChain(roster.chains.At(slot)->pair);
    (half->kept->limits.colocated ? halves.alone : halves.chains).push_back(*half);
  }
  for (size_t slot = 0; slot < roster.decodes.slots(); ++slot) {
    std::optional<Half> half = DecodeHalf(slot, ask);
    if (!half.has_value()) continue;
    half->same = failed != nullptr && failed->HasDecode(roster.decodes.At(slot)->pair);
    halves.decodes.push_back(*half);
  }
  return halves;
}

Pairing::Class Pairing::ClassOf(const Half& chain, const Half& decode, const FailedPair* failed) {
  const bool of_decode = failed != nullptr && failed->leg == Role::kDecode;
  return {decode.clipped, of_decode ? decode.same : chain.same};
}

std::optional<Pairing::Class> Pairing::BestClass(const Roster& roster, const Halves& halves,
                                                 const FailedPair* failed) {
  int64_t least_clipped = std::numeric_limits<int64_t>::max();
  for (const std::vector<Half>* list : {&halves.alone, &halves.decodes}) {
    for (const Half& half : *list) least_clipped = std::min(least_clipped, half.clipped);
  }
  const Class floor = {least_clipped, /*again=*/false};
  std::optional<Class> best;
  VisitPairs(roster, halves, 0, [&](const Half& chain, const Half& decode) {
    if (chain.same && decode.same) return Next::kPair;
    const Class found = ClassOf(chain, decode, failed);
    if (!best.has_value() || found < *best) best = found;
    return floor < *best ? Next::kPair : Next::kStop;
  });
  return best;
}

absl::Status Pairing::Sweep(const Roster& roster, const Ask& ask, const FailedPair* failed) {
  Halves halves = AllHalves(roster, ask, failed);
  const std::optional<Class> best = BestClass(roster, halves, failed);
  if (!best.has_value()) return NoneFits(roster, ask, failed);
  for (std::vector<Half>* list : {&halves.chains, &halves.alone, &halves.decodes}) {
    std::erase_if(*list, [](const Half& half) { return !half.room; });
  }
  const bool few = halves.chains.size() * halves.decodes.size() + halves.alone.size() <= kFewPairs;
  const size_t begin = few ? 0 : random_.Below(roster.chains.slots() + roster.decodes.slots());
  if (!few && !halves.alone.empty()) {
    std::rotate(halves.alone.begin(),
                halves.alone.begin() + static_cast<int64_t>(begin % halves.alone.size()),
                halves.alone.end());
  }
  std::optional<Half> looked;  // The chain that the last candidate is of.
  size_t decodes = 0;          // Candidates with it.
  VisitPairs(roster, halves, begin, [&](const Half& chain, const Half& decode) {
    if ((chain.same && decode.same) || ClassOf(chain, decode, failed) != *best) return Next::kPair;
    if (!looked.has_value() || looked->slot != chain.slot) {
      looked = chain;
      LookAtPrompt(*looked, ask, ask.prefix);
      decodes = 0;
    }
    AddCandidate(*looked, &chain == &decode ? *looked : decode, ask, failed);
    if (few) return Next::kPair;
    if (candidates_.size() >= kFewPairs) return Next::kStop;
    return ++decodes < kDecodesOfOne ? Next::kPair : Next::kChain;
  });
  if (!candidates_.empty()) return absl::OkStatus();
  return Overloaded(absl::ResourceExhaustedError(
      "all workers that could take the request have as much as they take"));
}

std::shared_ptr<const Considered> Pairing::WhatWasConsidered(const Roster& roster,
                                                             const Asked& asked,
                                                             size_t picked) const {
  auto considered = std::make_shared<Considered>();
  considered->asked = asked;
  considered->candidates = candidates_;
  considered->picked = picked;
  for (const Candidate& candidate : candidates_) {
    const Pair& chain = roster.chains.At(candidate.chain)->pair;
    const bool alone = chains_[candidate.chain].limits.colocated;
    const InstanceRef& decode =
        alone ? chain.decode : roster.decodes.At(candidate.decode)->pair.decode;
    considered->names.emplace_back(chain.chain.chain_id, decode.id);
  }
  return considered;
}

absl::StatusOr<Choice> Pairing::Choose(Roster& roster, const Ask& ask, const FailedPair* failed) {
  Follow(roster);
  candidates_.clear();
  const size_t most_pairs = roster.chains.ready() * std::max<size_t>(1, roster.decodes.ready());
  if (failed == nullptr && most_pairs > kFewPairs) Sample(roster, ask);
  if (candidates_.empty()) {
    if (absl::Status none = Sweep(roster, ask, failed); !none.ok()) return none;
  }
  const Asked asked = {ask.prompt_tokens, ask.key() != 0,
                       policy_ == Policy::kLengthBuckets ? LengthPlace(ask.prompt_tokens) : 0};
  const size_t picked = Pick(policy_, candidates_, asked, random_);
  const Candidate& best = candidates_[picked];
  const Side& chain = *roster.chains.At(best.chain);
  const bool alone = chains_[best.chain].limits.colocated;
  const Side& decode = alone ? chain : *roster.decodes.At(best.decode);
  Fetch(&chain, sizeof(Side));
  Fetch(&decode, sizeof(Side));
  int most_cached = 0;
  for (const Candidate& candidate : candidates_) {
    most_cached = std::max(most_cached, candidate.cached_tokens);
  }
  Choice choice;
  if (most_cached > 0) {
    choice.kind = best.cached_tokens == most_cached ? ChoiceKind::kCached : ChoiceKind::kPassedOver;
  }
  choice.pair = alone ? chain.pair : Join(chain, decode);
  if (keeps_considered_) choice.considered = WhatWasConsidered(roster, asked, picked);
  return choice;
}

}  // namespace baton::router
