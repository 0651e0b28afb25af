// The trace that an HTTP request belongs to.
#ifndef SERVICES_ROUTER_HTTP_REQUEST_SPAN_H_
#define SERVICES_ROUTER_HTTP_REQUEST_SPAN_H_

#include <vector>

#include "common/http/http_handler.h"
#include "common/tracing/tracer.h"
#include "services/router/gateway.h"

namespace baton::router {

inline constexpr std::string_view kTimeoutHeader = "X-Request-Timeout";

// An id for the answer to `request`. The header X-Request-Id is for tracing: a proxy's retry or a
// fan-out sends it with several requests that run at once, each of which needs an id of its own.
std::string UniqueId(const HttpRequest& request);

// Gives `calls`, all of one request, the routing key and the tenant of the headers that the gateway
// names.
void SetKeys(const Gateway& gateway, const HttpRequest& request, std::vector<GenerateCall>& calls);

// What the client's headers say; "no trace" if requests are not traced.
tracing::TraceContext CallerOf(const Gateway& gateway, const HttpRequest& request);

// Puts `calls`, all of one request, into its caller's trace. Several get a parent here, so that
// they are one trace with or without a caller's; a single one has its own span for the request.
tracing::ActiveSpan BeginSpan(const Gateway& gateway, const HttpRequest& request,
                              const tracing::TraceContext& caller,
                              std::vector<GenerateCall>& calls);

}  // namespace baton::router

#endif  // SERVICES_ROUTER_HTTP_REQUEST_SPAN_H_
