// A decode service, or one of its stages or ranks: a chain (services/prefill) whose prompts others
// read, with the lease table that takes in this process's part of their KV, and on stage 0's rank 0
// the calls of routers.
//
//   auto service = DecodeService::Create(options, parts);   // listens
//   ... register with the router, (*service)->OnMembers(...) when they change ...
//   (*service)->BeginDrain(deadline_us); ... until AtRest() ...; (*service)->Stop();
//   data_plane->Shutdown(); service->reset();
#ifndef SERVICES_DECODE_DECODE_SERVICE_H_
#define SERVICES_DECODE_DECODE_SERVICE_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/engine/connect_group.h"
#include "common/engine/executor.h"
#include "common/rpc/cluster_security.h"
#include "common/telemetry/metrics.h"
#include "common/tracing/tracer.h"
#include "common/transport/data_plane.h"
#include "proto/baton/v1/cluster.pb.h"
#include "services/decode/kv_receiver.h"
#include "services/prefill/prefill_service.h"
#include "services/worker/peers.h"

namespace baton::decode {

struct DecodeOptions {
  InstanceRef self;
  std::string decode_id;  // For a service of several stages or ranks.
  int pp_rank = 0;
  int pp_size = 1;
  std::string host = "127.0.0.1";
  int grpc_port = 0;  // 0: any free one.
  int max_running_requests = 0;
  int max_queued_requests = 0;
  int max_context_tokens = 0;
  int reserved_decode_tokens = 512;  // New tokens of a request that have pages at first.
  bool caches = false;  // KV of finished requests is kept for prompts that begin alike.
  int64_t kv_lease_ms = 3000;
};

class DecodeService {
 public:
  // Not owned; they outlive the service, and the data plane is shut down before it is destroyed.
  struct Parts {
    Executor* executor = nullptr;  // The stage's layers.
    DataPlane* data_plane = nullptr;
    const worker::Peers* peers = nullptr;
    Metrics* metrics = nullptr;
    tracing::Tracer* tracer = nullptr;  // Null: no tracing.
    grpc::Service* beside = nullptr;    // Served on the same port; may be null.
    ConnectGroup connect_group;         // With several ranks in a stage.
    std::shared_ptr<const rpc::ClusterSecurity> security = nullptr;  // Null: peers are not checked.
    Constraints* constraints = nullptr;  // Null: texts can't be constrained.
  };

  // INVALID_ARGUMENT for options that don't fit the executor; UNAVAILABLE if it cannot listen.
  static absl::StatusOr<std::unique_ptr<DecodeService>> Create(const DecodeOptions& options,
                                                               const Parts& parts);
  ~DecodeService() { Stop(); }

  int grpc_port() const { return chain_->grpc_port(); }

  // As PrefillService's:
  void OnMembers(const std::vector<worker::PeerWorker>& members) { chain_->OnMembers(members); }
  void OnEndpoints() {
    chain_->OnEndpoints();
    kv_->OnEndpoints();
  }
  // Takes requests: not draining, and its members are together. Of another one than the first:
  // whether the service takes requests is the first's to report.
  bool ready() const { return chain_->ready(); }
  v1::WorkerLoad load() const { return chain_->load(); }
  std::vector<uint64_t> linked() const { return chain_->linked(); }
  // OK while loop, data thread and executor make progress; never waits for a peer.
  absl::Status Liveness() const;
  void BeginDrain(int64_t deadline_us) { chain_->BeginDrain(deadline_us); }
  bool AtRest() { return chain_->AtRest(); }
  DrainCounts drain_counts() { return chain_->drain_counts(); }
  bool Drain(int64_t limit_ms) { return chain_->Drain(limit_ms); }
  void Stop() {
    if (chain_ != nullptr) chain_->Stop();
  }

 private:
  class Front;

  DecodeService(const DecodeOptions& options, const Parts& parts);

  std::unique_ptr<KvReceiver> kv_;
  std::unique_ptr<prefill::PrefillService> chain_;
};

}  // namespace baton::decode

#endif  // SERVICES_DECODE_DECODE_SERVICE_H_
