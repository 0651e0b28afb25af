#include "services/router/http/request_span.h"

#include <string>
#include <string_view>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/random.h"
#include "common/base/strings.h"
#include "services/router/bearer.h"

namespace baton::router {
namespace {

std::vector<std::string_view> Values(const HttpHeaders& headers, std::string_view wanted) {
  std::vector<std::string_view> values;
  for (const auto& [name, value] : headers) {
    if (absl::EqualsIgnoreCase(name, ToAbsl(wanted))) values.push_back(value);
  }
  return values;
}

}  // namespace

std::string UniqueId(const HttpRequest& request) {
  const bool given = request.Header("X-Request-Id") == request.request_id;
  return given ? absl::StrCat(request.request_id, "-", RandomHex(4)) : request.request_id;
}

void SetKeys(const Gateway& gateway, const HttpRequest& request, std::vector<GenerateCall>& calls) {
  const auto value = [&](std::string_view name) {
    return name.empty() ? name : request.Header(name);
  };
  const std::string_view key = value(gateway.hash_header());
  const std::string_view bearer = BearerKey(request.Header("Authorization"));
  const std::string tenant = TenantOf(value(gateway.tenant_header()), gateway.asks_for_keys(),
                                      bearer.empty() ? request.Header("x-api-key") : bearer);
  for (GenerateCall& call : calls) {
    if (!key.empty()) call.routing_key = std::string(key);
    call.tenant = tenant;
  }
}

tracing::TraceContext CallerOf(const Gateway& gateway, const HttpRequest& request) {
  if (gateway.tracer() == nullptr) return {};
  return tracing::ExtractTraceContext(Values(request.headers, tracing::kTraceparent),
                                      Values(request.headers, tracing::kTracestate));
}

tracing::ActiveSpan BeginSpan(const Gateway& gateway, const HttpRequest& request,
                              const tracing::TraceContext& caller,
                              std::vector<GenerateCall>& calls) {
  tracing::Tracer* const tracer = gateway.tracer();
  if (tracer == nullptr) return {};
  tracing::ActiveSpan span;
  tracing::TraceContext parent = caller;
  if (calls.size() > 1) {
    if (!parent.valid()) parent = tracer->NewTrace();
    // Only paths that have a route come here: the name takes few values.
    span = tracing::ActiveSpan(tracer, Concat(request.method, " ", request.path),
                               tracing::SpanKind::kServer, parent, NowUs());
    span.Set("http.request.method", request.method);
    span.Set("http.route", request.path);
    span.Set("gen_ai.request.choice.count", calls.size());
    parent = span.ContextOr(parent);
  }
  for (GenerateCall& call : calls) call.caller = parent;
  return span;
}

}  // namespace baton::router
