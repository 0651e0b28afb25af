// What the calls behind one request become: a whole answer of OpenAI's, or its stream.
#ifndef SERVICES_ROUTER_HTTP_OPENAI_ANSWER_H_
#define SERVICES_ROUTER_HTTP_OPENAI_ANSWER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/http/http_handler.h"
#include "common/tokenizer/chat/output/output_parser.h"
#include "services/router/http/answer_group.h"
#include "services/router/http/openai_format.h"
#include "services/router/http/openai_request.h"

namespace baton::router {

// A prompt as the answer shows it.
struct ShownPrompt {
  std::vector<int32_t> ids;
  std::string echo;              // What stands before the text; empty without `echo`.
  int64_t echo_characters = 0;   // Length of `echo`.
  int64_t added_characters = 0;  // Special tokens added before it, not echoed.
};

// The calls of a request: those of one prompt stand together, best_of of them each.
struct AnswerPlan {
  AnswerHeader header;
  int n = 1;
  int best_of = 1;
  bool echo = false;
  std::shared_ptr<const chat::OutputOptions> parsing;  // Null: the text is the content.
  bool include_reasoning = true;
  std::vector<ShownPrompt> prompts;
  std::vector<GenerateCall> calls;
};

// `id`: of the answer. Tokenizes here, once for each prompt, if it is used several times or shown.
absl::StatusOr<AnswerPlan> PlanAnswer(const Gateway& gateway, OpenAiRequest request,
                                      const std::string& id, int64_t now_s);

// The seed of a prompt's candidate, so that a seeded request is repeatable and its candidates
// differ; the first is what the request would give alone.
uint64_t CandidateSeed(uint64_t seed, int candidate);

// The plan's calls are not looked at. `gateway` outlives the writer.
std::unique_ptr<AnswerWriter> MakeWholeWriter(Gateway& gateway, AnswerPlan plan,
                                              std::shared_ptr<HttpExchange> exchange);
std::unique_ptr<AnswerWriter> MakeStreamWriter(Gateway& gateway, AnswerPlan plan,
                                               std::shared_ptr<HttpExchange> exchange);

}  // namespace baton::router

#endif  // SERVICES_ROUTER_HTTP_OPENAI_ANSWER_H_
