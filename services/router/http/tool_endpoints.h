// Endpoints beside generation: tokens of a text and text of tokens (vLLM's and SGLang's forms),
// ending requests (SGLang's), and a probe that generates.
#ifndef SERVICES_ROUTER_HTTP_TOOL_ENDPOINTS_H_
#define SERVICES_ROUTER_HTTP_TOOL_ENDPOINTS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/sync.h"
#include "common/http/http_handler.h"
#include "services/router/gateway.h"
#include "services/router/http/answer_group.h"
#include "services/router/http/json_input.h"
#include "services/router/http/request_fields.h"

namespace baton::router {

// Bodies of /tokenize and /detokenize as answers.
absl::StatusOr<Json> Tokenize(const Gateway& gateway, const std::string& body,
                              UnknownFields unknown);
absl::StatusOr<Json> Detokenize(const Gateway& gateway, const std::string& body,
                                UnknownFields unknown);

// /abort_request: {"rid": ...} or {"abort_all": true}; answers how many requests were ended.
void Abort(Gateway& gateway, const RunningAnswers& running, const std::string& body,
           UnknownFields unknown, const std::shared_ptr<HttpExchange>& exchange);

// /health_generate: 200 once a request of one token went through the whole cluster, else 503. One
// such request runs at a time, for all that ask meanwhile. Thread-safe.
class GenerationProbe : public std::enable_shared_from_this<GenerationProbe> {
 public:
  explicit GenerationProbe(Gateway& gateway) : gateway_(gateway) {}  // Outlives it.
  void Ask(std::shared_ptr<HttpExchange> exchange);

 private:
  class Sink;
  void Answer(const absl::Status& status);

  Gateway& gateway_;
  Mutex mutex_;
  std::vector<std::shared_ptr<HttpExchange>> waiting_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton::router

#endif  // SERVICES_ROUTER_HTTP_TOOL_ENDPOINTS_H_
