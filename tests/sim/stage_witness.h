// What stage.h and kv_outbox.h promise, held against everything that a stage's two cores do: plans
// in order, each page of a prompt handed over once and from where the plan has put it, a commit
// behind all of them, and silence after an end.
#ifndef TESTS_SIM_STAGE_WITNESS_H_
#define TESTS_SIM_STAGE_WITNESS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "services/prefill/core/kv_outbox.h"
#include "services/prefill/core/stage.h"
#include "tests/sim/topology.h"
#include "tests/sim/world.h"

namespace baton::sim {

class StageWitness {
 public:
  StageWitness(World& world, const Topology& topology, std::string self,
               const prefill::StageOptions& stage, const prefill::KvOutboxOptions& outbox);

  void Begin(uint64_t epoch);
  void End() { ended_ = true; }  // The epoch ends, on either side.
  bool ended() const { return ended_; }
  void Arrived(const prefill::Plan& plan);
  // The stage's events and actions.
  void Hear(const prefill::KvSent& event);
  void Hear(const prefill::ComputeFinished& event);
  template <typename Other>
  void Hear(const Other&) {}
  void See(const prefill::RunCompute& action);
  void See(const prefill::SendKv& action);
  void See(const prefill::SendCommit& action);
  void See(const prefill::CancelKv& action);
  void See(const prefill::ReportPlanDone& action);
  void See(const prefill::ReportRequestClosed& action);
  // The outbox's actions and the ends of its messages.
  void See(const prefill::SendKvMessage& action);
  void See(const prefill::SendCommitMessage& action);
  void Ended(uint64_t message_id, const absl::Status& status);

 private:
  struct Request {
    prefill::PlanOpen open;
    size_t pages_sent = 0;        // By the stage, to the outbox.
    std::set<size_t> pieces_end;  // Pages that the stage's pieces of it end before.
    // (page, part) of the messages that left, by the rank of the decode service.
    std::map<InstanceRef, std::set<std::pair<int, int>>> parts;
    bool commit_due = false;
    std::set<InstanceRef> commits_sent;  // To these ranks.
    bool over = false;                   // Cancelled or closed by the stage.
    bool lost = false;                   // A message has failed; the stage is told a little later.
    bool closed = false;
    // What its report has to say.
    int64_t bytes = 0;
    int64_t transfer_us = 0;
    int64_t computed_us = -1;  // The last chunk; -1: not yet.
    int64_t exposed_us = 0;
  };
  struct Message {
    uint64_t attempt_id = 0;
    InstanceRef decode;
    size_t bytes = 0;
  };

  Request* Find(uint64_t attempt_id);
  // The ranks of the ticket's decode service that this one has heads for.
  std::set<InstanceRef> ReceiversOf(const Ticket& ticket) const;
  int PlaceIn(const Ticket& ticket, const InstanceRef& decode) const;
  template <typename Sent>
  static bool IsOf(const Sent& sent, const Ticket& ticket);
  size_t PageBytes(int place) const;
  void CheckWindow(const InstanceRef& decode);
  void CheckNotComputed(uint64_t attempt_id);
  void Complain(uint64_t attempt_id, const std::string& what);

  World& world_;
  const Topology& topology_;
  const std::string self_;
  const bool draws_;      // Its commits carry first tokens.
  const bool writes_kv_;  // It hands its heads over.
  const LayerRange layers_;
  const int rank_;
  const prefill::KvOutboxOptions outbox_;
  uint64_t epoch_ = 0;
  bool ended_ = true;
  uint64_t last_arrived_ = 0;
  uint64_t last_done_ = 0;
  std::map<uint64_t, prefill::Plan> plans_;      // Arrived, not done.
  std::map<uint64_t, Request> requests_;         // The epoch's requests.
  std::map<uint64_t, uint64_t> sends_;           // Send -> attempt, of this epoch.
  std::map<uint64_t, int64_t> compute_us_;       // Plans that are computed and not done.
  std::map<uint64_t, prefill::Plan> submitted_;  // With the executor, of the epoch.
  std::map<uint64_t, Message> messages_;         // Under way.
};

}  // namespace baton::sim

#endif  // TESTS_SIM_STAGE_WITNESS_H_
