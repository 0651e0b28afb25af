// OpenAI's /v1/responses: bodies as chats, answers.
#ifndef SERVICES_ROUTER_HTTP_RESPONSES_H_
#define SERVICES_ROUTER_HTTP_RESPONSES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/http/http_handler.h"
#include "services/router/http/block_answer.h"
#include "services/router/http/chat_body.h"
#include "services/router/http/json_input.h"
#include "services/router/http/request_fields.h"

namespace baton::router {

// ---- Requests ----

// No response is kept: what needs one that was is refused, and so is `store`. `timeout`: the header
// X-Request-Timeout. INVALID_ARGUMENT names the field in the client's words.
absl::StatusOr<FrontRequest> ParseResponsesRequest(std::string_view body, UnknownFields unknown,
                                                   std::string_view timeout);

// ---- What the input consists of, said in a chat ----

// The field "input": a text, which is the user's, or items. What the assistant has reasoned, said
// and called without a result between is one message.
absl::Status AddInput(const Fields& fields, UnknownFields unknown,
                      std::vector<std::string>& warnings, ChatBody& chat);

// ---- Answers ----
// The response, and the events of its stream.

struct ResponseHeader {
  std::string id;  // "resp_..."
  std::string model;
  int64_t created_s = 0;  // Unix time.
  Json given;             // The request, whose settings the response repeats.
};

std::unique_ptr<BlockForm> MakeWholeResponse(ResponseHeader header,
                                             std::shared_ptr<HttpExchange> exchange);
std::unique_ptr<BlockForm> MakeResponseStream(ResponseHeader header,
                                              std::shared_ptr<HttpExchange> exchange);

}  // namespace baton::router

#endif  // SERVICES_ROUTER_HTTP_RESPONSES_H_
