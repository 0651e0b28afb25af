// The shell around a member's link (services/links/core/link.h): passes it the messages of the
// leader (stage 0, or a decode service's rank 0) and performs its actions, hands plans to its stage
// and reports back what the stage has done. Where the stage draws, structures are compiled for
// stage 0, which holds their requests until then.
#ifndef SERVICES_PREFILL_CHAIN_STAGE_LINK_H_
#define SERVICES_PREFILL_CHAIN_STAGE_LINK_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/event_loop.h"
#include "common/base/serial_events.h"
#include "common/engine/sampling/constraints.h"
#include "common/rpc/server_stream.h"
#include "proto/baton/v1/prefill.pb.h"
#include "services/links/core/link.h"
#include "services/links/group_joiner.h"
#include "services/prefill/chain/grant_messages.h"
#include "services/prefill/chain/messages.h"
#include "services/prefill/core/member_grants.h"
#include "services/prefill/stage/stage_shell.h"
#include "services/worker/peers.h"

namespace baton::prefill {

using LinkStream = rpc::ServerStream<v1::LinkRequest, v1::LinkResponse>;

// Loop thread.
class StageLink {
 public:
  struct Options {
    links::ChainPlace place;
    PlanBounds bounds;
    StageShell* stage = nullptr;           // Not owned.
    const worker::Peers* peers = nullptr;  // Not owned.
    // As ChainShell's, of this stage; asked when it is ready.
    std::function<std::optional<KnownCost>()> measured;
    links::GroupJoiner* joiner = nullptr;  // With more ranks a stage than one. Not owned.
    MemberGrants* grants = nullptr;        // Where the chain is granted KV. Not owned.
    std::shared_ptr<EventLoop> loop;
    const char* failpoint = "prefill.link";
  };
  explicit StageLink(const Options& options);

  using Stream = std::shared_ptr<LinkStream>;
  void OnRequest(const Stream& stream, const v1::LinkRequest& request);
  void OnEnd(const Stream& stream);

  // From this rank's lease table.
  void OnLease(const LeaseEvent& event);
  // Does what is due; returns when it is next.
  int64_t Wake(int64_t now_us);
  void Stop();

 private:
  void Handle(const links::LinkEvent& event);
  void Perform(const links::TryEpoch& action);
  void Perform(const links::FormGroup& action);
  void Perform(const links::SendReady& action);
  void Perform(const links::SendPong& action);
  void Perform(const links::TakeWork&);
  void Perform(const links::PassNextStageDone& action);
  void Perform(const links::DropEpoch& action);
  void Perform(const links::RefuseLink& action);
  void Perform(const links::EndLink& action);

  // The stream's number; 0: it has not begun with hello, or has ended.
  uint64_t NumberOf(const Stream& stream) const;
  void OnHello(const Stream& stream, const v1::LinkHello& proto);
  void OnGroupMessage(uint64_t number, const v1::LinkRequest& request);
  absl::Status Named(const absl::Status& status) const;
  // Reads a message that is sent only to ready members, and keeps what it says until it is to be
  // taken or the next one comes. Returns its epoch.
  absl::StatusOr<uint64_t> Read(const v1::LinkRequest& request);
  // To the peer that opened the link; does nothing if the epoch is over.
  void Report(uint64_t epoch, v1::LinkResponse response);
  void Report(v1::LinkResponse response) { Report(link_.hello().epoch, std::move(response)); }
  // Ends the epoch.
  void Fail(const absl::Status& status) { events_.Raise(links::StageFailed{status}); }

  void OnPlan(PlanWithContexts plan);
  void OnGrant(const GrantOrder& order);
  void Compile(const v1::CompileStructure& asked);
  void TellCompiled(uint64_t attempt_id, const absl::Status& status);
  // Tells what has been compiled; returns when to look again.
  int64_t TellCompiled(int64_t now_us);

  // One that stage 0 asked for. It is kept until a plan opens the request, so that it has not to be
  // compiled again for the draw; those of requests that end before that are replaced by later ones.
  struct Structure {
    uint64_t attempt_id = 0;
    std::shared_ptr<const PendingConstraint> constraint;
    bool told = false;
  };

  const Options options_;
  links::Link link_;
  SerialEvents<links::LinkEvent> events_{[this](const links::LinkEvent& event) { Handle(event); }};
  std::map<uint64_t, Stream> streams_;  // Neither refused nor ended.
  uint64_t streams_opened_ = 0;
  // The message in hand.
  std::variant<PlanWithContexts, v1::CompileStructure, GrantOrder> arriving_;
  std::deque<Structure> structures_;  // The oldest first.
};

// Begins an epoch on this process's stage; UNAVAILABLE: not yet. `grants` may be null.
absl::Status BeginEpoch(const links::Hello& hello, const MemberGrants* grants,
                        const worker::Peers& peers, StageShell& stage);

// A stream that `link` hears on the loop; null: it takes none. For gRPC, which owns it.
LinkStream* OpenLinkStream(StageLink* link, const std::shared_ptr<EventLoop>& loop);

}  // namespace baton::prefill

#endif  // SERVICES_PREFILL_CHAIN_STAGE_LINK_H_
