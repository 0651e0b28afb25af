#include "services/router/validate.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/tokenizer/words/utf8.h"
#include "common/types/limits.h"
#include "common/types/turn.h"

namespace baton::router {
namespace {

constexpr int64_t kInt32Max = std::numeric_limits<int32_t>::max();
// What "-1" of truncate_prompt_tokens leaves for an answer of unspecified length.
constexpr int64_t kTruncationRoom = 256;

// The most new tokens of a request that leaves max_tokens out, but for the prompt's room.
int64_t DefaultMaxTokens(const RequestLimits& limits) {
  return limits.default_max_tokens > 0 ? limits.default_max_tokens : limits.max_context_tokens;
}

// InvalidField under another code.
absl::Status FieldError(absl::StatusCode code, const std::string& field,
                        const std::string& message) {
  const absl::Status invalid = InvalidField(field, message);
  absl::Status status(code, invalid.message());
  invalid.ForEachPayload([&status](absl::string_view url, const absl::Cord& payload) {
    status.SetPayload(url, payload);
  });
  return status;
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

// low <= value <= high, or low < value with `low_open`.
absl::Status CheckReal(const std::string& field, const std::optional<double>& value, double low,
                       double high, bool low_open, const std::string& range) {
  if (!value.has_value()) return absl::OkStatus();
  const bool above = low_open ? *value > low : *value >= low;
  if (std::isfinite(*value) && above && *value <= high) return absl::OkStatus();
  return InvalidField(field, absl::StrCat("must be ", range, ", is ", *value));
}

absl::Status CheckInteger(const std::string& field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return InvalidField(field, absl::StrCat("must be from ", low, " to ", high, ", is ", value));
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

absl::Status CheckStops(const SamplingRequest& sampling, const RequestLimits& limits) {
  if (sampling.stop.size() > kMaxStops) {
    return InvalidField("stop", absl::StrCat("must have at most ", kMaxStops, " strings, has ",
                                             sampling.stop.size()));
  }
  for (const std::string& stop : sampling.stop) {
    if (stop.empty()) return InvalidField("stop", "a stop string must not be empty");
    if (stop.size() > kMaxStopBytes) {
      return InvalidField("stop", absl::StrCat("a stop string must have at most ", kMaxStopBytes,
                                               " bytes, one has ", stop.size()));
    }
    BATON_RETURN_IF_ERROR(CheckUtf8("stop", stop));
  }
  const size_t most_ids = kMaxStopTokenIds - std::min(kMaxStopTokenIds, limits.end_ids.size());
  if (sampling.stop_token_ids.size() > most_ids) {
    return InvalidField("stop_token_ids", absl::StrCat("must have at most ", most_ids, " ids, has ",
                                                       sampling.stop_token_ids.size()));
  }
  return CheckIds("stop_token_ids", sampling.stop_token_ids, limits);
}

absl::Status CheckLogitBias(const SamplingRequest& sampling, const RequestLimits& limits) {
  if (sampling.logit_bias.size() > kMaxLogitBiases) {
    return InvalidField("logit_bias", absl::StrCat("must have at most ", kMaxLogitBiases,
                                                   " tokens, has ", sampling.logit_bias.size()));
  }
  std::vector<int64_t> ids;
  for (const auto& [id, bias] : sampling.logit_bias) {
    ids.push_back(id);
    BATON_RETURN_IF_ERROR(
        CheckReal("logit_bias", bias, -kMaxLogitBias, kMaxLogitBias, false, "from -100 to 100"));
  }
  BATON_RETURN_IF_ERROR(CheckIds("logit_bias", ids, limits));
  std::sort(ids.begin(), ids.end());
  const auto twice = std::adjacent_find(ids.begin(), ids.end());
  if (twice == ids.end()) return absl::OkStatus();
  return InvalidField("logit_bias", absl::StrCat("names the token ", *twice, " twice"));
}

absl::Status CheckPenalties(const SamplingRequest& sampling, const RequestLimits& limits) {
  BATON_RETURN_IF_ERROR(
      CheckReal("presence_penalty", sampling.presence_penalty, -2, 2, false, "from -2 to 2"));
  BATON_RETURN_IF_ERROR(
      CheckReal("frequency_penalty", sampling.frequency_penalty, -2, 2, false, "from -2 to 2"));
  BATON_RETURN_IF_ERROR(CheckReal("repetition_penalty", sampling.repetition_penalty, 0, 2, true,
                                  "greater than 0 and at most 2"));
  return CheckLogitBias(sampling, limits);
}

absl::Status CheckSampling(const SamplingRequest& sampling, const FieldNames& names,
                           const RequestLimits& limits) {
  constexpr double kFloatMax = std::numeric_limits<float>::max();
  BATON_RETURN_IF_ERROR(CheckReal("temperature", sampling.temperature, 0, kFloatMax, false,
                                  "a finite number of at least 0"));
  BATON_RETURN_IF_ERROR(
      CheckReal("top_p", sampling.top_p, 0, 1, true, "greater than 0 and at most 1"));
  BATON_RETURN_IF_ERROR(CheckReal("min_p", sampling.min_p, 0, 1, false, "from 0 to 1"));
  BATON_RETURN_IF_ERROR(CheckInteger("top_k", sampling.top_k.value_or(-1), -1, kInt32Max));
  BATON_RETURN_IF_ERROR(
      CheckInteger(names.max_tokens, sampling.max_tokens.value_or(1), 0, kInt32Max));
  BATON_RETURN_IF_ERROR(CheckInteger("min_tokens", sampling.min_tokens, 0, kInt32Max));
  const int64_t max_tokens = sampling.max_tokens.value_or(DefaultMaxTokens(limits));
  if (sampling.min_tokens > max_tokens) {
    return InvalidField(
        "min_tokens", absl::StrCat("must be at most ", names.max_tokens, " = ", max_tokens,
                                   sampling.max_tokens.has_value() ? "" : " (the default)", ", is ",
                                   sampling.min_tokens));
  }
  BATON_RETURN_IF_ERROR(
      CheckInteger(names.top_logprobs, sampling.top_logprobs, 0, kMaxTopLogprobs));
  if (sampling.top_logprobs > 0 && !sampling.logprobs && !sampling.prompt_logprobs) {
    return InvalidField(names.top_logprobs, "needs logprobs to be set");
  }
  BATON_RETURN_IF_ERROR(CheckPenalties(sampling, limits));
  return CheckStops(sampling, limits);
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
  const auto max_tokens = static_cast<size_t>(call.sampling.max_tokens.value_or(1));
  if (max_tokens <= context - prompt_tokens) return absl::OkStatus();
  return ContextOverflow(
      call.names.max_tokens,
      absl::StrCat("this model's maximum context length is ", context, " tokens, but ",
                   prompt_tokens, " of the prompt and ", max_tokens, " of ", call.names.max_tokens,
                   " are ", prompt_tokens + max_tokens, "; shorten the prompt or ask for at most ",
                   context - prompt_tokens));
}

absl::Status CheckPromptLogprobs(const GenerateCall& call, size_t prompt_tokens) {
  if (!call.sampling.prompt_logprobs) return absl::OkStatus();
  const auto tokens = static_cast<int64_t>(prompt_tokens);
  const int64_t top = call.sampling.top_logprobs;  // At most kMaxTopLogprobs.
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
    const int64_t output = call.sampling.max_tokens.value_or(
        limits.default_max_tokens > 0
            ? limits.default_max_tokens
            : std::min<int64_t>(kTruncationRoom, limits.max_context_tokens / 2));
    kept = std::max<int64_t>(1, limits.max_context_tokens - std::max<int64_t>(1, output));
  }
  if (static_cast<int64_t>(ids.size()) > kept) ids.erase(ids.begin(), ids.end() - kept);
}

std::string DefaultNote(const GenerateCall& call, size_t prompt_tokens,
                        const RequestLimits& limits) {
  const int64_t room = limits.max_context_tokens - static_cast<int64_t>(prompt_tokens);
  if (call.sampling.max_tokens.has_value() || limits.default_max_tokens <= 0) return "";
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
  BATON_RETURN_IF_ERROR(CheckSampling(call.sampling, call.names, limits));
  return CheckPrompt(call, limits);
}

v1::SamplingParams ResolveSampling(const SamplingRequest& sampling, int prompt_tokens,
                                   uint64_t random_seed, const RequestLimits& limits) {
  const GenerationDefaults& defaults = limits.defaults;
  const auto either = [](const auto& asked, const auto& by_model, auto openai) {
    return asked.has_value() ? *asked : by_model.has_value() ? *by_model : openai;
  };
  v1::SamplingParams params;
  params.set_temperature(
      static_cast<float>(either(sampling.temperature, defaults.temperature, 1.0)));
  params.set_top_k(static_cast<int32_t>(either(sampling.top_k, defaults.top_k, int64_t{-1})));
  // A top_p that is positive as a double may be zero as a float, which the contract doesn't know.
  params.set_top_p(std::max(static_cast<float>(either(sampling.top_p, defaults.top_p, 1.0)),
                            std::numeric_limits<float>::min()));
  params.set_min_p(static_cast<float>(either(sampling.min_p, defaults.min_p, 0.0)));
  params.set_seed(sampling.seed.value_or(random_seed));
  for (const std::string& stop : sampling.stop) params.add_stop(stop);
  for (const int64_t id : sampling.stop_token_ids) {
    params.add_stop_token_ids(static_cast<int32_t>(id));
  }
  // Workers know the ids of generation_config.json; others are given to them as ids to stop at.
  if (!sampling.ignore_eos) {
    for (const int32_t id : limits.end_ids) params.add_stop_token_ids(id);
  }
  params.set_ignore_eos(sampling.ignore_eos || !limits.end_ids.empty());
  const int64_t room = int64_t{limits.max_context_tokens} - prompt_tokens;
  // 0 (only the prompt is read) runs as one token, which the session drops.
  const int64_t max_tokens =
      std::max<int64_t>(1, std::min(room, sampling.max_tokens.value_or(DefaultMaxTokens(limits))));
  params.set_max_tokens(static_cast<int32_t>(max_tokens));
  params.set_min_tokens(static_cast<int32_t>(std::min(max_tokens, sampling.min_tokens)));
  params.set_logprobs(sampling.logprobs);
  params.set_top_logprobs(static_cast<int32_t>(sampling.top_logprobs));
  params.set_prompt_logprobs(sampling.prompt_logprobs);
  params.set_presence_penalty(static_cast<float>(sampling.presence_penalty.value_or(0)));
  params.set_frequency_penalty(static_cast<float>(sampling.frequency_penalty.value_or(0)));
  // As with top_p: positive as a double may be zero as a float.
  params.set_repetition_penalty(std::max(
      static_cast<float>(either(sampling.repetition_penalty, defaults.repetition_penalty, 1.0)),
      std::numeric_limits<float>::min()));
  if (sampling.structure.has_value()) *params.mutable_structure() = *sampling.structure;
  for (const auto& [id, bias] : sampling.logit_bias) {
    v1::LogitBias& entry = *params.add_logit_bias();
    entry.set_token_id(static_cast<int32_t>(id));
    entry.set_bias(static_cast<float>(bias));
  }
  return params;
}

}  // namespace baton::router
