#include "services/router/http/openai_format.h"

#include <string_view>

#include "common/base/status.h"

namespace baton::router {
namespace {

bool IsChat(const AnswerHeader& header) { return header.endpoint == Endpoint::kChatCompletions; }

const char* ReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kAbort:
      return "abort";
  }
  return "stop";
}

Json UsageJson(const v1::Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens()},
          {"completion_tokens", usage.completion_tokens()},
          {"total_tokens", usage.prompt_tokens() + usage.completion_tokens()},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens()}}}};
}

// Ill-formed bytes replaced, so that the text may be a JSON key as well.
std::string Text(const std::string& bytes) {
  const std::string quoted = Json(bytes).dump(-1, ' ', false, Json::error_handler_t::replace);
  return Json::parse(quoted).get<std::string>();
}

Json Bytes(const std::string& bytes) {
  Json list = Json::array();
  for (const char c : bytes) list.push_back(static_cast<unsigned char>(c));
  return list;
}

Json Number(const std::optional<float>& value) { return value.has_value() ? Json(*value) : Json(); }

// Completions' four parallel lists.
Json CompletionLogprobs(const std::vector<TokenPiece>& tokens) {
  Json names = Json::array();
  Json logprobs = Json::array();
  Json tops = Json::array();
  Json offsets = Json::array();
  for (const TokenPiece& token : tokens) {
    const std::string text = Text(token.bytes);
    names.push_back(text);
    logprobs.push_back(Number(token.logprob));
    Json top = Json::object();
    top[text] = Number(token.logprob);
    for (const TokenPiece::Top& other : token.top) top[Text(other.bytes)] = other.logprob;
    tops.push_back(std::move(top));
    offsets.push_back(token.text_offset);
  }
  return {{"tokens", names},
          {"token_logprobs", logprobs},
          {"top_logprobs", tops},
          {"text_offset", offsets}};
}

Json ChatLogprobs(const std::vector<TokenPiece>& tokens) {
  Json content = Json::array();
  for (const TokenPiece& token : tokens) {
    Json top = Json::array();
    for (const TokenPiece::Top& other : token.top) {
      top.push_back({{"token", Text(other.bytes)},
                     {"logprob", other.logprob},
                     {"bytes", Bytes(other.bytes)}});
    }
    content.push_back({{"token", Text(token.bytes)},
                       {"logprob", Number(token.logprob)},
                       {"bytes", Bytes(token.bytes)},
                       {"top_logprobs", std::move(top)}});
  }
  return {{"content", std::move(content)}};
}

Json Logprobs(const AnswerHeader& header, const std::vector<TokenPiece>& tokens) {
  if (!header.logprobs) return nullptr;
  return IsChat(header) ? ChatLogprobs(tokens) : CompletionLogprobs(tokens);
}

Json Envelope(const AnswerHeader& header, bool chunk) {
  const char* object = !IsChat(header) ? "text_completion"
                       : chunk         ? "chat.completion.chunk"
                                       : "chat.completion";
  return {{"id", header.id},
          {"object", object},
          {"created", header.created_s},
          {"model", header.model}};
}

Json Chunk(const AnswerHeader& header, Json content, Json logprobs, Json reason) {
  Json choice = {
      {"index", 0}, {"logprobs", std::move(logprobs)}, {"finish_reason", std::move(reason)}};
  choice[IsChat(header) ? "delta" : "text"] = std::move(content);
  Json chunk = Envelope(header, true);
  chunk["choices"] = Json::array({std::move(choice)});
  if (header.usage) chunk["usage"] = nullptr;
  return chunk;
}

Json TextDelta(const AnswerHeader& header, const std::string& text) {
  if (!IsChat(header)) return text;
  return text.empty() ? Json::object() : Json{{"content", text}};
}

}  // namespace

Json WholeAnswer(const AnswerHeader& header, const std::string& text,
                 const std::vector<TokenPiece>& tokens, const Outcome& outcome) {
  Json choice = {{"index", 0},
                 {"logprobs", Logprobs(header, tokens)},
                 {"finish_reason", ReasonName(outcome.reason)}};
  if (IsChat(header)) {
    choice["message"] = {{"role", "assistant"}, {"content", text}};
  } else {
    choice["text"] = text;
  }
  Json answer = Envelope(header, false);
  answer["choices"] = Json::array({std::move(choice)});
  answer["usage"] = UsageJson(outcome.usage);
  return answer;
}

Json RoleChunk(const AnswerHeader& header) {
  return Chunk(header, {{"role", "assistant"}, {"content", ""}}, nullptr, nullptr);
}

Json TextChunk(const AnswerHeader& header, const TextPiece& piece) {
  return Chunk(header, TextDelta(header, piece.text), Logprobs(header, piece.tokens), nullptr);
}

Json FinishChunk(const AnswerHeader& header, const Outcome& outcome) {
  return Chunk(header, TextDelta(header, outcome.text), nullptr, ReasonName(outcome.reason));
}

Json UsageChunk(const AnswerHeader& header, const v1::Usage& usage) {
  Json chunk = Envelope(header, true);
  chunk["choices"] = Json::array();
  chunk["usage"] = UsageJson(usage);
  return chunk;
}

int HttpStatusOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
      return 400;
    case absl::StatusCode::kUnauthenticated:
      return 401;
    case absl::StatusCode::kPermissionDenied:
      return 403;
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kAborted:
      return 409;
    case absl::StatusCode::kResourceExhausted:
      return 429;
    case absl::StatusCode::kCancelled:
      return 499;
    case absl::StatusCode::kUnimplemented:
      return 501;
    case absl::StatusCode::kUnavailable:
      return 503;
    case absl::StatusCode::kDeadlineExceeded:
      return 504;
    default:
      return 500;
  }
}

Json ErrorBody(const absl::Status& status) {
  const int http = HttpStatusOf(status);
  const char* type = http == 401   ? "authentication_error"
                     : http == 429 ? "rate_limit_error"
                     : http < 499  ? "invalid_request_error"
                                   : "server_error";
  Json code = nullptr;
  if (absl::IsNotFound(status) && FieldOf(status) == "model") code = "model_not_found";
  if (absl::IsUnauthenticated(status)) code = "invalid_api_key";
  const auto field = FieldOf(status);
  return {{"error",
           {{"message", std::string(status.message())},
            {"type", type},
            {"param", field.has_value() ? Json(*field) : Json()},
            {"code", code}}}};
}

HttpResponse OpenAiError(int status, const std::string& message) {
  const char* type = status < 499 ? "invalid_request_error" : "server_error";
  HttpResponse response;
  response.status = status;
  response.body = Dump(
      {{"error", {{"message", message}, {"type", type}, {"param", nullptr}, {"code", nullptr}}}});
  return response;
}

Json ModelCard(const v1::GetModelInfoResponse& model, int64_t created_s) {
  return {{"id", model.served_model_name()},
          {"object", "model"},
          {"created", created_s},
          {"owned_by", "baton"},
          {"max_model_len", model.max_context_tokens()}};
}

Json ModelList(const v1::GetModelInfoResponse& model, int64_t created_s) {
  return {{"object", "list"}, {"data", Json::array({ModelCard(model, created_s)})}};
}

std::string Dump(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace baton::router
