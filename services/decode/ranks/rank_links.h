// Rank 0's way to the followers of its decode service: their links and the group of all ranks, the
// orders that it gives them, and what they report. Which epoch they are in, and when it ends, is
// the wiring's to decide (services/links/core/wiring.h), what follows of it the decode core's.
#ifndef SERVICES_DECODE_RANKS_RANK_LINKS_H_
#define SERVICES_DECODE_RANKS_RANK_LINKS_H_

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/event_loop.h"
#include "common/engine/connect_group.h"
#include "common/engine/executor.h"
#include "services/decode/core/decode_core.h"
#include "services/decode/core/roster.h"
#include "services/links/chain_wiring.h"
#include "services/links/core/hello.h"
#include "services/links/group_joiner.h"
#include "services/worker/core/peer_worker.h"

namespace baton::decode {

// A decode service's rank, as links know it.
links::ChainPlace PlaceOf(const InstanceRef& self, const std::string& decode_id,
                          const Executor& executor);

// Loop thread, but for EndCalls and the destructor.
class RankLinks {
 public:
  struct Options {
    links::ChainPlace place;       // Rank 0's.
    Executor* executor = nullptr;  // Not owned; outlives EndCalls.
    std::shared_ptr<EventLoop> loop;
    ConnectGroup connect_group;
    std::function<bool()> may_join;                        // DecodeCore::may_join.
    std::function<void(Event)> handle;                     // By the decode core.
    std::shared_ptr<const rpc::ClusterSecurity> security;  // May be null.
  };
  explicit RankLinks(Options options);

  void OnView(const std::vector<worker::PeerWorker>& workers);
  int64_t Wake(int64_t now_us) { return wiring_.Wake(now_us); }

  // To a follower, or to all of them. Nothing once they are lost: whatever they held goes with
  // that.
  void Send(const GrantKv& grant);
  void Send(const RevokeKv& revoke);
  void Send(const RunStep& step);

  // Ends the epoch.
  void Part(const absl::Status& status) { wiring_.Break(status); }
  // Adds which rank is to blame for a failed step.
  absl::Status Blame(const absl::Status& status) const { return joiner_.Blame(status); }
  void Stop() { wiring_.Stop(); }
  // After Stop; waits. Any thread but the loop's.
  void EndCalls();

 private:
  links::ChainWiring::Callbacks Callbacks();
  void SendAll(v1::DecodeOrder order);

  const Options options_;
  links::GroupJoiner joiner_;
  links::ChainWiring wiring_;
  Roster roster_;
  std::set<InstanceRef> grow_;  // Workers of the view that know of pages that come with a step.
};

}  // namespace baton::decode

#endif  // SERVICES_DECODE_RANKS_RANK_LINKS_H_
