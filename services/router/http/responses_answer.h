// Answers in the form of OpenAI's /v1/responses: the response, and the events of its stream.
#ifndef SERVICES_ROUTER_HTTP_RESPONSES_ANSWER_H_
#define SERVICES_ROUTER_HTTP_RESPONSES_ANSWER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "common/http/http_handler.h"
#include "services/router/http/block_answer.h"
#include "services/router/http/json_input.h"

namespace baton::router {

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

#endif  // SERVICES_ROUTER_HTTP_RESPONSES_ANSWER_H_
