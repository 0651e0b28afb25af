// Trace contexts in gRPC's metadata.
#ifndef COMMON_TRACING_GRPC_PROPAGATION_H_
#define COMMON_TRACING_GRPC_PROPAGATION_H_

#include <grpcpp/client_context.h>
#include <grpcpp/server_context.h>

#include "common/tracing/trace_context.h"
#include "common/tracing/tracer.h"

namespace baton::tracing {

// Adds the context to the call's metadata; nothing without a trace. Call it before the call starts.
void Inject(const TraceContext& context, grpc::ClientContext& call);

TraceContext Extract(const grpc::ServerContextBase& call);

// The span of a served RPC, starting now, if the caller traces. Empty without a tracer, which is
// checked first.
ActiveSpan ServerSpan(Tracer* tracer, const grpc::ServerContextBase& call, const char* name,
                      const char* service, const char* method);
// The same for a call that does not come as an RPC of its own.
ActiveSpan ServerSpan(Tracer* tracer, const TraceContext& caller, const char* name,
                      const char* service, const char* method);

}  // namespace baton::tracing

#endif  // COMMON_TRACING_GRPC_PROPAGATION_H_
