#include "services/router/validate.h"

#include <algorithm>
#include <limits>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/engine/sampling/check_sampling.h"
#include "common/tokenizer/words/utf8.h"
#include "common/types/limits.h"
#include "common/types/turn.h"

namespace baton::router {
namespace {

// What "-1" of truncate_prompt_tokens leaves for an answer of unspecified length.
constexpr int64_t kTruncationRoom = 256;

// The most new tokens of a request that leaves max_tokens out, but for the prompt's room.
int64_t DefaultMaxTokens(const RequestLimits& limits) {
  return limits.default_max_tokens > 0 ? limits.default_max_tokens : limits.max_context_tokens;
}

absl::Status CheckUtf8(const std::string& field, std::string_view text) {
  const auto invalid = FirstInvalidUtf8(text);
  if (!invalid.has_value()) return absl::OkStatus();
  return InvalidField(field, absl::StrCat("must be UTF-8; byte ", *invalid, " is not"));
}

absl::Status CheckRequestId(const std::string& id) {
  if (id.size() > kMaxRequestIdBytes) {
    return InvalidField("request_id", absl::StrCat("must have at most ", kMaxRequestIdBytes,
                                                   " characters, has ", id.size()));
  }
  const bool printable =
      std::all_of(id.begin(), id.end(), [](char c) { return c >= 0x20 && c < 0x7f; });
  if (!printable) return InvalidField("request_id", "must be printable ASCII");
  return absl::OkStatus();
}

absl::Status CheckIds(const std::string& field, const std::vector<int64_t>& ids,
                      const RequestLimits& limits) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < limits.vocab_size) continue;
    return InvalidField(field,
                        absl::StrCat("token id ", ids[i], " at index ", i,
                                     " is outside the vocabulary, 0 to ", limits.vocab_size - 1));
  }
  return absl::OkStatus();
}

absl::Status CheckSamplingOf(const GenerateCall& call, const RequestLimits& limits) {
  const auto name = [&](std::string_view field) {
    if (field == "max_tokens") return call.names.max_tokens;
    if (field == "top_logprobs") return call.names.top_logprobs;
    return std::string(field);
  };
  const SamplingBounds bounds = {
      .vocab_size = limits.vocab_size,
      .default_max_tokens = DefaultMaxTokens(limits),
      .most_stop_token_ids = kMaxStopTokenIds - std::min(kMaxStopTokenIds, limits.end_ids.size())};
  BATON_RETURN_IF_ERROR(CheckSampling(call.sampling, bounds, name));
  if (call.sampling.drawn_tokens() != 0) {
    return InvalidField("sampling.drawn_tokens", "is set by the router alone");
  }
  for (const std::string& stop : call.sampling.stop()) {
    BATON_RETURN_IF_ERROR(CheckUtf8("stop", stop));
  }
  return absl::OkStatus();
}

// max_tokens if it was given.
int64_t MaxTokensOr(const v1::SamplingParams& sampling, int64_t otherwise) {
  return sampling.has_max_tokens() ? sampling.max_tokens() : otherwise;
}

absl::Status CheckChat(const std::string& field, const ChatPrompt& chat,
                       const RequestLimits& limits) {
  if (chat.messages.empty()) return InvalidField(field, "must not be empty");
  if (chat.messages.size() > kMaxChatMessages) {
    return InvalidField(field, absl::StrCat("must have at most ", kMaxChatMessages,
                                            " messages, has ", chat.messages.size()));
  }
  size_t bytes = 0;
  for (size_t i = 0; i < chat.messages.size(); ++i) {
    const std::string content = absl::StrCat(field, "[", i, "].content");
    BATON_RETURN_IF_ERROR(CheckUtf8(absl::StrCat(field, "[", i, "].role"), chat.messages[i].role));
    BATON_RETURN_IF_ERROR(CheckText(content, chat.messages[i].content, limits));
    bytes += chat.messages[i].content.size();
  }
  if (bytes > limits.max_text_bytes()) {
    return ContextOverflow(field,
                           absl::StrCat("has ", bytes, " bytes of text, which cannot fit into ",
                                        "the context of ", limits.max_context_tokens, " tokens"));
  }
  return absl::OkStatus();
}

absl::Status CheckTruncation(const GenerateCall& call, const RequestLimits& limits) {
  const int64_t kept = call.truncate_prompt_tokens.value_or(-1);
  if (kept == -1 || (kept >= 1 && kept <= limits.max_context_tokens)) return absl::OkStatus();
  return InvalidField("truncate_prompt_tokens",
                      absl::StrCat("must be -1 or from 1 to the context of ",
                                   limits.max_context_tokens, " tokens, is ", kept));
}

absl::Status CheckPrompt(const GenerateCall& call, const RequestLimits& limits) {
  const std::string& field = call.names.prompt;
  BATON_RETURN_IF_ERROR(CheckTruncation(call, limits));
  if (const auto* text = std::get_if<std::string>(&call.prompt)) {
    if (text->empty()) return InvalidField(field, "must not be empty");
    // What is cut off need not fit; the body's size bounds it.
    if (call.truncate_prompt_tokens.has_value()) return CheckUtf8(field, *text);
    return CheckText(field, *text, limits);
  }
  if (const auto* ids = std::get_if<TokenIdsPrompt>(&call.prompt)) {
    if (!call.truncate_prompt_tokens.has_value()) {
      BATON_RETURN_IF_ERROR(CheckContext(call, ids->size(), limits));
    }
    return CheckIds(field, *ids, limits);
  }
  return CheckChat(field, std::get<ChatPrompt>(call.prompt), limits);
}

}  // namespace

absl::Status CheckModelName(const std::string& model, const std::string& served) {
  if (model.empty() || model == served) return absl::OkStatus();
  BATON_RETURN_IF_ERROR(CheckUtf8("model", model));
  return FieldError(absl::StatusCode::kNotFound, "model",
                    absl::StrCat(model.size() > 256 ? "this name" : "\"" + model + "\"",
                                 " is not served here; this cluster serves \"", served, "\""));
}

absl::Status CheckText(const std::string& field, const std::string& text,
                       const RequestLimits& limits) {
  if (text.size() > limits.max_text_bytes()) {
    return ContextOverflow(field,
                           absl::StrCat("has ", text.size(), " bytes, which cannot fit into ",
                                        "the context of ", limits.max_context_tokens, " tokens"));
  }
  return CheckUtf8(field, text);
}

absl::Status CheckContext(const GenerateCall& call, size_t prompt_tokens,
                          const RequestLimits& limits) {
  const std::string& field = call.names.prompt;
  if (prompt_tokens == 0) return InvalidField(field, "must not be empty");
  const auto context = static_cast<size_t>(limits.max_context_tokens);
  if (prompt_tokens >= context) {
    return ContextOverflow(
        field, absl::StrCat("has ", prompt_tokens, " tokens; this model's maximum context length ",
                            "is ", context, " tokens, of which at least one is for the output"));
  }
  const auto max_tokens = static_cast<size_t>(MaxTokensOr(call.sampling, 1));
  if (max_tokens <= context - prompt_tokens) return absl::OkStatus();
  return ContextOverflow(
      call.names.max_tokens,
      absl::StrCat("this model's maximum context length is ", context, " tokens, but ",
                   prompt_tokens, " of the prompt and ", max_tokens, " of ", call.names.max_tokens,
                   " are ", prompt_tokens + max_tokens, "; shorten the prompt or ask for at most ",
                   context - prompt_tokens));
}

absl::Status CheckPromptLogprobs(const GenerateCall& call, size_t prompt_tokens) {
  if (!call.sampling.prompt_logprobs()) return absl::OkStatus();
  const auto tokens = static_cast<int64_t>(prompt_tokens);
  const int64_t top = call.sampling.top_logprobs();  // At most kMaxTopLogprobs.
  const int64_t wanted = tokens * (1 + top);
  if (wanted <= kMaxPromptLogprobs) return absl::OkStatus();
  const bool too_long = tokens > kMaxPromptLogprobs;
  return InvalidField(
      too_long ? call.names.prompt : call.names.top_logprobs,
      absl::StrCat("the ", tokens, " tokens of the prompt with ", top, " alternatives each are ",
                   wanted, " log-probabilities, and at most ", kMaxPromptLogprobs, " are told; ",
                   too_long ? "shorten the prompt"
                            : absl::StrCat("ask for at most ", kMaxPromptLogprobs / tokens - 1,
                                           " alternatives or shorten the prompt")));
}

void TruncatePrompt(const GenerateCall& call, const RequestLimits& limits,
                    std::vector<int32_t>& ids) {
  if (!call.truncate_prompt_tokens.has_value()) return;
  int64_t kept = *call.truncate_prompt_tokens;
  if (kept == -1) {
    const int64_t output = MaxTokensOr(
        call.sampling, limits.default_max_tokens > 0
                           ? limits.default_max_tokens
                           : std::min<int64_t>(kTruncationRoom, limits.max_context_tokens / 2));
    kept = std::max<int64_t>(1, limits.max_context_tokens - std::max<int64_t>(1, output));
  }
  if (static_cast<int64_t>(ids.size()) > kept) ids.erase(ids.begin(), ids.end() - kept);
}

std::string DefaultNote(const GenerateCall& call, size_t prompt_tokens,
                        const RequestLimits& limits) {
  const int64_t room = limits.max_context_tokens - static_cast<int64_t>(prompt_tokens);
  if (call.sampling.has_max_tokens() || limits.default_max_tokens <= 0) return "";
  if (limits.default_max_tokens <= room) {
    return absl::StrCat(call.names.max_tokens, ": none was given, and the text was cut at the ",
                        "server's default of ", limits.default_max_tokens);
  }
  return absl::StrCat(call.names.max_tokens, ": none was given, and the default of ",
                      limits.default_max_tokens, " does not fit beside ", prompt_tokens,
                      " tokens of the prompt into the context of ", limits.max_context_tokens,
                      "; at most ", room, " are generated");
}

absl::Status CheckCall(const GenerateCall& call, const RequestLimits& limits) {
  BATON_RETURN_IF_ERROR(CheckRequestId(call.request_id));
  BATON_RETURN_IF_ERROR(CheckModelName(call.model, limits.served_model_name));
  if (call.timeout_ms < 0) {
    return InvalidField("timeout_ms", absl::StrCat("must not be negative, is ", call.timeout_ms));
  }
  if (call.cache_salt.size() > kMaxCacheSaltBytes) {
    return InvalidField("cache_salt",
                        absl::StrCat("has ", call.cache_salt.size(), " bytes, at most ",
                                     kMaxCacheSaltBytes, " are taken"));
  }
  if (call.priority < -kMaxPriority || call.priority > kMaxPriority) {
    return InvalidField("priority", absl::StrCat("must be from ", -kMaxPriority, " to ",
                                                 kMaxPriority, ", is ", call.priority));
  }
  BATON_RETURN_IF_ERROR(CheckSamplingOf(call, limits));
  return CheckPrompt(call, limits);
}

v1::SamplingParams ResolveSampling(v1::SamplingParams sampling, int prompt_tokens,
                                   uint64_t random_seed, const RequestLimits& limits) {
  const GenerationDefaults& defaults = limits.defaults;
  const auto real = [](const std::optional<double>& by_model, float openai) {
    return by_model.has_value() ? static_cast<float>(*by_model) : openai;
  };
  if (!sampling.has_temperature()) sampling.set_temperature(real(defaults.temperature, 1));
  if (!sampling.has_top_k()) {
    sampling.set_top_k(static_cast<int32_t>(defaults.top_k.value_or(-1)));
  }
  // A model's that is positive as a double may be zero as a float, which the contract doesn't know.
  constexpr float kLeast = std::numeric_limits<float>::min();
  if (!sampling.has_top_p()) sampling.set_top_p(std::max(real(defaults.top_p, 1), kLeast));
  if (!sampling.has_min_p()) sampling.set_min_p(real(defaults.min_p, 0));
  if (!sampling.has_repetition_penalty()) {
    sampling.set_repetition_penalty(std::max(real(defaults.repetition_penalty, 1), kLeast));
  }
  if (!sampling.has_seed()) sampling.set_seed(random_seed);
  // Workers know the ids of generation_config.json; others are given to them as ids to stop at.
  if (!sampling.ignore_eos()) {
    for (const int32_t id : limits.end_ids) sampling.add_stop_token_ids(id);
  }
  sampling.set_ignore_eos(sampling.ignore_eos() || !limits.end_ids.empty());
  const int64_t room = int64_t{limits.max_context_tokens} - prompt_tokens;
  // 0 (only the prompt is read) runs as one token, which the session drops.
  const int64_t max_tokens =
      std::max<int64_t>(1, std::min(room, MaxTokensOr(sampling, DefaultMaxTokens(limits))));
  sampling.set_max_tokens(static_cast<int32_t>(max_tokens));
  sampling.set_min_tokens(
      static_cast<int32_t>(std::min<int64_t>(max_tokens, sampling.min_tokens())));
  return sampling;
}

}  // namespace baton::router
