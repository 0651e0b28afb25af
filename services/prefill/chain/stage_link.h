// A member's link that hands plans to its stage and reports back what the stage has done.
#ifndef SERVICES_PREFILL_CHAIN_STAGE_LINK_H_
#define SERVICES_PREFILL_CHAIN_STAGE_LINK_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "services/links/member_link.h"
#include "services/prefill/chain/messages.h"
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
  };
  explicit StageLink(const Options& options);

  void OnRequest(const std::shared_ptr<links::LinkStream>& stream, const v1::LinkRequest& request) {
    link_.OnRequest(stream, request);
  }
  void OnEnd(const std::shared_ptr<links::LinkStream>& stream) { link_.OnEnd(stream); }

  // Does what is due; returns when it is next.
  int64_t Wake(int64_t now_us) { return link_.Wake(now_us); }
  void Stop();

 private:
  links::MemberLink::Callbacks Callbacks();
  links::MemberLink::Work Read(const v1::LinkRequest& request);

  const Options options_;
  links::MemberLink link_;
  PlanWithContexts arriving_;  // From the message that is being handled.
};

}  // namespace baton::prefill

#endif  // SERVICES_PREFILL_CHAIN_STAGE_LINK_H_
