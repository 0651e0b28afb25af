// Answers of /generate in SGLang's form: text, output_ids and meta_info; in a stream each event has
// the whole text so far.
#ifndef SERVICES_ROUTER_HTTP_GENERATE_ANSWER_H_
#define SERVICES_ROUTER_HTTP_GENERATE_ANSWER_H_

#include <memory>

#include "common/http/http_handler.h"
#include "services/router/http/answer_group.h"
#include "services/router/http/generate_request.h"

namespace baton::router {

// Whole or as events, as the plan says. The plan's calls are not looked at.
std::unique_ptr<AnswerWriter> MakeGenerateWriter(GeneratePlan plan,
                                                 std::shared_ptr<HttpExchange> exchange);

}  // namespace baton::router

#endif  // SERVICES_ROUTER_HTTP_GENERATE_ANSWER_H_
