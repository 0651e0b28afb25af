#include "services/baton/worker_runtime.h"

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/random.h"
#include "common/base/status.h"
#include "common/base/stop_signal.h"
#include "common/config/mode.h"
#include "common/engine/create_executor.h"
#include "common/engine/timed/timed_profile.h"
#include "common/model/safetensors.h"
#include "common/net/host.h"
#include "common/rpc/convert.h"
#include "common/tokenizer/tokenizer.h"
#include "common/types/drain_counts.h"
#include "common/types/instance.h"
#include "common/types/kv_layout.h"
#include "services/baton/child_pipes.h"
#include "services/worker/core/drain.h"

namespace baton {
namespace {

constexpr int64_t kQuietLoadUs = 1'000'000;

MetricsIdentity Identity(const v1::Options& options) {
  const bool chain = !config::IsDecode(options);
  const std::optional<size_t> number = GpuNumber(options.device());
  return {.role = chain ? MetricRole::kPrefill : MetricRole::kDecode,
          .model_name = options.served_model_name(),
          .instance_id = options.instance_id(),
          .stage = config::HasStages(options) ? static_cast<int>(options.pp_rank()) : -1,
          .rank = options.tp_size() > 1 ? static_cast<int>(options.tp_rank()) : -1,
          .device = number.has_value() ? absl::StrCat("cuda:", *number) : ""};
}

absl::StatusOr<Constraints::Vocabulary> LoadVocabulary(const std::string& model_path) {
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::Load(model_path);
  if (!tokenizer.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("this worker's model directory has no tokenizer, which structured output "
                     "needs: ",
                     tokenizer.status().message()));
  }
  std::vector<grammar::VocabularyToken> tokens(static_cast<size_t>((*tokenizer)->vocab_size()));
  for (int32_t id = 0; id < (*tokenizer)->vocab_size(); ++id) {
    tokens[static_cast<size_t>(id)] = {std::string((*tokenizer)->TokenBytes(id)),
                                       (*tokenizer)->IsSpecial(id)};
  }
  return std::make_shared<const grammar::Vocabulary>(tokens);
}

}  // namespace

WorkerRuntime::WorkerRuntime(const v1::Options& options, const ModelConfig& model,
                             Security security)
    : options_(options),
      model_(model),
      security_(std::move(security)),
      created_us_(NowUs()),
      metrics_(Identity(options)) {
  instance_.set_instance_id(options.instance_id());
  instance_.set_incarnation(EntropySeed());
  max_context_tokens_ = config::ContextTokens(options, model.max_position_embeddings);
}

absl::StatusOr<std::unique_ptr<WorkerRuntime>> WorkerRuntime::Create(const v1::Options& options,
                                                                     LayerRange layers,
                                                                     const ModelConfig& model,
                                                                     Security security) {
  ChooseTransports(options);
  std::unique_ptr<WorkerRuntime> host(new WorkerRuntime(options, model, std::move(security)));
  BATON_ASSIGN_OR_RETURN(
      host->tracing_, tracing::Tracing::FromOptions(
                          options, {config::WorkerKind(options), options.instance_id()},
                          [metrics = &host->metrics_](tracing::SpanFate fate, size_t spans) {
                            metrics->Increment(Metric::kTraceSpansTotal, static_cast<double>(spans),
                                               {tracing::FateLabel(fate)});
                          }));
  BATON_RETURN_IF_ERROR(host->StartEndpoint());
  ReportListening(host->instance_.incarnation());
  BATON_RETURN_IF_ERROR(host->Load(layers));
  if (host->executor_->last_stage() && host->tensor_rank().rank == 0) {
    host->constraints_ = std::make_unique<Constraints>(
        [path = options.model_path()] { return LoadVocabulary(path); });
  }
  DataPlaneOptions plane = PlaneOptions(options);
  if (host->security_ != nullptr) plane.secret = MakePlaneSecret();
  BATON_ASSIGN_OR_RETURN(host->data_plane_, DataPlane::Create(plane));
  host->counters_ = &host->data_plane_->counters();
  return host;
}

absl::Status WorkerRuntime::StartEndpoint() {
  gpu_ = GpuMonitor::Start(options_);
  HttpEndpointConfig config;
  config.host = options_.host();
  config.port = static_cast<uint16_t>(options_.metrics_port());
  config.connections = &metrics_;
  HttpEndpointCallbacks callbacks;
  callbacks.metrics = [this] { return Scrape(); };
  callbacks.liveness = [this] {
    MutexLock lock(&probes_mutex_);
    return liveness_ ? liveness_() : absl::OkStatus();  // Loading and stopping are progress.
  };
  callbacks.readiness = [this] {
    MutexLock lock(&probes_mutex_);
    if (!ready_) return absl::UnavailableError(kLoadingText);
    return ready_();
  };
  BATON_ASSIGN_OR_RETURN(endpoint_, HttpEndpoint::Start(config, std::move(callbacks)));
  return absl::OkStatus();
}

std::string WorkerRuntime::Scrape() {
  if (const DataPlaneCounters* counters = counters_; counters != nullptr) {
    MutexLock lock(&scrape_mutex_);
    const uint64_t unproven = counters->unproven_messages;
    metrics_.Increment(Metric::kDataPlaneUnprovenMessagesTotal,
                       static_cast<double>(unproven - std::exchange(unproven_told_, unproven)));
  }
  if (gpu_ != nullptr) ExportGpu(gpu_->Latest(), metrics_);
  return metrics_.Scrape();
}

void WorkerRuntime::Progress(double fraction) {
  metrics_.Set(Metric::kWeightLoadProgressRatio, fraction);
  const int tenths = static_cast<int>(fraction * 10);
  // A load that takes no time needs no progress.
  if (tenths == tenths_shown_ || NowUs() - created_us_ < kQuietLoadUs) return;
  tenths_shown_ = tenths;
  LOG(kInfo) << "loading weights: " << tenths * 10 << " %";
}

absl::Status WorkerRuntime::Load(LayerRange layers) {
  ExecutorOptions options;
  options.model_path = options_.model_path();
  options.context_tokens = options_.context_length();
  options.layer_begin = layers.begin;
  options.layer_end = layers.end;
  options.page_size = static_cast<int>(options_.page_size());
  options.page_count = static_cast<int>(options_.kv_cache_tokens() / options_.page_size());
  options.threads = static_cast<int>(options_.threads());
  options.linear =
      options_.linear_backend() == "torch" ? LinearBackend::kTorch : LinearBackend::kNative;
  options.numerics = options_.cpu_numerics() == "exact" ? CpuNumerics::kExact : CpuNumerics::kAuto;
  options.dtype = ParseElementType(options_.dtype());  // Nothing for auto.
  options.kv_dtype = ParseElementType(options_.kv_cache_dtype());
  options.backend = options_.executor() == "torch"   ? Backend::kTorch
                    : options_.executor() == "timed" ? Backend::kTimed
                                                     : Backend::kNative;
  options.timed_profile = options_.timed_profile();
  options.device = options_.device();
  const bool decodes = config::IsDecode(options_) || config::IsColocated(options_);
  options.cuda_graph_max_rows = decodes && !options_.disable_cuda_graph()
                                    ? static_cast<int>(options_.cuda_graph_max_bs())
                                    : 0;
  options.give_back_landings = !MayRegisterMemory();
  options.tensor_rank = {static_cast<int>(options_.tp_rank()),
                         static_cast<int>(options_.tp_size())};
  options.slice_activations = options_.pp_send_slice() && !options.tensor_rank.alone();
  options.row_parallel = {static_cast<int>(options_.row_parallel_chunks()),
                          static_cast<int>(options_.row_parallel_chunk_threshold())};
  options.on_progress = [this](double fraction) { Progress(fraction); };
  const char* const failpoint = config::IsDecode(options_) ? "decode.step" : "prefill.compute";
  BATON_ASSIGN_OR_RETURN(executor_, CreateExecutor(options, failpoint));
  if (options.backend == Backend::kTimed) {  // There are no weights.
    BATON_ASSIGN_OR_RETURN(const TimedProfile profile, LoadTimedProfile(options.timed_profile));
    fingerprint_ = profile.Fingerprint(model_, layers);
    return absl::OkStatus();
  }
  BATON_ASSIGN_OR_RETURN(WeightReader reader, WeightReader::Open(options_.model_path()));
  BATON_ASSIGN_OR_RETURN(fingerprint_, FingerprintStage(reader, model_, layers.begin, layers.end));
  fingerprint_.numerics = NumericsOf(options, executor_->activation_type());
  if (!fingerprint_.numerics.empty()) {
    LOG(kInfo) << "multiplies by " << fingerprint_.numerics << " (--cpu-numerics auto)";
  }
  return absl::OkStatus();
}

void WorkerRuntime::SetProbes(std::function<absl::Status()> liveness,
                              std::function<absl::Status()> readiness) {
  MutexLock lock(&probes_mutex_);
  liveness_ = std::move(liveness);
  ready_ = std::move(readiness);
}

void WorkerRuntime::ClearProbes() { SetProbes(nullptr, nullptr); }

v1::WorkerInfo WorkerRuntime::Describe(int grpc_port) const {
  const KvGeometry& kv = executor_->kv();
  v1::WorkerInfo info;
  *info.mutable_instance() = instance_;
  info.set_grpc_address(net::JoinHostPort(options_.advertise_host(), grpc_port));
  info.set_data_address(data_plane_->address());
  info.mutable_layers()->set_begin(kv.layer_begin);
  info.mutable_layers()->set_end(kv.layer_end);
  info.set_page_count(kv.page_count);
  info.set_max_context_tokens(max_context_tokens_);
  ModelFingerprint fingerprint = fingerprint_;
  fingerprint.dtype = ElementTypeName(executor_->activation_type());
  fingerprint.protocol_version = kProtocolVersion;
  fingerprint.oldest_protocol_version = kOldestProtocolVersion;
  fingerprint.kv_layout = model_.kv(kv.page_size, kv.element_type);
  *info.mutable_fingerprint() = rpc::ToProto(fingerprint);
  if (tensor_rank().alone()) return info;
  *info.mutable_tensor_rank() = rpc::ToProto(tensor_rank());
  info.set_row_parallel_chunks(static_cast<int>(options_.row_parallel_chunks()));
  info.set_row_parallel_threshold(static_cast<int>(options_.row_parallel_chunk_threshold()));
  info.set_sends_slices(options_.pp_send_slice());
  return info;
}

std::string WorkerRuntime::Summary() const {
  const KvGeometry& kv = executor_->kv();
  const double mib = static_cast<double>(kv.PageBytes()) * kv.page_count / (1 << 20);
  const std::string on = options_.device() == "cpu" ? "" : absl::StrCat(" on ", options_.device());
  return absl::StrFormat(
      "layers [%d, %d) of %d in %s%s, KV cache %d tokens in %d pages of %d (%.1f MiB of %s)",
      kv.layer_begin, kv.layer_end, model_.num_hidden_layers,
      ElementTypeName(executor_->activation_type()), on, kv.page_count * kv.page_size,
      kv.page_count, kv.page_size, mib, ElementTypeName(kv.element_type));
}

namespace {

std::vector<std::string> RdmaPorts() {
  std::vector<std::string> ports;
  std::error_code error;
  const std::filesystem::path root = "/sys/class/infiniband";
  for (const auto& device : std::filesystem::directory_iterator(root, error)) {
    for (const auto& port : std::filesystem::directory_iterator(device.path() / "ports", error)) {
      ports.push_back(
          absl::StrCat(device.path().filename().string(), ":", port.path().filename().string()));
    }
  }
  return ports;
}

}  // namespace

std::map<std::string, std::string> TransportVariables(const v1::Options& options,
                                                      const std::string& device,
                                                      const std::vector<std::string>& rdma_ports) {
  std::map<std::string, std::string> variables;
  // UCX's shared memory is left out of what it may choose: all senders of a host write to one queue
  // of the receiver, and one that is killed between taking a place in it and filling the place
  // stops the queue for all others, for good (common/transport/README.md).
  variables["UCX_TLS"] =
      options.kv_transport() == "auto" ? "^shm" : absl::StrCat(options.kv_transport(), ",self");
  if (net::IsIpv6(options.host())) variables["UCX_TCP_AF_PRIO"] = "inet6,inet";
  if (device.empty()) return variables;
  // UCX listens on a device's first address, so the data plane is as far visible as --host says up
  // to the device. RDMA ports have no address to go by; loopback has no use for them.
  std::vector<std::string> devices = {device};
  if (!net::IsLoopback(options.host())) {
    devices.insert(devices.end(), rdma_ports.begin(), rdma_ports.end());
  }
  variables["UCX_NET_DEVICES"] = absl::StrJoin(devices, ",");
  return variables;
}

std::map<std::string, std::string> DeviceVariables(const v1::Options& options,
                                                   const std::string& device) {
  std::map<std::string, std::string> variables;
  if (options.device() == "cpu") return variables;
  // As the driver numbers them, by whose memory the plan was made; else CUDA goes by speed.
  variables["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID";
  // NCCL listens, in the clear, where the other listeners are; "=" is for that name alone.
  if (!device.empty()) variables["NCCL_SOCKET_IFNAME"] = absl::StrCat("=", device);
  return variables;
}

DataPlaneOptions PlaneOptions(const v1::Options& options) {
  DataPlaneOptions plane;
  plane.pull = options.kv_transport() == "auto";
  return plane;
}

namespace {

std::string NetworkDevice(const v1::Options& options) {
  return net::IsUnspecified(options.host()) ? "" : net::DeviceOf(options.host());
}

void SetUnlessSet(const std::map<std::string, std::string>& variables) {
  for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), /*overwrite=*/0);
}

}  // namespace

void ChooseTransports(const v1::Options& options) {
  SetUnlessSet(TransportVariables(options, NetworkDevice(options), RdmaPorts()));
}

void PrepareDevice(const v1::Options& options) {
  SetUnlessSet(DeviceVariables(options, NetworkDevice(options)));
}

namespace {

// Polls, since what it waits for lies in other threads and processes. A protocol to announce each
// end is not worth its cost.
constexpr auto kLookAgain = std::chrono::milliseconds(10);
constexpr int64_t kReportUs = 100'000;  // Every answer says for whom the router still needs it.
constexpr int64_t kProgressUs = 5'000'000;
constexpr int64_t kLeaveMs = 1'000;

}  // namespace

void DrainWorker(int64_t drain_timeout_ms, prefill::PrefillService& service,
                 worker::ClusterClient& client) {
  NoteStopRequested();  // Also where no signal came: peers that vanish now are no news.
  worker::Drain drain({.drain_us = drain_timeout_ms * 1000});
  drain.Begin(NowUs());
  service.BeginDrain(drain.deadline_us());
  client.StopConnecting();
  client.ReportSoon();
  LOG(kInfo) << "drain begins: nothing new is taken, " << service.load().running_requests()
             << " requests run here, at most " << drain_timeout_ms << " ms (--drain-timeout-ms)";
  int64_t reported_us = NowUs();
  int64_t progress_us = reported_us;
  worker::DrainPhase before = drain.phase();
  while (true) {
    const worker::DrainNews news = client.drain_news();
    const worker::DrainFacts facts{service.AtRest(), news.untold_routers, news.needed_requests};
    const int64_t now_us = NowUs();
    const worker::DrainPhase phase = drain.Update(facts, now_us);
    if (phase == worker::DrainPhase::kLeaving) {
      if (!facts.at_rest) {
        LOG(kWarning) << "leaving all the same; waited for: " << WhatDrainWaitsFor(facts);
      }
      break;
    }
    if (phase != before) {
      LOG(kWarning) << "the drain's time is over, what is left ends now; waited for: "
                    << WhatDrainWaitsFor(facts);
      before = phase;
    }
    if (now_us - progress_us >= kProgressUs) {
      LOG(kInfo) << "draining for " << (now_us - drain.begun_us()) / 1'000'000
                 << " s, waits for: " << WhatDrainWaitsFor(facts);
      progress_us = now_us;
    }
    if (now_us - reported_us >= kReportUs) {
      client.ReportSoon();
      reported_us = now_us;
    }
    std::this_thread::sleep_for(kLookAgain);
  }
  client.Leave(kLeaveMs);
  const DrainCounts counts = service.drain_counts();
  if (counts.time_over_total > 0) {
    LOG(kWarning) << "ended " << counts.time_over_total
                  << " requests that were not done in time (--drain-timeout-ms)";
  }
  LOG(kInfo) << "drain ends after " << (NowUs() - drain.begun_us()) / 1000
             << " ms: refused=" << counts.refused_total
             << " handed_back=" << counts.handed_back_total
             << " time_over=" << counts.time_over_total;
}

}  // namespace baton
