// The calls of a request of OpenAI's, and its prompts as the answer shows them.
#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/base/status.h"
#include "common/base/strings.h"
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

// More than the longest mark, with the white space that follows it in prompts.
constexpr size_t kTailTokens = 32;

// How the answer is taken apart: by what the model may write for this request.
absl::StatusOr<chat::OutputOptions> ParsingOf(const Gateway& gateway, OpenAiRequest& request) {
  const chat::ChatFormat& format = gateway.chat_format();
  chat::OutputOptions parsing;
  if (!request.offered.empty()) {
    if (!format.template_takes_tools) {
      return InvalidField("tools",
                          "the model's chat template takes no tools; leave them out, or start the "
                          "server with a --chat-template that takes them");
    }
    if (format.tools == chat::ToolFormat::kNone) {
      return InvalidField("tools",
                          "this server can't read the model's calls; start it with a "
                          "--tool-call-parser that fits the model");
    }
    parsing.tools = format.tools;
    parsing.offered = std::move(request.offered);
    parsing.parallel_calls = request.parallel_calls;
  }
  if (request.separate_reasoning) parsing.reasoning = format.reasoning;
  for (std::string& mark : chat::AllMarks(parsing.tools, parsing.reasoning)) {
    const auto& special = format.special_marks;
    if (std::find(special.begin(), special.end(), mark) == special.end()) continue;
    parsing.special_marks.push_back(std::move(mark));
  }
  return parsing;
}

// Where a prompt leaves the model: it may reason first, it is to go on reasoning, or it has been
// told that it has reasoned (Qwen3 without enable_thinking).
enum class PromptEnd { kFree, kInReasoning, kBehindReasoning };

// `ids` are the prompt's.
absl::StatusOr<PromptEnd> EndOf(const Gateway& gateway, chat::ReasoningFormat format,
                                const Prompt& prompt, const std::vector<int32_t>& ids) {
  const auto* chat = std::get_if<ChatPrompt>(&prompt);
  if (chat != nullptr && chat->continue_final_message && !chat->messages.empty()) {
    const bool inside = chat::BreaksOffInReasoning(format, chat->messages.back().content);
    return inside ? PromptEnd::kInReasoning : PromptEnd::kFree;
  }
  const size_t tail = std::min(ids.size(), kTailTokens);
  BATON_ASSIGN_OR_RETURN(const std::string text,
                         gateway.Detokenize({ids.end() - static_cast<ptrdiff_t>(tail), ids.end()},
                                            /*skip_special_tokens=*/false));
  if (chat::StartsInReasoning(format, text)) return PromptEnd::kInReasoning;
  const bool behind =
      absl::EndsWith(absl::StripTrailingAsciiWhitespace(text), ToAbsl(chat::MarksOf(format).end));
  return behind ? PromptEnd::kBehindReasoning : PromptEnd::kFree;
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
  plan.header.top_logprobs = request.top_logprobs;
  plan.header.prompt_logprobs = request.prompt_logprobs;
  plan.header.token_ids = request.return_token_ids;
  plan.header.usage = request.include_usage;
  plan.header.continuous_usage = request.continuous_usage;
  plan.header.progress = request.include_progress;
  plan.n = request.n;
  plan.best_of = request.best_of;
  plan.echo = request.echo;
  plan.include_reasoning = request.include_reasoning;
  chat::OutputOptions parsing;
  if (IsChat(request.call.endpoint)) {
    BATON_ASSIGN_OR_RETURN(parsing, ParsingOf(gateway, request));
    BATON_RETURN_IF_ERROR(ApplyCallRules(request.call_rules, parsing.tools, request.call));
  }
  // What bounds reasoning does so whether or not it is told apart.
  chat::ReasoningFormat reasoning = parsing.reasoning;
  if (request.reasoning_budget.has_value()) {
    reasoning = gateway.chat_format().reasoning;
    if (reasoning == chat::ReasoningFormat::kNone) {
      request.call.warnings.push_back(
          "thinking_token_budget: reasoning is not bounded, since this server knows no marks of "
          "it");
    }
  }
  const bool reasons = reasoning != chat::ReasoningFormat::kNone;
  const bool shown = request.echo || request.return_token_ids || request.continuous_usage ||
                     request.best_of > 1 || reasons || request.prompt_logprobs.has_value();
  const bool several = request.prompts.size() > 1 || request.best_of > 1;
  GenerateCall& call = request.call;
  call.request_id.clear();
  call.text.kept_marks = parsing.special_marks;
  for (Prompt& prompt : request.prompts) {
    ShownPrompt& entry = plan.prompts.emplace_back();
    call.prompt = std::move(prompt);
    if (shown) {
      BATON_ASSIGN_OR_RETURN(entry.ids, gateway.Encode(call));
      PromptEnd end = PromptEnd::kFree;
      if (reasons) {
        BATON_ASSIGN_OR_RETURN(end, EndOf(gateway, reasoning, call.prompt, entry.ids));
      }
      const bool inside = end == PromptEnd::kInReasoning;
      if (parsing.reasoning != chat::ReasoningFormat::kNone) parsing.starts_in_reasoning = inside;
      const bool over = end == PromptEnd::kBehindReasoning;
      AllowReasoning(over ? chat::ReasoningFormat::kNone : reasoning, inside,
                     request.reasoning_budget, call);
      if (request.echo) BATON_RETURN_IF_ERROR(FillEcho(gateway, call.prompt, entry));
      call.prompt = TokenIdsPrompt(entry.ids.begin(), entry.ids.end());
    }
    Prompt whole = std::exchange(call.prompt, {});
    for (int candidate = 0; candidate < plan.best_of; ++candidate) {
      GenerateCall& copy = plan.calls.emplace_back(call);
      if (candidate + 1 < plan.best_of) copy.prompt = whole;
      copy.request_id = several ? absl::StrCat(id, "-", plan.calls.size() - 1) : id;
      if (call.sampling.has_seed()) {
        copy.sampling.set_seed(CandidateSeed(call.sampling.seed(), candidate));
      }
    }
    plan.calls.back().prompt = std::move(whole);
  }
  if (parsing.reasoning != chat::ReasoningFormat::kNone ||
      parsing.tools != chat::ToolFormat::kNone) {
    plan.parsing = std::make_shared<const chat::OutputOptions>(std::move(parsing));
  }
  return plan;
}

}  // namespace baton::router
