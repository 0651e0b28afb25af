#include "tests/sim/decode_rank.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace baton::sim {
namespace {

prefill::StageOptions StageOptionsOf(const Topology& topology, int node) {
  prefill::StageOptions options;
  options.tensor_rank = topology.DecodeRankOf(node);
  options.kv_heads = topology.kv_heads;
  options.page_size = topology.page_size;
  options.plan_limit = 2 * topology.max_running;
  options.plans_in_flight = topology.plans_in_flight;
  return options;
}

prefill::RankGrantLimits GrantLimitsOf(const Topology& topology, int node) {
  return {topology.DecodeRankOf(node), topology.kv_heads, topology.layers, topology.PagesOf(node),
          topology.max_running};
}

}  // namespace

links::ChainPlace DecodePlaceOf(const Topology& topology, int node, const InstanceRef& self) {
  links::ChainPlace place;
  place.chain_id = topology.DecodeId(node);
  place.layers = topology.layers;
  place.self = {self, {0, topology.layers}, topology.DecodeRankOf(node)};
  place.role = Role::kDecode;
  return place;
}

DecodeRank::DecodeRank(World& world, const Topology& topology, StageGroups& groups, int node,
                       uint64_t incarnation, DecodeSteps::Hooks steps)
    : world_(world),
      topology_(topology),
      groups_(groups),
      node_(node),
      self_{topology.InstanceId(world.name(node), incarnation), incarnation},
      rank_(topology.DecodeRankOf(node)),
      stage_(StageOptionsOf(topology, node)),
      memory_(topology.PagesOf(node), topology.layers, topology.page_size,
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
  if (!grants_.AtRest() || !stage_.Quiet()) {
    return absl::UnavailableError("pages of the last epoch are in use");
  }
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
    OnReport(done->epoch, prefill::StagePlanDone{0, done->epoch, done->done, rank_.rank});
  } else if (const auto* closed = std::get_if<prefill::ReportRequestClosed>(&action)) {
    OnReport(closed->epoch,
             prefill::StageRequestClosed{0, closed->epoch, closed->closed, rank_.rank});
  } else if (const auto* end = std::get_if<prefill::EndEpoch>(&action)) {
    world_.Trace(node_, absl::StrCat("END EPOCH: ", end->status.message()));
    world_.After(node_, 1, "end epoch", [this, status = end->status, epoch = epoch_] {
      if (epoch == epoch_ && epoch != 0) FailEpoch(status);
    });
  } else {
    world_.Violate(self_.id + " hands activations or KV on");
  }
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
