#include "services/router/http/openai_request.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/types/limits.h"
#include "services/router/http/json_input.h"
#include "services/router/http/request_prompt.h"
#include "services/router/http/request_sampling.h"
#include "services/router/http/request_tools.h"

namespace baton::router {
namespace {

// Completions: a number of alternatives. Chat: a flag, and a number beside it.
absl::Status ReadLogprobs(Endpoint endpoint, const Fields& fields, OpenAiRequest& request) {
  GenerateCall& call = request.call;
  if (endpoint == Endpoint::kCompletions) {
    call.names.top_logprobs = "logprobs";
    BATON_ASSIGN_OR_RETURN(const auto count, fields.Integer("logprobs"));
    request.logprobs = count.has_value();
    BATON_RETURN_IF_ERROR(SetTopLogprobs(count.value_or(0), "logprobs", call.sampling));
  } else {
    BATON_ASSIGN_OR_RETURN(const auto wanted, fields.Bool("logprobs"));
    BATON_ASSIGN_OR_RETURN(const auto count, fields.Integer("top_logprobs"));
    request.logprobs = wanted.value_or(false);
    BATON_RETURN_IF_ERROR(SetTopLogprobs(count.value_or(0), "top_logprobs", call.sampling));
  }
  call.sampling.set_logprobs(request.logprobs);
  return absl::OkStatus();
}

absl::Status ReadStreaming(const Fields& fields, UnknownFields unknown, OpenAiRequest& request) {
  BATON_ASSIGN_OR_RETURN(const auto stream, fields.Bool("stream"));
  request.stream = stream.value_or(false);
  const Json* value = fields.Find("stream_options");
  if (value == nullptr) return absl::OkStatus();
  if (!value->is_object()) return fields.Wrong("stream_options", "an object");
  if (!request.stream) {
    return InvalidField("stream_options", "is only allowed when stream is true");
  }
  const Fields options(*value, "stream_options.");
  BATON_RETURN_IF_ERROR(CheckFields(options, StreamOptionFields(), unknown, request.call.warnings));
  BATON_ASSIGN_OR_RETURN(const auto usage, options.Bool("include_usage"));
  BATON_ASSIGN_OR_RETURN(const auto continuous, options.Bool("continuous_usage_stats"));
  BATON_ASSIGN_OR_RETURN(const auto progress, options.Bool("include_progress"));
  request.include_usage = usage.value_or(false);
  request.include_progress = progress.value_or(false);
  request.continuous_usage = request.include_usage && continuous.value_or(false);
  return absl::OkStatus();
}

absl::Status ReadChoices(Endpoint endpoint, const Fields& fields, OpenAiRequest& request) {
  BATON_ASSIGN_OR_RETURN(const int64_t n, ReadCount(fields, "n", 1));
  request.n = request.best_of = static_cast<int>(n);
  if (endpoint == Endpoint::kCompletions) {
    BATON_ASSIGN_OR_RETURN(const int64_t best_of, ReadCount(fields, "best_of", n));
    if (best_of < n) {
      return InvalidField("best_of", absl::StrCat("must be at least n = ", n, ", is ", best_of));
    }
    request.best_of = static_cast<int>(best_of);
    BATON_ASSIGN_OR_RETURN(const auto echo, fields.Bool("echo"));
    request.echo = echo.value_or(false);
  }
  if (request.best_of > request.n && request.stream) {
    return InvalidField("best_of",
                        "must equal n when stream is true: the best is known at the end");
  }
  const size_t calls = request.prompts.size() * static_cast<size_t>(request.best_of);
  if (calls <= kMaxCallsPerAnswer) return absl::OkStatus();
  return InvalidField(
      request.best_of > request.n ? "best_of" : "n",
      absl::StrCat(request.prompts.size(), " prompts with ", request.best_of, " choices each are ",
                   calls, ", more than the ", kMaxCallsPerAnswer, " that one request may ask for"));
}

// vLLM's: the prompt's log-probabilities beside the answer. The call asks once for as many
// alternatives as prompt and answer need.
absl::Status ReadPromptLogprobs(const Fields& fields, OpenAiRequest& request) {
  v1::SamplingParams& sampling = request.call.sampling;
  request.top_logprobs = sampling.top_logprobs();
  BATON_ASSIGN_OR_RETURN(request.prompt_logprobs, fields.Integer("prompt_logprobs"));
  if (!request.prompt_logprobs.has_value()) return absl::OkStatus();
  if (request.stream) {
    return InvalidField("prompt_logprobs", "can't be given when stream is true");
  }
  const int64_t count = *request.prompt_logprobs;
  if (count < 0 || count > kMaxTopLogprobs) {
    return InvalidField("prompt_logprobs",
                        absl::StrCat("must be from 0 to ", kMaxTopLogprobs, ", is ", count));
  }
  sampling.set_prompt_logprobs(true);
  // A number without log-probabilities stays as wrong as it is.
  if (request.logprobs || sampling.top_logprobs() == 0) {
    sampling.set_top_logprobs(std::max(sampling.top_logprobs(), static_cast<int32_t>(count)));
  }
  return absl::OkStatus();
}

// Switches of the answer, and what they need of the call.
absl::Status ReadAnswer(const Fields& fields, OpenAiRequest& request) {
  BATON_ASSIGN_OR_RETURN(const auto ids, fields.Bool("return_token_ids"));
  request.return_token_ids = ids.value_or(false);
  v1::SamplingParams& sampling = request.call.sampling;
  sampling.set_prompt_logprobs(request.echo && request.logprobs);
  BATON_RETURN_IF_ERROR(ReadPromptLogprobs(fields, request));
  if (request.best_of > request.n) sampling.set_logprobs(true);
  BATON_ASSIGN_OR_RETURN(const std::string id, fields.OneOf({"request_id", "rid"}));
  BATON_ASSIGN_OR_RETURN(auto request_id, fields.String(id));
  request.call.request_id = std::move(request_id).value_or("");
  BATON_ASSIGN_OR_RETURN(request.call.truncate_prompt_tokens,
                         fields.Integer("truncate_prompt_tokens"));
  BATON_ASSIGN_OR_RETURN(const auto special, fields.Bool("add_special_tokens"));
  request.call.add_special_tokens = special.value_or(true);
  return absl::OkStatus();
}

absl::Status ReadChatOutput(std::string_view body, const Fields& fields, OpenAiRequest& request) {
  request.offered = ReadOfferedTools(fields);
  BATON_ASSIGN_OR_RETURN(const auto parallel, fields.Bool("parallel_tool_calls"));
  request.parallel_calls = parallel.value_or(true);
  BATON_ASSIGN_OR_RETURN(request.call_rules,
                         ReadCallRules(body, fields, request.offered, request.parallel_calls));
  // vLLM's name and Alibaba's.
  BATON_ASSIGN_OR_RETURN(const std::string budget,
                         fields.OneOf({"thinking_token_budget", "thinking_budget"}));
  BATON_ASSIGN_OR_RETURN(request.reasoning_budget, fields.Integer(budget));
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  const int64_t tokens = request.reasoning_budget.value_or(0);
  if (tokens < 0 || tokens > kMost) {
    return InvalidField(budget, absl::StrCat("must be from 0 to ", kMost, ", is ", tokens));
  }
  BATON_ASSIGN_OR_RETURN(const auto separate, fields.Bool("separate_reasoning"));
  request.separate_reasoning = separate.value_or(true);
  BATON_ASSIGN_OR_RETURN(const auto include, fields.Bool("include_reasoning"));
  request.include_reasoning = include.value_or(true);
  return absl::OkStatus();
}

absl::Status ReadPrompt(Endpoint endpoint, std::string_view body, Json& object,
                        UnknownFields unknown, OpenAiRequest& request) {
  const Fields fields(object);
  if (endpoint == Endpoint::kCompletions) {
    BATON_ASSIGN_OR_RETURN(PromptList list, ReadPrompts(object, "prompt"));
    request.prompts = std::move(list.prompts);
    return absl::OkStatus();
  }
  request.call.names.prompt = "messages";
  BATON_ASSIGN_OR_RETURN(ChatPrompt chat,
                         ReadMessages(body, fields, unknown, request.call.warnings));
  request.prompts.emplace_back(std::move(chat));
  return ReadChatOutput(body, fields, request);
}

}  // namespace

absl::StatusOr<OpenAiRequest> ParseOpenAiRequest(Endpoint endpoint, std::string_view body,
                                                 UnknownFields unknown, std::string_view timeout) {
  BATON_ASSIGN_OR_RETURN(Json object, ParseObject(body));
  const Fields fields(object);
  OpenAiRequest request;
  GenerateCall& call = request.call;
  call.endpoint = endpoint;
  const bool chat = endpoint == Endpoint::kChatCompletions;
  BATON_RETURN_IF_ERROR(
      CheckFields(fields, chat ? ChatFields() : CompletionFields(), unknown, call.warnings));
  BATON_ASSIGN_OR_RETURN(const auto model, fields.String("model"));
  call.model = model.value_or("");
  BATON_RETURN_IF_ERROR(ReadPrompt(endpoint, body, object, unknown, request));
  BATON_RETURN_IF_ERROR(ReadSampling(fields, call));
  BATON_RETURN_IF_ERROR(ReadStructure(body, fields, call));
  BATON_RETURN_IF_ERROR(ReadLogprobs(endpoint, fields, request));
  BATON_RETURN_IF_ERROR(ReadStreaming(fields, unknown, request));
  BATON_RETURN_IF_ERROR(ReadChoices(endpoint, fields, request));
  BATON_RETURN_IF_ERROR(ReadAnswer(fields, request));
  BATON_ASSIGN_OR_RETURN(call.timeout_ms, ReadTimeoutMs(fields, timeout));
  BATON_ASSIGN_OR_RETURN(call.cache_salt, ReadCacheSalt(fields));
  BATON_ASSIGN_OR_RETURN(call.priority, ReadPriority(fields));
  const Json* const user = fields.Find("user");
  if (user != nullptr && user->is_string()) call.routing_key = user->get<std::string>();
  return request;
}

}  // namespace baton::router
