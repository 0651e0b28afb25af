// How Pairing chooses: which pairs are candidates, and what is known of each. The policy picks one
// (policies/).
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "services/router/core/context_overflow.h"
#include "services/router/core/pairing.h"
#include "services/router/core/prefix_keys.h"

namespace baton::router {
namespace {

constexpr size_t kFewPairs = 64;     // So many are all candidates.
constexpr size_t kDecodesOfOne = 8;  // If there are more, so many with one chain.
constexpr size_t kHolders = 4;       // Chains that have the prompt's beginning.
constexpr size_t kRandomOnes = 2;
constexpr int kMissesOfNone = 3;  // A chain that misses so often in a row seems to cache nothing.
constexpr double kAnswerTokenUs = 10'000;
constexpr double kHeldUs = 1'000'000;
constexpr double kLengthsKept = 0.999;  // With each prompt.

// How large a request may be.
struct Largest {
  int64_t prompt = 0;         // Tokens that fit into a chain.
  int64_t context = 0;        // Prompt and output that fit into a decode service.
  int64_t colocated = 0;      // The same of a colocated chain.
  int64_t beside_prompt = 0;  // Output beside a prompt that a pair's chain takes.

  void Count(const Pair& chain, const Pair& decode, int prompt_tokens) {
    const int64_t max_prompt = chain.chain.max_prompt_tokens;
    const int64_t room = prompt_tokens > max_prompt ? 0 : decode.max_context_tokens - prompt_tokens;
    beside_prompt = std::max(beside_prompt, room);
    if (chain.colocated()) {
      colocated = std::max(colocated, chain.max_context_tokens);
      return;
    }
    prompt = std::max(prompt, max_prompt);
    context = std::max(context, decode.max_context_tokens);
  }
};

absl::Status TooLong(const Largest& largest, int prompt_tokens, int max_tokens) {
  if (largest.beside_prompt <= 0) {
    std::vector<std::string> takes;
    if (largest.context > 0) {
      takes.push_back(absl::StrCat("the largest prefill chain takes prompts of ", largest.prompt,
                                   " tokens, the largest decode service ", largest.context,
                                   " tokens of prompt and output"));
    }
    if (largest.colocated > 0) {
      takes.push_back(absl::StrCat("the largest colocated chain takes ", largest.colocated,
                                   " tokens of prompt and output"));
    }
    return ContextOverflow(kPromptField,
                           absl::StrCat("has ", prompt_tokens,
                                        " tokens, and the KV caches of no workers that are ready ",
                                        "hold it: ", absl::StrJoin(takes, ", "),
                                        ", of which at least one is for the output"));
  }
  return ContextOverflow(
      kMaxTokensField,
      absl::StrCat("the KV caches of the ready workers hold at most ",
                   prompt_tokens + largest.beside_prompt, " tokens of this prompt and its output, ",
                   "but ", prompt_tokens, " of the prompt and ", max_tokens, " of the output are ",
                   int64_t{prompt_tokens} + max_tokens, "; shorten the prompt or ask for at most ",
                   largest.beside_prompt));
}

// Over all pairs; in a large cluster by each side's largest, which no single pair may have both.
Largest LargestOf(const Roster& roster, const Ask& ask, const FailedPair* failed) {
  Largest largest;
  const auto too_old = [&ask](const Pair& pair) {
    return pair.protocol_version < ask.protocol_version;
  };
  if (roster.chains.ready() * roster.decodes.ready() <= kFewPairs) {
    roster.VisitPairs([&](size_t chain, size_t decode) {
      const Pair& of_chain = roster.chains.At(chain)->pair;
      const Pair& of_decode = of_chain.colocated() ? of_chain : roster.decodes.At(decode)->pair;
      const bool same =
          failed != nullptr && failed->HasChain(of_chain) && failed->HasDecode(of_decode);
      if (same || too_old(of_chain) || too_old(of_decode)) return true;
      largest.Count(of_chain, of_decode, ask.prompt_tokens);
      return true;
    });
    return largest;
  }
  Pair decode;
  for (size_t slot = 0; slot < roster.decodes.slots(); ++slot) {
    const Side* side = roster.decodes.At(slot);
    if (side == nullptr || too_old(side->pair)) continue;
    decode.max_context_tokens = std::max(decode.max_context_tokens, side->pair.max_context_tokens);
  }
  for (size_t slot = 0; slot < roster.chains.slots(); ++slot) {
    const Side* side = roster.chains.At(slot);
    if (side == nullptr || too_old(side->pair)) continue;
    if (!side->pair.colocated() && decode.max_context_tokens == 0) continue;
    largest.Count(side->pair, side->pair.colocated() ? side->pair : decode, ask.prompt_tokens);
  }
  return largest;
}

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

uint64_t LifeOf(const Chain& chain) {
  uint64_t life = 1;
  for (const KvWriter& stage : chain.stages) {
    life = Mix64(life ^ stage.instance.incarnation) ^ std::hash<std::string>()(stage.instance.id);
  }
  return life;
}

void AddNew(std::vector<size_t>& slots, size_t slot) {
  if (std::find(slots.begin(), slots.end(), slot) == slots.end()) slots.push_back(slot);
}

size_t LengthBucket(int prompt_tokens) {
  return static_cast<size_t>(4 * std::log2(std::max(1, prompt_tokens)));
}

}  // namespace

// ---- Following the roster ----

void Pairing::Follow(Roster& roster) {
  const std::vector<size_t> chains = roster.chains.TakeChanged();
  if (chains_.size() < roster.chains.slots()) chains_.resize(roster.chains.slots());
  for (const size_t slot : chains) FollowChain(roster.chains, slot);
  if (!chains.empty() && policy_ == Policy::kLengthBuckets) PlaceChains(roster.chains);
  if (decodes_.size() < roster.decodes.slots()) decodes_.resize(roster.decodes.slots());
  for (const size_t slot : roster.decodes.TakeChanged()) FollowDecode(roster.decodes, slot);
}

void Pairing::FollowChain(const SideTable& chains, size_t slot) {
  Slot& kept = chains_[slot];
  if (kept.account != nullptr) {
    chain_loads_.Remove(slot);
    ring_.Remove(kept.owner);
    const auto account = workers_.find(kept.instance);
    if (account != workers_.end()) account->second.chain_slot.reset();
    kept.account = nullptr;
  }
  if (chains.Gone(slot)) {
    index_.Drop(slot);
    kept = {};
    return;
  }
  const Side* side = chains.At(slot);
  if (side == nullptr) return;
  const Chain& chain = side->pair.chain;
  const uint64_t life = LifeOf(chain);
  if (kept.life != life) {
    index_.Drop(slot);
    kept.life = life;
    kept.misses = 0;
  }
  kept.instance = chain.stage0;
  kept.limits = LimitsOf(side->pair);
  kept.reach = side->reach.summary;
  kept.owner = RoutingKey(chain.chain_id);
  Assigned& account = workers_[chain.stage0];
  account.chain_slot = slot;
  account.colocated = side->pair.colocated();
  kept.account = &account;
  ring_.Add(kept.owner, slot);
  Weigh(account);
}

void Pairing::FollowDecode(const SideTable& decodes, size_t slot) {
  Slot& kept = decodes_[slot];
  if (kept.account != nullptr) {
    decode_loads_.Remove(slot);
    const auto account = workers_.find(kept.instance);
    if (account != workers_.end()) account->second.decode_slot.reset();
  }
  kept = {};
  const Side* side = decodes.At(slot);
  if (side == nullptr) return;
  kept.instance = side->pair.decode;
  kept.limits = LimitsOf(side->pair);
  kept.limits.colocated = false;
  kept.reach = side->reach.summary;
  Assigned& account = workers_[kept.instance];
  account.decode_slot = slot;
  kept.account = &account;
  Weigh(account);
}

void Pairing::PlaceChains(const SideTable& chains) {
  by_name_.clear();
  for (size_t slot = 0; slot < chains.slots(); ++slot) {
    if (chains.At(slot) != nullptr) by_name_.push_back(slot);
  }
  std::sort(by_name_.begin(), by_name_.end(), [&chains](size_t a, size_t b) {
    return chains.At(a)->pair.chain.chain_id < chains.At(b)->pair.chain.chain_id;
  });
  for (size_t i = 0; i < by_name_.size(); ++i) {
    chains_[by_name_[i]].place =
        (static_cast<double>(i) + 0.5) / static_cast<double>(by_name_.size());
  }
}

// ---- What is cached ----

Predicted Pairing::Note(const Pair& pair, const Ask& ask) {
  if (policy_ == Policy::kLengthBuckets) {
    for (double& tokens : lengths_) tokens *= kLengthsKept;
    lengths_[LengthBucket(ask.prompt_tokens)] += ask.prompt_tokens;
  }
  Predicted predicted;
  const auto account = workers_.find(pair.chain.stage0);
  if (account == workers_.end() || !account->second.chain_slot.has_value()) return predicted;
  const size_t slot = *account->second.chain_slot;
  if (chains_[slot].misses >= kMissesOfNone) return predicted;
  const size_t held = index_.Held(slot, ask.prefix);
  if (held > 0) {
    const int tokens = std::min(PrefixTokens(held), ask.prompt_tokens - 1);
    predicted.cached_tokens = tokens / pair.page_size * pair.page_size;
    predicted.noted = index_.NotedAt(slot, ask.prefix[held - 1]);
  }
  index_.Note(slot, ask.prefix, pair.chain.capacity_tokens);
  return predicted;
}

// A chain gives up what it has not used for the longest time: with what is missing all that is
// older is gone.
void Pairing::Correct(const Pair& pair, const Predicted& predicted, int cached_tokens) {
  const auto account = workers_.find(pair.chain.stage0);
  if (account == workers_.end() || !account->second.chain_slot.has_value()) return;
  const size_t slot = *account->second.chain_slot;
  Slot& kept = chains_[slot];
  if (cached_tokens > 0) kept.misses = 0;
  if (cached_tokens >= predicted.cached_tokens) return;
  kept.misses += cached_tokens == 0 ? 1 : 0;
  if (kept.misses >= kMissesOfNone) return index_.Drop(slot);
  index_.DropUntil(slot, predicted.noted);
}

void Pairing::DropPredictions() {
  for (size_t slot = 0; slot < chains_.size(); ++slot) index_.Drop(slot);
}

// ---- Candidates ----

std::optional<Pairing::Half> Pairing::ChainHalf(size_t slot, const Ask& ask) const {
  const Slot& kept = chains_[slot];
  const PairLimits& limits = kept.limits;
  if (kept.account == nullptr || limits.protocol_version < ask.protocol_version ||
      ask.prompt_tokens > limits.max_prompt_tokens) {
    return std::nullopt;
  }
  Half half = {.slot = slot, .kept = &kept};
  half.room = HasRoom(*kept.account, limits);
  if (!limits.colocated) return half;
  const int64_t room = limits.max_context_tokens - ask.prompt_tokens;
  if (!Fits(room, ask)) return std::nullopt;
  const int64_t output = std::min<int64_t>(ask.max_tokens, room);
  half.clipped = ask.max_tokens - output;
  half.full = SeemsFull(*kept.account, limits, limits.InPages(ask.prompt_tokens + output));
  return half;
}

std::optional<Pairing::Half> Pairing::DecodeHalf(size_t slot, const Ask& ask) const {
  const Slot& kept = decodes_[slot];
  const PairLimits& limits = kept.limits;
  const int64_t room = limits.max_context_tokens - ask.prompt_tokens;
  if (kept.account == nullptr || limits.protocol_version < ask.protocol_version ||
      !Fits(room, ask)) {
    return std::nullopt;
  }
  const int64_t output = std::min<int64_t>(ask.max_tokens, room);
  const int64_t context_tokens = limits.InPages(ask.prompt_tokens + output);
  Half half = {.slot = slot, .kept = &kept};
  half.clipped = ask.max_tokens - output;
  half.room = HasRoom(*kept.account, limits, context_tokens);
  half.full = SeemsFull(*kept.account, limits, context_tokens);
  return half;
}

bool Pairing::MayPair(const Roster& roster, const Half& chain, const Half& decode) {
  return chain.kept->reach.Connects(decode.kept->reach) ||
         Connected(roster.chains.At(chain.slot)->reach, roster.decodes.At(decode.slot)->reach);
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

absl::Status Pairing::NoneFits(const Roster& roster, const Ask& ask, const FailedPair* failed) {
  const Largest largest = LargestOf(roster, ask, failed);
  const bool any = largest.prompt > 0 || largest.colocated > 0;
  if (!any) return absl::NotFoundError("no other pair is ready");
  return TooLong(largest, ask.prompt_tokens, ask.max_tokens);
}

double Pairing::LengthPlace(int prompt_tokens) const {
  const size_t bucket = LengthBucket(prompt_tokens);
  double below = 0;
  double all = 0;
  for (size_t i = 0; i < lengths_.size(); ++i) {
    below += i < bucket ? lengths_[i] : 0;
    all += lengths_[i];
  }
  return all == 0 ? 0 : (below + lengths_[bucket] / 2) / all;
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
  const Candidate& best = candidates_[Pick(policy_, candidates_, asked, random_)];
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
  return choice;
}

}  // namespace baton::router
