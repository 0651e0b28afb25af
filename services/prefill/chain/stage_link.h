// A member's link that hands plans to its stage and reports back what the stage has done. Where the
// stage draws, structures are compiled for stage 0, which holds their requests until then.
#ifndef SERVICES_PREFILL_CHAIN_STAGE_LINK_H_
#define SERVICES_PREFILL_CHAIN_STAGE_LINK_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <variant>

#include "common/base/event_loop.h"
#include "common/engine/sampling/constraints.h"
#include "services/links/member_link.h"
#include "services/prefill/chain/grant_messages.h"
#include "services/prefill/chain/messages.h"
#include "services/prefill/core/member_grants.h"
#include "services/prefill/stage/stage_shell.h"
#include "services/worker/peers.h"

namespace baton::prefill {

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

  void OnRequest(const std::shared_ptr<links::LinkStream>& stream, const v1::LinkRequest& request) {
    link_.OnRequest(stream, request);
  }
  void OnEnd(const std::shared_ptr<links::LinkStream>& stream) { link_.OnEnd(stream); }

  // From this rank's lease table.
  void OnLease(const LeaseEvent& event);
  // Does what is due; returns when it is next.
  int64_t Wake(int64_t now_us) { return std::min(TellCompiled(now_us), link_.Wake(now_us)); }
  void Stop();

 private:
  links::MemberLink::Callbacks Callbacks();
  links::MemberLink::Work Read(const v1::LinkRequest& request);

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
  links::MemberLink link_;
  // The message in hand.
  std::variant<PlanWithContexts, v1::CompileStructure, GrantOrder> arriving_;
  std::deque<Structure> structures_;  // The oldest first.
};

// A stream that `link` hears on the loop; null: it takes none. For gRPC, which owns it.
links::LinkStream* OpenLinkStream(StageLink* link, const std::shared_ptr<EventLoop>& loop);

}  // namespace baton::prefill

#endif  // SERVICES_PREFILL_CHAIN_STAGE_LINK_H_
