#include "services/router/http/http_front.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "common/base/status.h"
#include "services/router/http/respond.h"

namespace baton::router {
namespace {

// Whether a body may have a schema or a grammar, which is compiled before the request is taken. One
// that only speaks of them waits a little at most.
bool MayCompile(const HttpRequest& request) {
  constexpr std::string_view kSigns[] = {"schema\"",
                                         "\"guided_",
                                         "\"regex\"",
                                         "\"ebnf\"",
                                         "\"strict\"",
                                         "json_object",
                                         "\"structured_outputs\"",
                                         "\"tool_choice\""};
  return std::any_of(std::begin(kSigns), std::end(kSigns), [&](std::string_view sign) {
    return request.body.find(sign) != std::string::npos;
  });
}

}  // namespace

absl::StatusOr<std::unique_ptr<HttpFront>> HttpFront::Start(HttpServerOptions options,
                                                            Gateway& gateway,
                                                            const v1::Options& shown,
                                                            std::shared_ptr<SecretSet> api_keys) {
  std::unique_ptr<HttpFront> front(new HttpFront(gateway, shown, std::move(api_keys)));
  options.reserved_paths = {"/health", "/readiness", "/metrics"};
  options.format_error = OpenAiError;
  options.takes_long = MayCompile;
  BATON_ASSIGN_OR_RETURN(
      front->server_,
      HttpServer::Start(
          options, [handler = &front->handler_](const HttpRequest& request, const auto& exchange) {
            handler->Handle(request, exchange);
          }));
  return front;
}

}  // namespace baton::router
