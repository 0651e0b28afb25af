// The cost of tracing in the serving path: almost nothing when it is off or a trace is not sampled,
// and a span's memory when it is.
#include <benchmark/benchmark.h>

#include "common/base/clock.h"
#include "common/tracing/otlp_exporter.h"
#include "common/tracing/tracer.h"

namespace baton::tracing {
namespace {

TraceContext Parent(bool sampled) {
  TraceContext parent;
  parent.trace = {1, 2};
  parent.span = 3;
  parent.sampled = sampled;
  return parent;
}

// A span as the services make them.
void Work(Tracer* tracer, const TraceContext& parent) {
  ActiveSpan span(tracer, "prefill chunk", SpanKind::kInternal, parent, 1);
  span.Set("baton.stage", 1);
  span.Set("baton.chunk.tokens", 2048);
  span.End(2);
  benchmark::DoNotOptimize(span);
}

void Off(benchmark::State& state) {
  const TraceContext parent = Parent(/*sampled=*/true);
  for (auto _ : state) Work(nullptr, parent);
}
BENCHMARK(Off);

void Unsampled(benchmark::State& state) {
  Tracer tracer({}, [](const Span&) {});
  const TraceContext parent = Parent(/*sampled=*/false);
  for (auto _ : state) Work(&tracer, parent);
}
BENCHMARK(Unsampled);

void Sampled(benchmark::State& state) {
  SpanQueue queue(8192, 512);
  std::vector<Span> taken;
  Tracer tracer({}, [&](Span span) {
    if (queue.Push(std::move(span)) != SpanQueue::Pushed::kBatchFull) return;
    taken.clear();
    queue.Take(taken);
  });
  const TraceContext parent = Parent(/*sampled=*/true);
  for (auto _ : state) Work(&tracer, parent);
}
BENCHMARK(Sampled);

// The work to compare it with.
void ReadClock(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(NowUs());
}
BENCHMARK(ReadClock);

}  // namespace
}  // namespace baton::tracing
