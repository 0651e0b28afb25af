// The calls of a request of OpenAI's, and its prompts as the answer shows them.
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/base/status.h"
#include "common/tokenizer/words/utf8.h"
#include "services/router/http/openai_answer.h"

namespace baton::router {
namespace {

int64_t Characters(const std::string& text) { return static_cast<int64_t>(CountCharacters(text)); }

// The echo is the prompt as it was written. Where tokens are placed in it counts from their own
// text, which has the special tokens that were added before it.
absl::Status FillEcho(const Gateway& gateway, const Prompt& prompt, ShownPrompt& shown) {
  BATON_ASSIGN_OR_RETURN(shown.echo, gateway.Detokenize(shown.ids, /*skip_special_tokens=*/false));
  const auto* text = std::get_if<std::string>(&prompt);
  if (text != nullptr && absl::EndsWith(shown.echo, *text)) {
    shown.added_characters = Characters(shown.echo) - Characters(*text);
    shown.echo = *text;
  }
  shown.echo_characters = Characters(shown.echo);
  return absl::OkStatus();
}

}  // namespace

uint64_t CandidateSeed(uint64_t seed, int candidate) {
  return candidate == 0 ? seed : Mix64(Mix64(seed) ^ static_cast<uint64_t>(candidate));
}

absl::StatusOr<AnswerPlan> PlanAnswer(const Gateway& gateway, OpenAiRequest request,
                                      const std::string& id, int64_t now_s) {
  AnswerPlan plan;
  plan.header.endpoint = request.call.endpoint;
  plan.header.id = id;
  plan.header.model = gateway.model_info().served_model_name();
  plan.header.created_s = now_s;
  plan.header.logprobs = request.logprobs;
  plan.header.token_ids = request.return_token_ids;
  plan.header.usage = request.include_usage;
  plan.header.continuous_usage = request.continuous_usage;
  plan.header.progress = request.include_progress;
  plan.n = request.n;
  plan.best_of = request.best_of;
  plan.echo = request.echo;
  const bool shown =
      request.echo || request.return_token_ids || request.continuous_usage || request.best_of > 1;
  const bool several = request.prompts.size() > 1 || request.best_of > 1;
  GenerateCall& call = request.call;
  call.request_id.clear();
  for (Prompt& prompt : request.prompts) {
    ShownPrompt& entry = plan.prompts.emplace_back();
    call.prompt = std::move(prompt);
    if (shown) {
      BATON_ASSIGN_OR_RETURN(entry.ids, gateway.Encode(call));
      if (request.echo) BATON_RETURN_IF_ERROR(FillEcho(gateway, call.prompt, entry));
      call.prompt = TokenIdsPrompt(entry.ids.begin(), entry.ids.end());
    }
    for (int candidate = 0; candidate < plan.best_of; ++candidate) {
      GenerateCall& copy = plan.calls.emplace_back(call);
      copy.request_id = several ? absl::StrCat(id, "-", plan.calls.size() - 1) : id;
      if (call.sampling.seed.has_value()) {
        copy.sampling.seed = CandidateSeed(*call.sampling.seed, candidate);
      }
    }
  }
  return plan;
}

}  // namespace baton::router
