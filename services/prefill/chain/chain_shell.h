// The shell around the planner, on stage 0: answers Start and Generate calls, sends plans to every
// stage, and brings the stages' reports back to it.
#ifndef SERVICES_PREFILL_CHAIN_CHAIN_SHELL_H_
#define SERVICES_PREFILL_CHAIN_CHAIN_SHELL_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/serial_events.h"
#include "common/engine/sampling/compiling_requests.h"
#include "common/rpc/call_tracker.h"
#include "common/rpc/channel.h"
#include "common/rpc/client_stream.h"
#include "common/rpc/cluster_security.h"
#include "common/telemetry/metrics.h"
#include "common/tracing/tracer.h"
#include "proto/baton/v1/prefill.pb.h"
#include "services/links/core/wiring.h"
#include "services/links/group_joiner.h"
#include "services/prefill/chain/messages.h"
#include "services/prefill/chain/profile_keeper.h"
#include "services/prefill/core/chain_planner.h"
#include "services/prefill/core/member_grants.h"
#include "services/prefill/stage/activation_channel.h"
#include "services/prefill/stage/stage_shell.h"
#include "services/worker/peers.h"
#include "services/worker/token_stream.h"
#include "services/worker/unary_answer.h"

namespace baton::prefill {

using StartCall = worker::UnaryAnswer<v1::StartResponse>;

// Who is told of a request whose prompt others read. Loop thread.
class Reservation {
 public:
  virtual ~Reservation() = default;
  virtual void OnTicket(const Ticket& ticket) = 0;
  // An error ends the request.
  virtual absl::Status OnToken(const SampledToken& token, bool logprobs) = 0;
  // Once, the last.
  virtual void OnEnd(const absl::StatusOr<FinishReason>& outcome) = 0;
};

// Loop thread.
class ChainShell {
 public:
  struct Options {
    links::ChainPlace place;
    PlannerLimits limits;
    int page_count = 0;  // Stage 0's KV pages.
    int activation_credits = 0;
    std::shared_ptr<EventLoop> loop;
    StageShell* stage = nullptr;           // Stage 0's own; not owned.
    const worker::Peers* peers = nullptr;  // Not owned.
    Metrics* metrics = nullptr;
    tracing::Tracer* tracer = nullptr;  // Null: no tracing. Not owned.
    ProfileKeeper::Options profile;     // Its path is empty: none is kept.
    // What chunks cost stage 0, once it has all its ranks; nothing if it was not measured.
    std::function<std::optional<KnownCost>()> measured;
    links::GroupJoiner* joiner = nullptr;  // With more ranks a stage than one. Not owned.
    MemberGrants* grants = nullptr;        // Where the chain is granted KV. Not owned.
    const char* failpoint = "prefill.link";
    std::shared_ptr<const rpc::ClusterSecurity> security;  // May be null.
  };
  explicit ChainShell(Options options);
  ~ChainShell();

  // The request has a ticket; the chain decodes one without.
  void Start(prefill::Start start, std::shared_ptr<StartCall> call);
  void Generate(prefill::Start start, std::shared_ptr<worker::TokenStream> stream);
  // `start` names writers.
  void Reserve(prefill::Start start, std::shared_ptr<Reservation> reservation);
  // Their client is gone.
  void Cancel(const std::shared_ptr<StartCall>& call);
  void Cancel(const std::shared_ptr<worker::TokenStream>& stream);
  void Abort(uint64_t attempt_id, const std::string& reason);
  void Abort(uint64_t attempt_id, const absl::Status& reason);
  // From this rank's lease table.
  void OnLease(const LeaseEvent& event);
  int FlushCache();  // Returns the number of pages that are free by that.
  void OnMembers(const std::vector<worker::PeerWorker>& members);

  // Does what is due; returns when it is next.
  int64_t Wake(int64_t now_us);
  // What the planner knows of its stages, for operators: that it does without shows. Now and then.
  void TellCosts(int64_t now_us);
  // New requests are refused from now on, and those that are not through at the deadline end then.
  void BeginDrain(int64_t deadline_us);
  bool AtRest() const { return planner_.AtRest() && compiling_.empty(); }
  // Ends every call and link; what was learned is kept.
  void Stop();
  // Any thread, while the loop runs a Stop: waits, for a while, until gRPC has let go of the links.
  void EndCalls();
  absl::Status readiness() const { return planner_.readiness(); }
  bool draining() const { return planner_.draining(); }
  // The incarnations in the epoch that was begun last; none if this process is alone in it.
  const std::vector<uint64_t>& linked() const { return linked_; }
  DrainCounts drain_counts() const { return planner_.drain_counts(); }
  PlannerLoad load() const { return planner_.load(); }

 private:
  // One of the first three.
  struct Call {
    std::shared_ptr<StartCall> start;
    std::shared_ptr<worker::TokenStream> stream;
    std::shared_ptr<Reservation> reservation;
    PromptContextPtr prompt;
    int64_t begun_us = 0;

    void Refuse(const absl::Status& status) const;
  };

  void Handle(PlannerEvent event) { events_.Raise(std::move(event)); }
  void HandleOne(const PlannerEvent& event);
  // A request that the planner hears of once its structure is compiled where its tokens are drawn.
  struct Asked {
    prefill::Start start;
    Call call;
  };

  static auto Is(uint64_t attempt_id) {
    return [attempt_id](const Asked& asked) { return asked.start.attempt_id == attempt_id; };
  }
  // Ends it if it is held. Rejected: to begin it, so that the planner ends it, whose first plan
  // would wait for the structure.
  template <typename Which>
  bool EndHeld(const Which& which, const absl::Status& status) {
    const std::optional<Asked> asked = compiling_.Remove(which);
    if (asked.has_value()) asked->call.Refuse(Named(status));
    return asked.has_value();
  }
  absl::Status Named(const absl::Status& status) const;
  void Ask(Asked asked);
  bool HoldForLastStage(Asked& asked);
  void OnCompiled(uint64_t attempt_id, const absl::Status& status);
  void Begin(Asked asked);
  void BeginCompiled(int64_t now_us);
  void ObservePrompt(const Call& call, const PrefillOutcome& outcome);
  void EndSlow(uint64_t attempt_id, const Call& call);  // Its stream's reader is too slow.
  void Perform(const IssuePlan& action);
  void CountPlan(const IssuePlan& action);
  void Perform(const PromptDone& action);
  void Perform(const DeliverToken& action);
  void Perform(const FinishRequest& action);
  void Perform(const FailChain& action);
  void Perform(const ObservePlan& action);
  void Perform(const GrantKv& action);
  void Perform(const RevokeKv& action);
  void Perform(const HandOutTicket& action);

  // The wiring and its links (chain_links.cc).
  void HandleWiring(const links::WiringEvent& event);
  int64_t WakeWiring(int64_t now_us);
  void Perform(const links::TryOwnEpoch& action);
  void Perform(const links::OpenLinks& action);
  void Perform(const links::FormOwnGroup& action);
  void Perform(const links::TellGroup& action);
  void Perform(const links::PingStages& action);
  void Perform(const links::CloseLinks& action);
  void Perform(const links::ReportChainUp& action);
  void Perform(const links::ReportChainDown& action);
  void Perform(const links::PassReport& action);
  void Perform(const links::TellOwnStage& action);
  using LinkCall = rpc::ClientStream<v1::LinkRequest, v1::LinkResponse>;
  std::shared_ptr<LinkCall> OpenLink(const worker::PeerWorker& worker, int member);
  std::string Name() const;
  absl::Status OnReady(int member, const v1::LinkReady& ready);
  absl::StatusOr<links::WiringEvent> EventOf(int member, uint64_t epoch,
                                             const v1::LinkResponse& response);
  void OnResponse(int member, uint64_t epoch, const v1::LinkResponse& response);
  // Work, to member 1 and following. Nothing while the chain is not wired.
  void Send(int member, v1::LinkRequest request);
  void Break(const absl::Status& reason) { wiring_events_.Raise(links::ChainFailed{reason}); }
  // For what a rank of a later stage did not do.
  void BreakAt(int stage, int rank, const absl::Status& reason);

  absl::Status BeginOwn(const links::Hello& hello);
  ChainUp UpOf(uint64_t epoch, int page_count) const;
  void SendGrant(int member, v1::DecodeOrder order);
  absl::Status OnGrantReport(const links::PassReport& of, const v1::DecodeReport& report);
  bool decode() const { return options_.place.role == Role::kDecode; }
  absl::Status OnReport(const links::PassReport& of, const v1::LinkResponse& response);
  void SendToMembers(const PlanWithContexts& plan);
  std::vector<KnownCost> KnownCosts() const;

  const Options options_;
  ChainPlanner planner_;
  links::Wiring wiring_;
  SerialEvents<links::WiringEvent> wiring_events_{
      [this](const links::WiringEvent& event) { HandleWiring(event); }};
  rpc::ChannelKeeper channels_;  // For links; a link whose epoch fails at once still connects.
  rpc::CallTracker link_calls_;
  std::vector<std::shared_ptr<LinkCall>> links_;  // In the epoch; member i at i - 1.
  const v1::LinkResponse* arriving_ = nullptr;    // For the ReportHeard that is being handled.
  std::map<uint64_t, Call> calls_;                // By attempt; not yet answered.
  CompilingRequests<Asked> compiling_;
  std::string missing_costs_;               // As was said last.
  std::unique_ptr<ProfileKeeper> profile_;  // Null: --chunk-profile names none.
  // For the epoch that was tried last; by stage.
  std::vector<int> stage_layers_;
  std::vector<InstanceRef> followers_;
  std::vector<uint64_t> linked_;
  uint64_t newest_generation_ = 0;  // That any follower has had, in any epoch.
  std::vector<std::optional<KnownCost>> measured_;
  SerialEvents<PlannerEvent> events_{[this](const PlannerEvent& event) { HandleOne(event); }};
};

}  // namespace baton::prefill

#endif  // SERVICES_PREFILL_CHAIN_CHAIN_SHELL_H_
