#include "common/tracing/grpc_propagation.h"

#include <string_view>
#include <vector>

#include "common/base/clock.h"

namespace baton::tracing {

void Inject(const TraceContext& context, grpc::ClientContext& call) {
  if (!context.valid() || context.span == 0) return;
  call.AddMetadata(kTraceparent, Traceparent(context));
  if (!context.state.empty()) call.AddMetadata(kTracestate, context.state);
}

TraceContext Extract(const grpc::ServerContextBase& call) {
  const auto& metadata = call.client_metadata();
  const auto values = [&metadata](const char* key) {
    std::vector<std::string_view> found;
    const auto [begin, end] = metadata.equal_range(key);
    for (auto entry = begin; entry != end; ++entry) {
      found.emplace_back(entry->second.data(), entry->second.size());
    }
    return found;
  };
  const std::vector<std::string_view> traceparents = values(kTraceparent);
  if (traceparents.empty()) return {};
  return ExtractTraceContext(traceparents, values(kTracestate));
}

ActiveSpan ServerSpan(Tracer* tracer, const grpc::ServerContextBase& call, const char* name,
                      const char* service, const char* method) {
  if (tracer == nullptr) return {};
  return ServerSpan(tracer, Extract(call), name, service, method);
}

ActiveSpan ServerSpan(Tracer* tracer, const TraceContext& caller, const char* name,
                      const char* service, const char* method) {
  if (tracer == nullptr) return {};
  ActiveSpan span(tracer, name, SpanKind::kServer, caller, NowUs());
  span.Set("rpc.system", "grpc");
  span.Set("rpc.service", service);
  span.Set("rpc.method", method);
  return span;
}

}  // namespace baton::tracing
