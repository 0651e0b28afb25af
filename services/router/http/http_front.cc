#include "services/router/http/http_front.h"

#include <utility>

#include "common/base/status.h"
#include "services/router/http/openai_format.h"

namespace baton::router {

absl::StatusOr<std::unique_ptr<HttpFront>> HttpFront::Start(HttpServerOptions options,
                                                            const std::string& cors_allow_origins,
                                                            Gateway& gateway, std::string api_key) {
  BATON_ASSIGN_OR_RETURN(options.cors, ParseCorsPolicy(cors_allow_origins));
  std::unique_ptr<HttpFront> front(new HttpFront(gateway, std::move(api_key)));
  options.reserved_paths = {"/health", "/readiness", "/metrics"};
  options.format_error = OpenAiError;
  BATON_ASSIGN_OR_RETURN(
      front->server_,
      HttpServer::Start(
          options, [handler = &front->handler_](const HttpRequest& request, const auto& exchange) {
            handler->Handle(request, exchange);
          }));
  return front;
}

}  // namespace baton::router
