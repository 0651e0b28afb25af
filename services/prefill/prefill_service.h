// One stage of a prefill chain, or a rank of one, as a service: the loop that owns the cores, the
// executor's thread, the data plane's handlers and the gRPC server, put together.
//
//   auto service = PrefillService::Create(options, parts);   // listens; not ready yet
//   ... register with the router, (*service)->OnMembers(...) when they change ...
//   (*service)->BeginDrain(deadline_us); ... until AtRest() ...; (*service)->Stop();
//   data_plane->Shutdown(); service->reset();
#ifndef SERVICES_PREFILL_PREFILL_SERVICE_H_
#define SERVICES_PREFILL_PREFILL_SERVICE_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/event_loop.h"
#include "common/base/sync.h"
#include "common/engine/executor.h"
#include "common/rpc/cluster_security.h"
#include "common/rpc/server.h"
#include "common/telemetry/metrics.h"
#include "common/tracing/tracer.h"
#include "common/transport/data_plane.h"
#include "proto/baton/v1/cluster.pb.h"
#include "services/prefill/chain/chain_shell.h"
#include "services/prefill/chain/stage_link.h"
#include "services/prefill/core/member_grants.h"
#include "services/prefill/prefill_options.h"
#include "services/prefill/prefill_rpc.h"
#include "services/prefill/stage/cost_sweep.h"
#include "services/prefill/stage/stage_shell.h"
#include "services/worker/peers.h"
#include "services/worker/token_relay.h"

namespace baton::prefill {

// What a front (below) is of. One of the first two is null. They outlive it, and live until the
// loop has stopped.
struct FrontParts {
  ChainShell* chain = nullptr;
  StageLink* link = nullptr;
  std::shared_ptr<EventLoop> loop;
  worker::TokenRelays* relays = nullptr;
  // What the inlet's lease table says; any thread. False: the loop has stopped.
  std::function<bool(std::vector<LeaseEvent>)> on_lease;
};
// What a decode service has in place of PrefillRpc and of what sends KV: speaks to others, and
// takes KV in.
class Front {
 public:
  virtual ~Front() = default;
  virtual KvInlet& inlet() = 0;
  virtual void Attach(const FrontParts& parts) = 0;  // Once, before all below.
  virtual absl::Status Start() = 0;                  // Registers at the data plane, or fails.
  virtual std::vector<grpc::Service*> services() = 0;
  // Loop thread: does what is due; returns when it is next.
  virtual int64_t Wake(int64_t now_us) = 0;
  virtual bool AtRest() const = 0;  // Loop thread.
  // Any thread, both.
  virtual void OnEndpoints() = 0;
  virtual absl::Status Liveness() const = 0;
};
class PrefillService {
 public:
  // Pointers are not owned; theirs outlive the service, and the data plane is shut down before it
  // is destroyed.
  struct Parts {
    Executor* executor = nullptr;
    DataPlane* data_plane = nullptr;
    const worker::Peers* peers = nullptr;
    Metrics* metrics = nullptr;
    tracing::Tracer* tracer = nullptr;  // Null: no tracing.
    grpc::Service* beside = nullptr;    // Served on the same port; may be null.
    ProfileKeeper::Options profile;     // On stage 0.
    // What chunks cost this stage (stage/cost_sweep.h); or, where that takes several ranks, how
    // they are to measure it once they have found one another.
    std::optional<KnownCost> measured;
    std::optional<SweepLimits> rank_sweep;
    ConnectGroup connect_group;                                      // For stages of several ranks.
    std::shared_ptr<const rpc::ClusterSecurity> security = nullptr;  // Null: peers are not checked.
    Constraints* constraints = nullptr;  // Null: texts can't be constrained.
  };

  // INVALID_ARGUMENT for options that don't fit the executor; UNAVAILABLE if it cannot listen.
  // `front`: a decode service's.
  static absl::StatusOr<std::unique_ptr<PrefillService>> Create(
      const PrefillOptions& options, const Parts& parts, std::unique_ptr<Front> front = nullptr);
  ~PrefillService();

  int grpc_port() const { return server_.port; }

  // Any thread:

  // The other members of its chain that routers list.
  void OnMembers(const std::vector<worker::PeerWorker>& members);
  // An endpoint stands, can't be opened, or stands no more.
  void OnEndpoints();
  // Takes requests: on stage 0, the chain is wired.
  bool ready() const { return Readiness().ok(); }
  absl::Status Readiness() const;  // UNAVAILABLE with the reason while it does not.
  // While it is ready, and speaks for several processes: the incarnations that its epoch links.
  std::vector<uint64_t> linked() const;
  v1::WorkerLoad load() const;
  // OK while loop, data thread and executor make progress; never waits for a peer.
  absl::Status Liveness() const;

  // Not ready from now on. On stage 0: refuses new requests, and ends those that are not through at
  // the deadline, with UNAVAILABLE. Later stages do what stage 0 plans, to their end.
  void BeginDrain(int64_t deadline_us);
  // Holds nothing of any request. Of a later stage that is the state of this moment: what stage 0
  // will still plan is for the routers to know (services/worker/core/drain.h). Any thread but the
  // service's own.
  bool AtRest();
  DrainCounts drain_counts();
  // Both: refuses new requests and waits until those that run have ended; false if `limit_ms`
  // passed.
  bool Drain(int64_t limit_ms);
  // Ends calls, links and threads. Idempotent; not on the service's own threads.
  void Stop();

 private:
  PrefillService(const PrefillOptions& options, const Parts& parts, std::unique_ptr<Front> front);
  void MakeCompute();
  void MakeMember();
  absl::Status Listen();
  void TakeMembers();
  int64_t Wake(int64_t now_us);
  void CheckNeighbours();
  void Publish();
  bool LoopAtRest() const;
  void StartHeartbeats();
  void PublishPages(const PlannerLoad& planner);
  bool decode() const { return front_ != nullptr; }
  bool OnLease(std::vector<LeaseEvent> events);
  // Both: any thread.
  void Tell(StageEvent event);
  void BreakEpoch(uint64_t epoch, const absl::Status& status);

  const PrefillOptions options_;
  const Parts parts_;
  std::shared_ptr<EventLoop> loop_;
  std::unique_ptr<ActivationChannel> activations_;
  std::unique_ptr<KvSender> kv_;
  std::unique_ptr<PlanComputer> computer_;
  // Both of a rank beside others.
  std::unique_ptr<RankSweep> sweep_;
  std::unique_ptr<links::GroupJoiner> joiner_;
  std::unique_ptr<StageShell> stage_;
  std::unique_ptr<ChainShell> chain_;     // On the chain's member 0.
  std::unique_ptr<StageLink> link_;       // On all others.
  std::unique_ptr<MemberGrants> grants_;  // In a decode service.
  worker::TokenRelays relays_;
  const std::unique_ptr<Front> front_;  // A decode service's; others have:
  std::unique_ptr<PrefillRpc> rpc_;
  rpc::RunningServer server_;

  std::atomic<uint64_t> broken_epoch_{0};
  bool draining_ = false;            // Loop thread.
  int64_t housekept_us_ = 0;         // Loop thread.
  DrainMetrics drain_metrics_;       // Loop thread.
  uint64_t told_evicted_pages_ = 0;  // Loop thread, both.
  uint64_t told_retractions_ = 0;
  uint64_t told_reused_pages_ = 0;
  std::atomic<int64_t> last_wake_us_{0};
  mutable Mutex mutex_;
  v1::WorkerLoad load_ ABSL_GUARDED_BY(mutex_);
  // What the loop has been told of and has not taken yet.
  std::optional<std::vector<worker::PeerWorker>> next_members_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint64_t> linked_ ABSL_GUARDED_BY(mutex_);
  absl::Status readiness_ ABSL_GUARDED_BY(mutex_) = absl::UnavailableError("it is starting");
  bool health_said_ = false;  // Loop thread.
  bool stopped_ = false;
};

}  // namespace baton::prefill

#endif  // SERVICES_PREFILL_PREFILL_SERVICE_H_
