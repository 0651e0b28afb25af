#include "tests/sim/decode_rank.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "tests/sim/content.h"

namespace baton::sim {
namespace {

prefill::StageOptions StageOptionsOf(const Topology& topology, int node) {
  prefill::StageOptions options;
  options.stage = topology.DecodeStageOf(node);
  options.stages = topology.decode_stages;
  options.activation_credits = topology.activation_credits;
  options.tensor_rank = topology.DecodeRankOf(node);
  options.kv_heads = topology.kv_heads;
  options.page_size = topology.page_size;
  // A colocated chain has as many plans of prompts under way as any chain.
  if (!topology.IsColocated(node)) options.plan_limit = 2 * topology.max_running;
  options.plans_in_flight = topology.plans_in_flight;
  return options;
}

prefill::MemberGrantLimits GrantLimitsOf(const Topology& topology, int node) {
  return {{topology.DecodeLayersOf(node), topology.DecodeRankOf(node)},
          topology.kv_heads,
          topology.PagesOf(node),
          topology.max_running};
}

}  // namespace

links::ChainPlace DecodePlaceOf(const Topology& topology, int node, const InstanceRef& self) {
  links::ChainPlace place;
  place.chain_id = topology.DecodeId(node);
  place.stage = topology.DecodeStageOf(node);
  place.stages = topology.decode_stages;
  place.layers = topology.layers;
  place.self = {self, topology.DecodeLayersOf(node), topology.DecodeRankOf(node)};
  place.role = topology.RoleOf(node);
  return place;
}

DecodeRank::DecodeRank(World& world, const Topology& topology, StageGroups& groups, int node,
                       uint64_t incarnation, DecodeSteps::Hooks steps)
    : world_(world),
      topology_(topology),
      groups_(groups),
      node_(node),
      self_{topology.InstanceId(world.name(node), incarnation), incarnation},
      member_(topology.DecodeMemberOf(node)),
      stage_index_(topology.DecodeStageOf(node)),
      rank_(topology.DecodeRankOf(node)),
      neighbours_(stage_index_, rank_),
      stage_(StageOptionsOf(topology, node)),
      memory_(topology.PagesOf(node), topology.DecodeLayersOf(node).size(), topology.page_size,
              BitsOf(topology.kv_heads, rank_)),
      group_(world, topology, groups, node),
      steps_(world, topology, groups, node, self_.id, memory_, group_, std::move(steps)),
      kv_(world, topology, node, self_, memory_,
          {[this](const LeaseEvent& event) {
             grants_.Heard(event);
             OnLease(event);
           },
           [this](uint64_t generation) { return SequenceOfGrant(generation); },
           [this](int page) { return steps_.Uses(page); }}),
      grants_(GrantLimitsOf(topology, node), &kv_) {}

absl::Status DecodeRank::Begin(const links::Hello& hello) {
  if (!grants_.AtRest()) return absl::UnavailableError("pages of the last epoch are in use");
  BATON_RETURN_IF_ERROR(
      neighbours_.Begin(hello, stage_.Quiet(), [this](const InstanceRef& instance) {
        const auto endpoint = membership_->FindPeer(instance);
        if (!endpoint.has_value()) membership_->Want({instance});
        return endpoint;
      }));
  if (memory_.AnyHeld() || !steps_.idle()) {
    world_.Violate(absl::StrCat(self_.id, " begins an epoch while its pages are in use"));
  }
  memory_.FreeAll();
  epoch_ = hello.epoch;
  members_.clear();
  for (const KvWriter& member : hello.members) members_.push_back(member.instance);
  steps_.Begin(epoch_, members_);
  HandleStage(prefill::EpochBegan{epoch_});
  return absl::OkStatus();
}

void DecodeRank::EndEpoch(const absl::Status& why) {
  epoch_ = 0;
  neighbours_.End();
  group_.Leave(why);
  HandleStage(prefill::EpochEnded{});
}

void DecodeRank::HandleOne(const prefill::StageEvent& event) {
  if (!world_.violation().empty()) return;
  std::vector<prefill::StageAction> actions;
  stage_.Handle(event, world_.now_us(), actions);
  for (const prefill::StageAction& action : actions) Perform(action);
}

void DecodeRank::Perform(const prefill::StageAction& action) {
  if (const auto* run = std::get_if<prefill::RunCompute>(&action)) {
    steps_.Run(*run);
  } else if (const auto* done = std::get_if<prefill::ReportPlanDone>(&action)) {
    OnReport(done->epoch,
             prefill::StagePlanDone{stage_index_, done->epoch, done->done, rank_.rank});
  } else if (const auto* closed = std::get_if<prefill::ReportRequestClosed>(&action)) {
    OnReport(closed->epoch,
             prefill::StageRequestClosed{stage_index_, closed->epoch, closed->closed, rank_.rank});
  } else if (const auto* send = std::get_if<prefill::SendActivations>(&action)) {
    Pass(*send);
  } else if (const auto* credit = std::get_if<prefill::ReturnCredit>(&action)) {
    ReturnCredit(*credit);
  } else if (const auto* end = std::get_if<prefill::EndEpoch>(&action)) {
    world_.Trace(node_, absl::StrCat("END EPOCH: ", end->status.message()));
    world_.After(node_, 1, "end epoch", [this, status = end->status, epoch = epoch_] {
      if (epoch == epoch_ && epoch != 0) FailEpoch(status);
    });
  } else {
    world_.Violate(self_.id + " hands KV on");
  }
}

// ---- Between stages ----

void DecodeRank::CheckNeighbours() {
  const absl::Status gone = neighbours_.Check(
      [this](const InstanceRef& instance) { return membership_->FindPeer(instance); });
  if (!gone.ok()) FailEpoch(gone);
}

void DecodeRank::FailLater(const absl::Status& status) {
  world_.After(node_, 1, "epoch fails", [this, status, epoch = epoch_] {
    if (epoch == epoch_ && epoch != 0) FailEpoch(status);
  });
}

void DecodeRank::Pass(const prefill::SendActivations& send) {
  const auto ended = [this, send](const absl::Status& status) {
    world_.After(node_, 1, "activations sent", [this, send, status] {
      HandleStage(prefill::ActivationsSent{send.epoch, send.number, status});
    });
  };
  if (send.epoch != epoch_ || !membership_->Lives(neighbours_.next()->endpoint)) {
    return ended(absl::UnavailableError("the endpoint is dead"));
  }
  const auto output =
      std::make_shared<const DecodeSteps::Activations>(steps_.TakeOutput(send.epoch, send.number));
  int tokens = 0;
  for (const DecodeSteps::Passed& row : output->rows) tokens += static_cast<int>(row.x.size());
  if (tokens != send.token_count) {
    return world_.Violate(absl::StrCat(self_.id, " passes on ", send.token_count, " tokens of ",
                                       tokens, " of plan ", send.number));
  }
  membership_->SendOver<DecodeRank>(
      neighbours_.next()->endpoint, 1, "activations", [] {},
      [output](DecodeRank& peer, bool corrupt) { peer.ReceiveActivations(*output, corrupt); },
      ended);
}

void DecodeRank::ReturnCredit(const prefill::ReturnCredit& credit) {
  if (credit.epoch != epoch_) return;
  if (!membership_->Lives(neighbours_.previous()->endpoint)) {
    return FailLater(absl::UnavailableError("the endpoint is dead"));
  }
  membership_->SendOver<DecodeRank>(
      neighbours_.previous()->endpoint, 0, "credit", [] {},
      [credit](DecodeRank& peer, bool) { peer.ReceiveCredit(credit.epoch, credit.number); },
      [this, epoch = epoch_](const absl::Status& status) {
        if (!status.ok() && epoch == epoch_) FailLater(status);
      });
}

void DecodeRank::ReceiveActivations(const DecodeSteps::Activations& activations, bool corrupt) {
  if (activations.epoch != epoch_ || epoch_ == 0) return;
  if (corrupt) return FailEpoch(absl::DataLossError("activations are damaged"));
  steps_.PutInput(activations);
  HandleStage(prefill::ActivationsArrived{activations.epoch, activations.number});
}

void DecodeRank::ReceiveCredit(uint64_t epoch, uint64_t number) {
  if (epoch != epoch_ || epoch == 0) return;
  HandleStage(prefill::CreditReturned{epoch, number});
}

// What is drawn, where the last layer has run.
prefill::ComputeFinished DecodeRank::ResultOf(const DecodeSteps::Ended& ended) {
  prefill::ComputeFinished done{ended.epoch, ended.number, ended.status, ended.compute_us, {}, {}};
  if (stage_index_ + 1 < topology_.decode_stages || rank_.rank > 0) return done;
  const double fails = world_.faults().compute_fail / 10;
  for (const DecodeSteps::Row& row : ended.rows) {
    if (!ended.status.ok()) continue;
    if (TellsPrompt(row)) done.prompts.push_back(TellPrompt(row));
    if (!row.run.item.draws) continue;
    if (world_.random().Chance(fails)) {
      if (world_.random().Chance(0.5)) {
        done.drawn.emplace_back(absl::InternalError("a logit is not finite"));
      } else {
        const int32_t none = world_.random().Chance(0.5) ? -1 : kVocabulary;
        done.drawn.emplace_back(SampledToken{none, 0, {}});
      }
      continue;
    }
    done.drawn.emplace_back(
        DrawToken(row.x.back(), row.sequence->inputs.prompt_id, row.run.generated));
  }
  return done;
}

// A colocated chain reads the prompt itself, and tells of it once: a text that is read again is not
// told.
bool DecodeRank::TellsPrompt(const DecodeSteps::Row& row) const {
  const auto& inputs = row.sequence->inputs;
  return topology_.IsColocated(node_) && WantsPromptTokens(inputs.prompt_id) && !row.run.decodes &&
         row.run.generated == 0;
}

prefill::ComputeFinished::Prompt DecodeRank::TellPrompt(const DecodeSteps::Row& row) {
  const auto& inputs = row.sequence->inputs;
  prefill::ComputeFinished::Prompt prompt;
  prompt.told.attempt_id = row.run.item.attempt_id;
  prompt.told.first = row.begin() + 1;
  const int end = std::min(row.end() + 1, inputs.prompt_tokens);
  for (int i = prompt.told.first; i < end; ++i) {
    const uint64_t before = row.x[static_cast<size_t>(i - 1 - row.begin())];
    prompt.told.tokens.push_back(TellPromptToken(inputs.prompt_id, i, before));
  }
  return prompt;
}

void DecodeRank::FreePage(uint64_t epoch, int page) {
  if (epoch != epoch_) return;
  if (const std::string used = memory_.Free(page); !used.empty()) {
    world_.Violate(absl::StrCat("I1: ", self_.id, ": ", used));
  }
}

absl::Status DecodeRank::CheckInvariants() const {
  BATON_RETURN_IF_ERROR(membership_->CheckInvariants());
  BATON_RETURN_IF_ERROR(stage_.CheckInvariants());
  return kv_.leases().CheckInvariants();
}

bool DecodeRank::AtRest(std::string& why_not) const {
  const LeaseTable& leases = kv_.leases();
  if (stage_.AtRest() && grants_.AtRest() && leases.AtRest()) return true;
  why_not =
      absl::StrCat("a decode rank holds ", stage_.held_pages(), " and ", grants_.held_pages(),
                   " pages, grants ", leases.active_grants(), " draining ", leases.draining());
  return false;
}

}  // namespace baton::sim
