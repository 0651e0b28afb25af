#include "services/router/http/openai_request.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "services/router/http/json_input.h"

namespace baton::router {
namespace {

constexpr size_t kMessagesLimit = 4096;

// Fields that would change the answer, and the one value that changes nothing.
struct Unsupported {
  const char* name;
  Json harmless;
};

const std::vector<Unsupported>& UnsupportedFields() {
  static const auto* fields = new std::vector<Unsupported>{
      {"n", 1},
      {"best_of", 1},
      {"echo", false},
      {"suffix", ""},
      {"frequency_penalty", 0},
      {"presence_penalty", 0},
      {"repetition_penalty", 1},
      {"logit_bias", Json::object()},
      {"tools", Json::array()},
      {"tool_choice", "none"},
      {"functions", Json::array()},
      {"function_call", "none"},
      {"response_format", Json::object({{"type", "text"}})},
      {"guided_json", Json()},
      {"guided_regex", Json()},
      {"regex", Json()},
      {"json_schema", Json()},
      {"ebnf", Json()},
      {"modalities", Json::array({"text"})},
      {"audio", Json()},
  };
  return *fields;
}

absl::Status RefuseUnsupported(const Fields& fields) {
  for (const Unsupported& field : UnsupportedFields()) {
    const Json* value = fields.Find(field.name);
    if (value == nullptr || *value == field.harmless) continue;
    const std::string only = field.harmless.is_null()
                                 ? std::string("leave it out")
                                 : absl::StrCat("only ", field.harmless.dump(), " is");
    return InvalidField(field.name, absl::StrCat("is not supported by this server; ", only));
  }
  return absl::OkStatus();
}

absl::Status ReadStop(const Fields& fields, SamplingRequest& sampling) {
  const Json* stop = fields.Find("stop");
  if (stop == nullptr) return absl::OkStatus();
  if (stop->is_string()) {
    sampling.stop.push_back(stop->get<std::string>());
    return absl::OkStatus();
  }
  if (!stop->is_array()) return fields.Wrong("stop", "a string or a list of strings");
  for (const Json& text : *stop) {
    if (!text.is_string()) return fields.Wrong("stop", "a string or a list of strings");
    sampling.stop.push_back(text.get<std::string>());
  }
  return absl::OkStatus();
}

absl::Status ReadStopTokenIds(const Fields& fields, SamplingRequest& sampling) {
  const Json* ids = fields.Find("stop_token_ids");
  if (ids == nullptr) return absl::OkStatus();
  if (!ids->is_array()) return fields.Wrong("stop_token_ids", "a list of integers");
  for (const Json& id : *ids) {
    BATON_ASSIGN_OR_RETURN(const int64_t value, IntegerValue(id, "stop_token_ids"));
    sampling.stop_token_ids.push_back(value);
  }
  return absl::OkStatus();
}

absl::Status ReadSampling(const Fields& fields, SamplingRequest& sampling) {
  BATON_ASSIGN_OR_RETURN(sampling.temperature, fields.Number("temperature"));
  BATON_ASSIGN_OR_RETURN(sampling.top_k, fields.Integer("top_k"));
  BATON_ASSIGN_OR_RETURN(sampling.top_p, fields.Number("top_p"));
  BATON_ASSIGN_OR_RETURN(sampling.min_p, fields.Number("min_p"));
  BATON_ASSIGN_OR_RETURN(const auto seed, fields.Integer("seed"));
  if (seed.has_value()) sampling.seed = static_cast<uint64_t>(*seed);
  BATON_ASSIGN_OR_RETURN(const auto ignore_eos, fields.Bool("ignore_eos"));
  sampling.ignore_eos = ignore_eos.value_or(false);
  BATON_ASSIGN_OR_RETURN(const auto min_tokens, fields.Integer("min_tokens"));
  sampling.min_tokens = min_tokens.value_or(0);
  BATON_RETURN_IF_ERROR(ReadStop(fields, sampling));
  return ReadStopTokenIds(fields, sampling);
}

// Completions: a number of alternatives. Chat: a flag, and a number beside it.
absl::Status ReadLogprobs(Endpoint endpoint, const Fields& fields, GenerateCall& call) {
  if (endpoint == Endpoint::kCompletions) {
    call.names.top_logprobs = "logprobs";
    BATON_ASSIGN_OR_RETURN(const auto count, fields.Integer("logprobs"));
    call.sampling.logprobs = count.has_value();
    call.sampling.top_logprobs = count.value_or(0);
    return absl::OkStatus();
  }
  BATON_ASSIGN_OR_RETURN(const auto wanted, fields.Bool("logprobs"));
  BATON_ASSIGN_OR_RETURN(const auto count, fields.Integer("top_logprobs"));
  call.sampling.logprobs = wanted.value_or(false);
  call.sampling.top_logprobs = count.value_or(0);
  return absl::OkStatus();
}

absl::Status ReadMaxTokens(Endpoint endpoint, const Fields& fields, GenerateCall& call) {
  BATON_ASSIGN_OR_RETURN(call.sampling.max_tokens, fields.Integer("max_tokens"));
  if (endpoint == Endpoint::kCompletions) return absl::OkStatus();
  BATON_ASSIGN_OR_RETURN(const auto newer, fields.Integer("max_completion_tokens"));
  if (!newer.has_value()) return absl::OkStatus();
  if (call.sampling.max_tokens.has_value() && call.sampling.max_tokens != newer) {
    return InvalidField("max_completion_tokens", "differs from max_tokens; give one of the two");
  }
  call.sampling.max_tokens = newer;
  call.names.max_tokens = "max_completion_tokens";
  return absl::OkStatus();
}

absl::Status ReadPrompt(const Fields& fields, GenerateCall& call) {
  static constexpr char kExpected[] = "a string or a list of token ids";
  const Json* prompt = fields.Find("prompt");
  if (prompt == nullptr) return fields.Wrong("prompt", kExpected);
  if (prompt->is_string()) {
    call.prompt = prompt->get<std::string>();
    return absl::OkStatus();
  }
  if (!prompt->is_array()) return fields.Wrong("prompt", kExpected);
  // ["text"] and [[1, 2]] are batches of one; larger batches would be several answers.
  if (prompt->size() == 1 && (*prompt)[0].is_string()) {
    call.prompt = (*prompt)[0].get<std::string>();
    return absl::OkStatus();
  }
  const bool nested = !prompt->empty() && ((*prompt)[0].is_array() || (*prompt)[0].is_string());
  if (nested && prompt->size() > 1) {
    return InvalidField("prompt",
                        "several prompts in one request are not supported; send one each");
  }
  TokenIdsPrompt ids;
  for (const Json& id : nested ? (*prompt)[0] : *prompt) {
    BATON_ASSIGN_OR_RETURN(const int64_t value, IntegerValue(id, "prompt"));
    ids.push_back(value);
  }
  call.prompt = std::move(ids);
  return absl::OkStatus();
}

// A string, or OpenAI's list of text parts.
absl::StatusOr<std::string> ReadContent(const Fields& message) {
  const Json* content = message.Find("content");
  if (content == nullptr) return message.Wrong("content", "a string");
  if (content->is_string()) return content->get<std::string>();
  if (!content->is_array()) return message.Wrong("content", "a string or a list of text parts");
  std::string text;
  for (const Json& part : *content) {
    if (!part.is_object() || part.value("type", "") != "text" || !part.contains("text") ||
        !part["text"].is_string()) {
      return InvalidField(message.Path("content"), "only parts of type text are supported");
    }
    text += part["text"].get<std::string>();
  }
  return text;
}

absl::Status ReadMessages(const Fields& fields, GenerateCall& call) {
  const Json* messages = fields.Find("messages");
  if (messages == nullptr || !messages->is_array() || messages->empty()) {
    return InvalidField("messages",
                        absl::StrCat("must be a non-empty list of messages, got ",
                                     messages == nullptr ? "nothing" : Describe(*messages)));
  }
  if (messages->size() > kMessagesLimit) {
    return InvalidField("messages", absl::StrCat("must be at most ", kMessagesLimit, " messages"));
  }
  call.names.prompt = "messages";
  ChatPrompt prompt;
  for (size_t i = 0; i < messages->size(); ++i) {
    if (!(*messages)[i].is_object()) {
      return InvalidField(absl::StrCat("messages[", i, "]"), "must be an object");
    }
    const Fields message((*messages)[i], absl::StrCat("messages[", i, "]."));
    BATON_ASSIGN_OR_RETURN(const auto role, message.String("role"));
    if (!role.has_value()) return message.Wrong("role", "a string");
    BATON_ASSIGN_OR_RETURN(std::string content, ReadContent(message));
    prompt.messages.push_back({*role, std::move(content)});
  }
  call.prompt = std::move(prompt);
  return absl::OkStatus();
}

absl::Status ReadStreaming(const Fields& fields, OpenAiRequest& request) {
  BATON_ASSIGN_OR_RETURN(const auto stream, fields.Bool("stream"));
  request.stream = stream.value_or(false);
  const Json* options = fields.Find("stream_options");
  if (options == nullptr) return absl::OkStatus();
  if (!options->is_object()) return fields.Wrong("stream_options", "an object");
  if (!request.stream) {
    return InvalidField("stream_options", "is only allowed when stream is true");
  }
  BATON_ASSIGN_OR_RETURN(const auto usage,
                         Fields(*options, "stream_options.").Bool("include_usage"));
  request.include_usage = usage.value_or(false);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<OpenAiRequest> ParseOpenAiRequest(Endpoint endpoint, std::string_view body) {
  BATON_ASSIGN_OR_RETURN(const Json object, ParseObject(body));
  const Fields fields(object);
  OpenAiRequest request;
  GenerateCall& call = request.call;
  call.endpoint = endpoint;
  BATON_ASSIGN_OR_RETURN(const auto model, fields.String("model"));
  call.model = model.value_or("");
  if (endpoint == Endpoint::kCompletions) {
    BATON_RETURN_IF_ERROR(ReadPrompt(fields, call));
  } else {
    BATON_RETURN_IF_ERROR(ReadMessages(fields, call));
  }
  BATON_RETURN_IF_ERROR(RefuseUnsupported(fields));
  BATON_RETURN_IF_ERROR(ReadSampling(fields, call.sampling));
  BATON_RETURN_IF_ERROR(ReadMaxTokens(endpoint, fields, call));
  BATON_RETURN_IF_ERROR(ReadLogprobs(endpoint, fields, call));
  BATON_RETURN_IF_ERROR(ReadStreaming(fields, request));
  return request;
}

}  // namespace baton::router
