// A later stage's side of its chain: accepts an epoch from stage 0, applies its plans and reports
// back. One link at a time; a newer epoch replaces the old one.
#ifndef SERVICES_PREFILL_CHAIN_STAGE_LINK_H_
#define SERVICES_PREFILL_CHAIN_STAGE_LINK_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/types/instance.h"
#include "services/prefill/chain/link_stream.h"
#include "services/prefill/chain/messages.h"
#include "services/prefill/chain/peers.h"
#include "services/prefill/stage/stage_shell.h"

namespace baton::prefill {

// Loop thread.
class StageLink {
 public:
  struct Options {
    ChainPlace place;
    PlanBounds bounds;
    StageShell* stage = nullptr;   // Not owned.
    const Peers* peers = nullptr;  // Not owned.
  };
  explicit StageLink(const Options& options);

  void OnRequest(const std::shared_ptr<LinkStream>& stream, const v1::LinkRequest& request);
  void OnEnd(const std::shared_ptr<LinkStream>& stream);

  // Does what is due; returns when it is next.
  int64_t Wake(int64_t now_us);
  void Stop();

 private:
  void OnHello(const std::shared_ptr<LinkStream>& stream, const v1::LinkHello& proto);
  absl::Status CheckStage0(const InstanceRef& claimant) const;
  void OnPlan(const v1::Plan& proto);
  // Begins the epoch that waits, if the stage is quiet and its neighbours are connected.
  void TryBegin(int64_t now_us);
  absl::StatusOr<ActivationEpoch> Neighbours() const;
  void End(const absl::Status& status);

  const Options options_;
  std::shared_ptr<LinkStream> stream_;  // Null: no link.
  Hello hello_;
  bool begun_ = false;
  uint64_t newest_epoch_ = 0;
  int64_t begin_by_us_ = 0;
  int64_t last_heard_us_ = 0;
};

}  // namespace baton::prefill

#endif  // SERVICES_PREFILL_CHAIN_STAGE_LINK_H_
