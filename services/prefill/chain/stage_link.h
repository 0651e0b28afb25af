// The shell around a later stage's link: brings to it what stage 0 says, begins and ends epochs as
// it decides, hands plans to the stage and reports back what the stage has done.
#ifndef SERVICES_PREFILL_CHAIN_STAGE_LINK_H_
#define SERVICES_PREFILL_CHAIN_STAGE_LINK_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/serial_events.h"
#include "services/prefill/chain/link_stream.h"
#include "services/prefill/chain/messages.h"
#include "services/prefill/core/link.h"
#include "services/prefill/stage/stage_shell.h"
#include "services/worker/peers.h"

namespace baton::prefill {

// Loop thread.
class StageLink {
 public:
  struct Options {
    ChainPlace place;
    PlanBounds bounds;
    StageShell* stage = nullptr;           // Not owned.
    const worker::Peers* peers = nullptr;  // Not owned.
    std::optional<KnownCost> measured;     // What chunks cost this stage.
    GroupJoiner* joiner = nullptr;         // With more ranks a stage than one. Not owned.
  };
  explicit StageLink(const Options& options);

  void OnRequest(const std::shared_ptr<LinkStream>& stream, const v1::LinkRequest& request);
  void OnEnd(const std::shared_ptr<LinkStream>& stream);

  // Does what is due; returns when it is next.
  int64_t Wake(int64_t now_us);
  void Stop();

 private:
  void Handle(const LinkEvent& event);
  void Perform(const TryEpoch& action);
  void Perform(const FormGroup& action);
  void Perform(const SendReady& action);
  void Perform(const SendPong& action);
  void Perform(const TakePlan& action);
  void Perform(const PassNextStageDone& action);
  void Perform(const DropEpoch& action);
  void Perform(const RefuseLink& action);
  void Perform(const EndLink& action);

  // The stream's number; 0: it has not begun with hello, or has ended.
  uint64_t NumberOf(const std::shared_ptr<LinkStream>& stream) const;
  void OnHello(const std::shared_ptr<LinkStream>& stream, const v1::LinkHello& proto);
  void OnPlan(uint64_t number, const v1::Plan& proto);
  void OnGroupMessage(uint64_t number, const v1::LinkRequest& request);
  void Report(uint64_t epoch, v1::LinkResponse response);
  absl::Status Named(const absl::Status& status) const;

  const Options options_;
  Link link_;
  SerialEvents<LinkEvent> events_{[this](const LinkEvent& event) { Handle(event); }};
  std::map<uint64_t, std::shared_ptr<LinkStream>> streams_;  // Neither refused nor ended.
  uint64_t streams_opened_ = 0;
  PlanWithContexts arriving_;  // Of the PlanHeard that is being handled.
};

}  // namespace baton::prefill

#endif  // SERVICES_PREFILL_CHAIN_STAGE_LINK_H_
