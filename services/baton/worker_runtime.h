// What prefill stages and decode services share as processes: the engine with its weights, the data
// plane, metrics with their HTTP endpoint, the description under which the worker registers.
#ifndef SERVICES_BATON_WORKER_RUNTIME_H_
#define SERVICES_BATON_WORKER_RUNTIME_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/sync.h"
#include "common/engine/executor.h"
#include "common/engine/sampling/constraints.h"
#include "common/model/fingerprint.h"
#include "common/model/model_config.h"
#include "common/rpc/cluster_security.h"
#include "common/telemetry/http_endpoint.h"
#include "common/telemetry/metrics.h"
#include "common/tracing/tracing.h"
#include "common/transport/data_plane.h"
#include "common/types/instance.h"
#include "common/types/kv_layout.h"
#include "proto/baton/v1/cluster.pb.h"
#include "proto/baton/v1/config.pb.h"
#include "services/baton/gpu_monitor.h"
#include "services/prefill/prefill_service.h"
#include "services/worker/cluster_client.h"

namespace baton {

// Members are declared in the order in which they must be destroyed last to first.
class WorkerRuntime {
 public:
  using Security = std::shared_ptr<const rpc::ClusterSecurity>;

  // Listens for probes first, so that a long weight load is seen to progress, then loads.
  // `instance_id` must be set in `options`. With `security`, which may be null, the data plane
  // takes messages only from those whom a router has told this worker's secret.
  static absl::StatusOr<std::unique_ptr<WorkerRuntime>> Create(const v1::Options& options,
                                                               LayerRange layers,
                                                               const ModelConfig& model,
                                                               Security security);

  ~WorkerRuntime() { endpoint_.reset(); }  // Scrapes look at the data plane.

  Executor& executor() { return *executor_; }
  DataPlane& data_plane() { return *data_plane_; }
  Metrics& metrics() { return metrics_; }
  const Security& security() const { return security_; }
  // Null: no tracing.
  tracing::Tracer* tracer() { return tracing_ == nullptr ? nullptr : &tracing_->tracer(); }
  uint16_t metrics_port() const { return endpoint_->port(); }
  // Compiles what texts must be; null where nothing is drawn.
  Constraints* constraints() { return constraints_.get(); }
  const v1::InstanceRef& instance() const { return instance_; }
  int max_context_tokens() const { return max_context_tokens_; }

  // Where /health and /readiness ask from now on; the callbacks must return at once.
  void SetProbes(std::function<absl::Status()> liveness, std::function<absl::Status()> readiness);
  // Probes answer "stopping" from now on and the callbacks are let go.
  void ClearProbes();

  // The registration of this worker but for its role's own fields.
  v1::WorkerInfo Describe(int grpc_port) const;

  TensorRank tensor_rank() const { return executor_->tensor_rank(); }

  // "layers [0, 6) of 12 in bfloat16, KV cache 65536 tokens in 1024 pages of 64 (48.0 MiB of
  // bfloat16)".
  std::string Summary() const;

 private:
  WorkerRuntime(const v1::Options& options, const ModelConfig& model, Security security);
  absl::Status StartEndpoint();
  absl::Status Load(LayerRange layers);
  std::string Scrape();
  void Progress(double fraction);

  const v1::Options options_;
  const ModelConfig model_;
  const Security security_;
  const int64_t created_us_;
  v1::InstanceRef instance_;
  int max_context_tokens_ = 0;
  Metrics metrics_;
  std::unique_ptr<tracing::Tracing> tracing_;  // Flushed after all users of spans are destroyed.
  Mutex probes_mutex_;
  std::function<absl::Status()> liveness_ ABSL_GUARDED_BY(probes_mutex_);
  std::function<absl::Status()> ready_ ABSL_GUARDED_BY(probes_mutex_);
  int tenths_shown_ = -1;  // Loading thread.
  ModelFingerprint fingerprint_;
  std::unique_ptr<GpuMonitor> gpu_;  // Null on a CPU.
  std::unique_ptr<HttpEndpoint> endpoint_;
  std::unique_ptr<Constraints> constraints_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<DataPlane> data_plane_;
  // From when the data plane stands; probes come before.
  std::atomic<const DataPlaneCounters*> counters_{nullptr};
  Mutex scrape_mutex_;
  uint64_t unproven_told_ ABSL_GUARDED_BY(scrape_mutex_) = 0;
};

// What UCX, CUDA and NCCL may use, said in their environment variables.

// The variables for these options. `device`: the network device of options.host(), which is
// numeric; empty for all. `rdma_ports`: this machine's ("mlx5_0:1").
std::map<std::string, std::string> TransportVariables(const v1::Options& options,
                                                      const std::string& device,
                                                      const std::vector<std::string>& rdma_ports);

// What CUDA and NCCL read of the environment, likewise; nothing on a CPU.
std::map<std::string, std::string> DeviceVariables(const v1::Options& options,
                                                   const std::string& device);

// Options of the worker's data plane.
DataPlaneOptions PlaneOptions(const v1::Options& options);

// Sets them where the user has set nothing. Before the data plane reads the environment and before
// other threads do.
void ChooseTransports(const v1::Options& options);
// The same for a GPU's libraries, before they are loaded.
void PrepareDevice(const v1::Options& options);

// The end of a worker's process, from the word to stop until it may go: tells the routers, waits
// for what services/worker/core/drain.h decides, says in the log what it waits for, deregisters.
// It decides nothing and ends no process.

// Returns when the worker has left, at most about three seconds after `drain_timeout_ms`. The
// status that `client` asks for must say already that the worker drains.
void DrainWorker(int64_t drain_timeout_ms, prefill::PrefillService& service,
                 worker::ClusterClient& client);

}  // namespace baton

#endif  // SERVICES_BATON_WORKER_RUNTIME_H_
