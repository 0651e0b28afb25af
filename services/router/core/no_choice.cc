// Why no pair is for a request: what the largest that are ready would take.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "services/router/core/context_overflow.h"
#include "services/router/core/pairing.h"

namespace baton::router {
namespace {

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

Largest LargestOfPairs(const Roster& roster, const Ask& ask, const FailedPair* failed) {
  Largest largest;
  roster.VisitPairs([&](size_t chain, size_t decode) {
    const Pair& of_chain = roster.chains.At(chain)->pair;
    const Pair& of_decode = of_chain.colocated() ? of_chain : roster.decodes.At(decode)->pair;
    const bool same =
        failed != nullptr && failed->HasChain(of_chain) && failed->HasDecode(of_decode);
    if (same) return true;
    largest.Count(of_chain, of_decode, ask.prompt_tokens);
    return true;
  });
  return largest;
}

// By each side's largest, which no single pair may have both.
Largest LargestOfSides(const Roster& roster, const Ask& ask) {
  Largest largest;
  Pair decode;
  for (size_t slot = 0; slot < roster.decodes.slots(); ++slot) {
    const Side* side = roster.decodes.At(slot);
    if (side == nullptr) continue;
    decode.max_context_tokens = std::max(decode.max_context_tokens, side->pair.max_context_tokens);
  }
  for (size_t slot = 0; slot < roster.chains.slots(); ++slot) {
    const Side* side = roster.chains.At(slot);
    if (side == nullptr) continue;
    if (!side->pair.colocated() && decode.max_context_tokens == 0) continue;
    largest.Count(side->pair, side->pair.colocated() ? side->pair : decode, ask.prompt_tokens);
  }
  return largest;
}

}  // namespace

absl::Status Pairing::NoneFits(const Roster& roster, const Ask& ask, const FailedPair* failed) {
  const bool few = roster.chains.ready() * roster.decodes.ready() <= kFewPairs;
  const Largest largest = few ? LargestOfPairs(roster, ask, failed) : LargestOfSides(roster, ask);
  const bool any = largest.prompt > 0 || largest.colocated > 0;
  if (!any) return absl::NotFoundError("no other pair is ready");
  return TooLong(largest, ask.prompt_tokens, ask.max_tokens);
}

}  // namespace baton::router
