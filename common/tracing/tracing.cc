#include "common/tracing/tracing.h"

#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/base/status.h"
#include "common/net/otlp_endpoint.h"
#include "common/telemetry/metrics_table.h"
#include "common/tracing/otlp_exporter.h"
#include "common/tracing/span_destination.h"

namespace baton::tracing {
namespace {

ResourceAttributes Describe(const v1::Options& options, const Identity& identity) {
  ResourceAttributes resource = {
      {"service.name", options.otlp_service_name().empty() ? absl::StrCat("baton-", identity.role)
                                                           : options.otlp_service_name()},
      {"service.namespace", "baton"},
      {"service.instance.id", identity.instance_id},
      {"service.version", kBatonVersion},
      {"baton.role", identity.role},
  };
  if (identity.role == "prefill" || identity.role == "colocated") {
    resource.emplace_back("baton.chain.id", options.chain_id());
    resource.emplace_back("baton.stage", absl::StrCat(options.pp_rank()));
  }
  if (identity.role == "decode" && options.pp_size() * options.tp_size() > 1) {
    resource.emplace_back("baton.decode.id", options.decode_id());
  }
  if (identity.role == "decode" && options.pp_size() > 1) {
    resource.emplace_back("baton.stage", absl::StrCat(options.pp_rank()));
  }
  if (options.tp_size() > 1) {
    resource.emplace_back("baton.rank", absl::StrCat(options.tp_rank()));
  }
  return resource;
}

}  // namespace

struct Tracing::Parts {
  Parts(const TracerOptions& tracer_options, std::vector<std::unique_ptr<OtlpExporter>> to)
      : exporters(std::move(to)), tracer(tracer_options, [this](Span span) {
          for (size_t i = 1; i < exporters.size(); ++i) exporters[i]->Take(span);
          exporters.front()->Take(std::move(span));
        }) {}

  const std::vector<std::unique_ptr<OtlpExporter>> exporters;  // At least one.
  Tracer tracer;
};

absl::StatusOr<std::unique_ptr<Tracing>> Tracing::FromOptions(const v1::Options& options,
                                                              const Identity& identity,
                                                              const CountSpans& count) {
  std::vector<std::unique_ptr<SpanDestination>> destinations;
  if (!options.otlp_traces_endpoint().empty()) {
    BATON_ASSIGN_OR_RETURN(const std::string endpoint,
                           net::ParseOtlpEndpoint(options.otlp_traces_endpoint()));
    destinations.push_back(CollectorAt(endpoint));
  }
  if (!options.otlp_traces_file().empty()) {
    destinations.push_back(FileAt(options.otlp_traces_file()));
  }
  if (destinations.empty()) return nullptr;
  TracerOptions tracer;
  if (!absl::SimpleAtod(options.otlp_sample_ratio(), &tracer.sample_ratio)) {
    return InvalidField("otlp_sample_ratio", "is not a number");
  }
  tracer.seed[0] = EntropySeed();
  tracer.seed[1] = EntropySeed();
  std::vector<std::unique_ptr<OtlpExporter>> exporters;
  for (std::unique_ptr<SpanDestination>& destination : destinations) {
    OtlpExporterOptions exporter;
    exporter.to = std::move(destination);
    exporter.resource = Describe(options, identity);
    exporter.count = count;
    exporters.push_back(std::make_unique<OtlpExporter>(std::move(exporter)));
  }
  return std::unique_ptr<Tracing>(
      new Tracing(std::make_unique<Parts>(tracer, std::move(exporters))));
}

Tracing::Tracing(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

Tracing::~Tracing() = default;

Tracer& Tracing::tracer() { return parts_->tracer; }

}  // namespace baton::tracing
