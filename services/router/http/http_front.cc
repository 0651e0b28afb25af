#include "services/router/http/http_front.h"

#include <utility>

#include "common/base/status.h"
#include "services/router/http/respond.h"

namespace baton::router {

absl::StatusOr<std::unique_ptr<HttpFront>> HttpFront::Start(HttpServerOptions options,
                                                            Gateway& gateway,
                                                            const v1::Options& shown,
                                                            std::shared_ptr<SecretSet> api_keys) {
  std::unique_ptr<HttpFront> front(new HttpFront(gateway, shown, std::move(api_keys)));
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
