// A rank of a decode service that is not its first: takes the KV of its heads and computes its part
// of every step, as rank 0 orders over their link. No router speaks to it.
//
//   auto service = FollowerService::Create(options, parts);   // listens
//   ... register with the router ...
//   (*service)->Stop(); data_plane->Shutdown(); service->reset();
#ifndef SERVICES_DECODE_FOLLOWER_SERVICE_H_
#define SERVICES_DECODE_FOLLOWER_SERVICE_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/event_loop.h"
#include "common/base/serial_events.h"
#include "common/base/sync.h"
#include "common/engine/executor.h"
#include "common/types/drain_counts.h"
#include "proto/baton/v1/cluster.pb.h"
#include "proto/baton/v1/decode_ranks.grpc.pb.h"
#include "services/decode/core/follower.h"
#include "services/decode/decode_service.h"
#include "services/decode/kv_receiver.h"
#include "services/links/group_joiner.h"
#include "services/links/member_link.h"

namespace baton::decode {

class FollowerService {
 public:
  // As DecodeService's, of which this is a rank.
  static absl::StatusOr<std::unique_ptr<FollowerService>> Create(const DecodeOptions& options,
                                                                 const DecodeService::Parts& parts);
  ~FollowerService();

  int grpc_port() const { return grpc_port_; }

  // Any thread, as DecodeService's:

  // Ready for rank 0's orders: whether the service takes requests is rank 0's to report.
  bool ready() const { return !draining_; }
  v1::WorkerLoad load() const;
  absl::Status Liveness() const;
  // Nothing begins here; this worker tells routers, which let rank 0's requests end.
  void BeginDrain(int64_t deadline_us);
  bool AtRest();
  DrainCounts drain_counts() const { return {}; }
  void Stop();

 private:
  class Rpc final : public v1::DecodeRanks::CallbackService {
   public:
    explicit Rpc(FollowerService* owner) : owner_(owner) {}
    grpc::ServerBidiReactor<v1::LinkRequest, v1::LinkResponse>* Link(
        grpc::CallbackServerContext* context) override;

   private:
    FollowerService* const owner_;
  };

  FollowerService(const DecodeOptions& options, const DecodeService::Parts& parts);
  absl::Status Listen();
  links::MemberLink::Callbacks LinkCallbacks();
  int64_t Wake(int64_t now_us);
  void Publish();

  void Handle(const FollowerEvent& event);
  void Perform(GrantKv& action) { kv_->Grant(std::move(action.grant)); }
  void Perform(const RevokeKv& action) { kv_->Revoke(action.slot, action.generation); }
  void Perform(RunStep& action);
  void Perform(const TellGranted& action);
  void Perform(const TellLease& action);
  void Perform(const FailEpoch& action) { link_->Fail(action.status); }

  const DecodeOptions options_;
  const DecodeService::Parts parts_;
  const std::shared_ptr<EventLoop> loop_;
  std::unique_ptr<KvReceiver> kv_;
  std::unique_ptr<links::GroupJoiner> joiner_;
  Follower core_;  // Loop thread, as the next four.
  SerialEvents<FollowerEvent> events_{[this](const FollowerEvent& event) { Handle(event); }};
  std::unique_ptr<links::MemberLink> link_;
  Order arriving_;      // From the message that is being handled.
  uint64_t epoch_ = 0;  // The last one begun.
  Submissions steps_;
  Rpc rpc_{this};
  std::unique_ptr<grpc::Server> server_;
  int grpc_port_ = 0;

  bool serving_ = false;  // By the health service; loop thread.
  std::atomic<bool> draining_{false};
  std::atomic<int64_t> last_wake_us_{0};
  mutable Mutex mutex_;
  v1::WorkerLoad load_ ABSL_GUARDED_BY(mutex_);
  bool stopped_ = false;
};

}  // namespace baton::decode

#endif  // SERVICES_DECODE_FOLLOWER_SERVICE_H_
