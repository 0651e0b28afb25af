// A decode service: the loop that owns the core, the lease table on the data thread, the thread
// that computes, and the gRPC server, put together.
//
//   auto service = DecodeService::Create(options, parts);   // listens
//   ... register with the router ...
//   (*service)->BeginDrain(deadline_us); ... until AtRest() ...; (*service)->Stop();
//   data_plane->Shutdown(); service->reset();
#ifndef SERVICES_DECODE_DECODE_SERVICE_H_
#define SERVICES_DECODE_DECODE_SERVICE_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/event_loop.h"
#include "common/base/sync.h"
#include "common/engine/connect_group.h"
#include "common/engine/executor.h"
#include "common/rpc/cluster_security.h"
#include "common/telemetry/metrics.h"
#include "common/tracing/tracer.h"
#include "common/transport/data_plane.h"
#include "proto/baton/v1/cluster.pb.h"
#include "services/decode/decode_rpc.h"
#include "services/decode/decode_shell.h"
#include "services/decode/kv_receiver.h"
#include "services/decode/step_runner.h"
#include "services/worker/peers.h"

namespace baton::decode {

struct DecodeOptions {
  InstanceRef self;
  std::string decode_id;  // For a service of several ranks; this is its rank 0.
  std::string host = "127.0.0.1";
  int grpc_port = 0;  // 0: any free one.
  int max_running_requests = 0;
  int max_queued_requests = 0;
  int max_context_tokens = 0;
  int reserved_decode_tokens = 512;  // New tokens of a request that have pages at first.
  bool caches = false;  // KV of finished requests is kept for prompts that begin alike.
  int64_t kv_lease_ms = 3000;
};

// For any rank's process: OK while loop, data thread and executor make progress. `loop_us` and
// `data_thread_us` say when the first two last did.
absl::Status LivenessOf(int64_t now_us, int64_t loop_us, int64_t data_thread_us,
                        const Executor& executor);

class DecodeService {
 public:
  // Not owned; they outlive the service, and the data plane is shut down before it is destroyed.
  struct Parts {
    Executor* executor = nullptr;  // All layers of the model.
    DataPlane* data_plane = nullptr;
    const worker::Peers* peers = nullptr;
    Metrics* metrics = nullptr;
    tracing::Tracer* tracer = nullptr;  // Null: no tracing.
    grpc::Service* beside = nullptr;    // Served on the same port; may be null.
    ConnectGroup connect_group;         // With several ranks.
    std::shared_ptr<const rpc::ClusterSecurity> security = nullptr;  // Null: peers are not checked.
    Constraints* constraints = nullptr;  // Null: texts can't be constrained.
  };

  // INVALID_ARGUMENT for options that don't fit the executor; UNAVAILABLE if it cannot listen.
  static absl::StatusOr<std::unique_ptr<DecodeService>> Create(const DecodeOptions& options,
                                                               const Parts& parts);
  ~DecodeService();

  int grpc_port() const { return grpc_port_; }

  // Any thread:

  // The workers that can be reached; where the service has several ranks.
  void OnView(const std::vector<worker::PeerWorker>& workers);

  // Takes requests: not draining, and its ranks are together.
  bool ready() const { return ready_; }
  v1::WorkerLoad load() const;
  // LivenessOf this process; never waits for a peer.
  absl::Status Liveness() const;

  // Refuses new requests; those that have not ended at the deadline end then, with UNAVAILABLE.
  void BeginDrain(int64_t deadline_us);
  // Holds no request and no page. Any thread but the service's own.
  bool AtRest();
  DrainCounts drain_counts();
  // Both: refuses new requests and waits until those that run have ended; false if `limit_ms`
  // passed.
  bool Drain(int64_t limit_ms);
  // Ends what runs with UNAVAILABLE, then calls and threads, within three seconds. Idempotent; not
  // on the service's own threads.
  void Stop();

 private:
  DecodeService(const DecodeOptions& options, const Parts& parts);
  absl::Status Listen();
  int64_t Wake(int64_t now_us);
  void Publish();

  const DecodeOptions options_;
  const Parts parts_;
  const std::shared_ptr<EventLoop> loop_;
  std::unique_ptr<KvReceiver> kv_;
  std::unique_ptr<StepRunner> runner_;
  std::unique_ptr<RankLinks> ranks_;  // Null: one process.
  std::unique_ptr<DecodeShell> shell_;
  std::unique_ptr<DecodeRpc> rpc_;
  std::unique_ptr<grpc::Server> server_;
  int grpc_port_ = 0;

  // Loop thread.
  DrainMetrics drain_metrics_;
  uint64_t told_evicted_pages_ = 0;
  uint64_t told_reused_pages_ = 0;
  uint64_t told_retractions_ = 0;
  std::atomic<bool> ready_{false};
  std::atomic<int64_t> last_wake_us_{0};
  mutable Mutex mutex_;
  v1::WorkerLoad load_ ABSL_GUARDED_BY(mutex_);
  // What the loop has been told of and has not taken yet.
  std::optional<std::vector<worker::PeerWorker>> next_view_ ABSL_GUARDED_BY(mutex_);
  bool health_said_ = false;  // Loop thread.
  bool stopped_ = false;
};

}  // namespace baton::decode

#endif  // SERVICES_DECODE_DECODE_SERVICE_H_
