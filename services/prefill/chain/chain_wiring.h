// Stage 0's links: wires the chain when the view of the cluster holds all of it, watches it, and
// breaks it as a whole when a link ends, a stage is silent or a member leaves the view. Every
// wiring is a new epoch.
//
// DOWN -(members whole, stage 0 quiet)-> LINKING -(every stage ready)-> UP -> DOWN, with a growing
// pause before the next try.
#ifndef SERVICES_PREFILL_CHAIN_CHAIN_WIRING_H_
#define SERVICES_PREFILL_CHAIN_CHAIN_WIRING_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/event_loop.h"
#include "common/rpc/call_tracker.h"
#include "proto/baton/v1/prefill.pb.h"
#include "services/prefill/chain/link_call.h"
#include "services/prefill/chain/messages.h"
#include "services/worker/cluster_client.h"

namespace baton::prefill {

// Loop thread, but for the destructor and EndCalls.
class ChainWiring {
 public:
  struct Options {
    ChainPlace place;  // Stage 0's.
    int page_count = 0;
    int max_plan_tokens = 0;
    int activation_credits = 0;
    std::shared_ptr<EventLoop> loop;
  };
  struct Callbacks {
    // May stage 0 itself begin an epoch? Then begins it: UNAVAILABLE says why not yet.
    std::function<absl::Status(const Hello&)> begin_own;
    std::function<void(uint64_t epoch, int stages, int page_count)> on_up;
    std::function<void(const absl::Status&)> on_down;  // After on_up or begin_own.
    std::function<void(int stage, uint64_t epoch, const PlanDone&)> on_plan_done;
    std::function<void(int stage, uint64_t epoch, const RequestClosed&)> on_request_closed;
  };
  ChainWiring(Options options, Callbacks callbacks);
  ~ChainWiring();

  void OnView(const std::vector<worker::PeerWorker>& workers, int64_t now_us);
  // Does what is due; returns when it is next.
  int64_t Wake(int64_t now_us);

  // To every later stage.
  void Send(const v1::Plan& plan);
  void Break(const absl::Status& reason, int64_t now_us);
  // Breaks, and wires no more.
  void Stop(int64_t now_us);
  // Any thread, while the loop runs a Stop: waits, for a while, until gRPC has let go of the links.
  void EndCalls();

  bool up() const { return state_ == State::kUp; }

 private:
  enum class State { kDown, kLinking, kUp, kStopped };
  struct Link {
    worker::PeerWorker member;
    std::shared_ptr<LinkCall> call;
    bool ready = false;
    int page_count = 0;
    int64_t last_heard_us = 0;
  };

  std::vector<worker::PeerWorker> FindMembers(const std::vector<worker::PeerWorker>& workers) const;
  void TryWire(int64_t now_us);
  void OpenLinks(const Hello& hello, int64_t now_us);
  void OnResponse(int stage, uint64_t epoch, const v1::LinkResponse& response);
  absl::Status HandleResponse(int stage, const v1::LinkResponse& response, int64_t now_us);
  absl::Status OnReady(Link& link, const v1::LinkReady& ready, int64_t now_us);
  void BecomeUp(int64_t now_us);
  void Watch(int64_t now_us);
  absl::Status Blame(const absl::Status& cause, const Link& link) const;

  const Options options_;
  const Callbacks callbacks_;
  State state_ = State::kDown;
  std::vector<worker::PeerWorker> members_;  // Stages 1 to P - 1 in order; whole or empty.
  std::vector<worker::PeerWorker> tried_;    // Members of the last epoch that was begun.
  bool whole_ = false;                       // Every member is in the view.
  rpc::CallTracker calls_;
  std::vector<Link> links_;  // Of the current epoch; stage i at i - 1.
  uint64_t epoch_ = 0;
  int64_t retry_at_us_ = 0;
  int64_t backoff_us_ = 0;
  int64_t linking_since_us_ = 0;
  int64_t up_since_us_ = 0;
  int64_t next_ping_us_ = 0;
  int64_t ping_sequence_ = 0;
};

}  // namespace baton::prefill

#endif  // SERVICES_PREFILL_CHAIN_CHAIN_WIRING_H_
