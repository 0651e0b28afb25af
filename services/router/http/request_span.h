// The trace that an HTTP request belongs to.
#ifndef SERVICES_ROUTER_HTTP_REQUEST_SPAN_H_
#define SERVICES_ROUTER_HTTP_REQUEST_SPAN_H_

#include <vector>

#include "common/http/http_handler.h"
#include "common/tracing/tracer.h"
#include "services/router/gateway.h"

namespace baton::router {

// What the client's headers say; "no trace" if requests are not traced.
tracing::TraceContext CallerOf(const Gateway& gateway, const HttpRequest& request);

// Puts `calls`, all of one request, into its caller's trace. Several get a parent here, so that
// they are one trace with or without a caller's; a single one has its own span for the request.
tracing::ActiveSpan BeginSpan(const Gateway& gateway, const HttpRequest& request,
                              const tracing::TraceContext& caller,
                              std::vector<GenerateCall>& calls);

}  // namespace baton::router

#endif  // SERVICES_ROUTER_HTTP_REQUEST_SPAN_H_
