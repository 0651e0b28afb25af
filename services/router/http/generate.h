// /generate, SGLang's own endpoint: bodies as calls of the gateway, answers.
#ifndef SERVICES_ROUTER_HTTP_GENERATE_H_
#define SERVICES_ROUTER_HTTP_GENERATE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/http/http_handler.h"
#include "services/router/gateway.h"
#include "services/router/http/answer_group.h"
#include "services/router/http/request_fields.h"

namespace baton::router {

// ---- Requests ----

// One of the texts that a request asks for.
struct GenerateShown {
  std::string id;
  int prompt_tokens = 0;
};

struct GeneratePlan {
  std::string id;                    // The whole answer's id; a single call's own.
  std::vector<GenerateCall> calls;   // With token ids as prompts, and with request ids.
  std::vector<GenerateShown> shown;  // As many.
  bool is_list = false;              // The answer is a list, in the calls' order.
  bool stream = false;
  bool logprobs = false;
  bool text_in_logprobs = false;
  int64_t logprob_start =
      -1;  // First token of the prompt whose log-probability is shown; -1: none.
};

// Tokenizes the prompts. The answer is called by the body's rid, or else by `request_id`, which is
// the HTTP request's. Errors as ParseOpenAiRequest's and Gateway::Encode's.
absl::StatusOr<GeneratePlan> PlanGenerate(const Gateway& gateway, std::string_view body,
                                          UnknownFields unknown, std::string_view timeout,
                                          const std::string& request_id);

// ---- Answers ----
// In SGLang's form: text, output_ids and meta_info; in a stream each event has
// the whole text so far.

// Whole or as events, as the plan says. The plan's calls are not looked at.
std::unique_ptr<AnswerWriter> MakeGenerateWriter(GeneratePlan plan,
                                                 std::shared_ptr<HttpExchange> exchange);

}  // namespace baton::router

#endif  // SERVICES_ROUTER_HTTP_GENERATE_H_
