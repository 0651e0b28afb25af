// Answers in OpenAI's form: whole, as chunks of a stream, and errors.
#ifndef SERVICES_ROUTER_HTTP_OPENAI_FORMAT_H_
#define SERVICES_ROUTER_HTTP_OPENAI_FORMAT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/http/http_handler.h"
#include "services/router/gateway.h"
#include "services/router/http/json_input.h"

namespace baton::router {

// What every chunk of one answer repeats.
struct AnswerHeader {
  Endpoint endpoint = Endpoint::kCompletions;
  std::string id;  // "cmpl-..." or "chatcmpl-...".
  std::string model;
  int64_t created_s = 0;  // Unix time.
  bool logprobs = false;
  bool usage = false;  // stream_options.include_usage: every chunk then has a usage, mostly null.
};

// A whole answer: its text and all of its tokens.
Json WholeAnswer(const AnswerHeader& header, const std::string& text,
                 const std::vector<TokenPiece>& tokens, const Outcome& outcome);

// Chunks: the first of a chat (its role), text, the end (finish reason), and the usage.
Json RoleChunk(const AnswerHeader& header);
Json TextChunk(const AnswerHeader& header, const TextPiece& piece);
Json FinishChunk(const AnswerHeader& header, const Outcome& outcome);
Json UsageChunk(const AnswerHeader& header, const v1::Usage& usage);

// {"error": {message, type, param, code}}.
Json ErrorBody(const absl::Status& status);
int HttpStatusOf(const absl::Status& status);
// The same form for what the server itself refuses.
HttpResponse OpenAiError(int status, const std::string& message);

Json ModelList(const v1::GetModelInfoResponse& model, int64_t created_s);
Json ModelCard(const v1::GetModelInfoResponse& model, int64_t created_s);

// UTF-8 text of `value`; ill-formed bytes (half a character in a token) become U+FFFD.
std::string Dump(const Json& value);

}  // namespace baton::router

#endif  // SERVICES_ROUTER_HTTP_OPENAI_FORMAT_H_
