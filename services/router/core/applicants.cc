// Who is a member when not all that ask fit one another. Who came first must not win: after a
// router's restart that is chance. See Membership::Register for the rule.
#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "common/base/coverage.h"
#include "services/router/core/fit.h"
#include "services/router/core/group.h"
#include "services/router/core/membership.h"

namespace baton::router {

// A worker that drains is in no new pair, so its model excludes no worker; its place in a chain
// or a decode service does, as long as it is here.
absl::Status Membership::CheckFitsMember(const WorkerInfo& worker, const Worker& member) {
  if (worker.instance.id == member.info.instance.id) return absl::OkStatus();  // To be replaced.
  return member.draining ? CheckPlace(worker, member.info) : CheckFit(worker, member.info);
}

absl::Status Membership::CheckFitsMembers(const WorkerInfo& worker) const {
  for (const auto& [id, member] : workers_) {
    if (absl::Status misfit = CheckFitsMember(worker, member); !misfit.ok()) return misfit;
  }
  return absl::OkStatus();
}

void Membership::Refuse(const WorkerInfo& worker, const absl::Status& misfit, int64_t now_us) {
  const bool is_new = !applicants_.contains(worker.instance.id);
  if (is_new && static_cast<int>(applicants_.size()) >= options_.max_workers) return;
  Applicant& applicant = applicants_[worker.instance.id];
  if (applicant.info.instance != worker.instance) applicant.since_us = now_us;
  applicant.info = worker;
  applicant.refusal = misfit;
  applicant.until_us = now_us + options_.lease_us;
}

// Who drains is of no group, and keeps its place.
void Membership::AddIfItFits(const WorkerInfo& worker, Group& group) const {
  const bool fits = group.Fits(worker) &&
                    std::all_of(workers_.begin(), workers_.end(), [&worker](const auto& entry) {
                      const Worker& member = entry.second;
                      return !member.draining || CheckFitsMember(worker, member).ok();
                    });
  if (fits) group.Add(worker);
}

void Membership::AddApplicants(Group& group, int64_t now_us) const {
  for (const auto& [id, applicant] : applicants_) {
    if (applicant.until_us <= now_us || !CheckNameIsFree(applicant.info.instance).ok()) continue;
    AddIfItFits(applicant.info, group);
  }
}

// The members, and the applicants that fit them since a member is gone but have not asked again.
Group Membership::Incumbents(int64_t now_us) const {
  Group group;
  for (const auto& [id, member] : workers_) {
    if (!member.draining) group.Add(member.info);
  }
  AddApplicants(group, now_us);
  for (const auto& [id, absent] : absent_) {
    if (!absent.left && absent.lost_us + options_.pair_grace_us > now_us) {
      group.grids().Hold(absent.place);
    }
  }
  return group;
}

// `worker`, the other applicants that fit it, then the members that do: by id, so that it is the
// same for everybody who knows the same.
Group Membership::Challengers(const WorkerInfo& worker, int64_t now_us) const {
  Group group;
  AddIfItFits(worker, group);
  AddApplicants(group, now_us);
  for (const auto& [id, member] : workers_) {
    if (!member.draining) AddIfItFits(member.info, group);
  }
  return group;
}

bool Membership::GiveWayTo(const WorkerInfo& worker, int64_t now_us, std::vector<Worker>& lost) {
  const Group incumbents = Incumbents(now_us);
  const bool settled = now_us - began_us_ >= options_.settle_us;
  if (settled && incumbents.CanPair()) return false;
  const Group challengers = Challengers(worker, now_us);
  if (!challengers.workers().contains(worker.instance.id)) return false;
  if (challengers.Rank() <= incumbents.Rank()) return false;
  if (static_cast<int>(challengers.workers().size()) > options_.max_workers) return false;
  std::vector<std::pair<WorkerInfo, int64_t>> joining;  // And until when their leases last.
  for (const auto& [id, challenger] : challengers.workers()) {
    if (Find(challenger->instance) != nullptr) continue;
    const bool asks = challenger->instance == worker.instance;
    joining.emplace_back(*challenger,
                         asks ? now_us + options_.lease_us : applicants_.at(id).until_us);
  }
  for (auto member = workers_.begin(); member != workers_.end();) {
    const auto next = std::next(member);
    if (!member->second.draining && !challengers.workers().contains(member->first)) {
      Covered<"membership: a worker gives way">();
      member->second.displaced = true;
      Lose(member, lost);
    }
    member = next;
  }
  for (const auto& [challenger, lease_until_us] : joining) {
    Join(challenger, lease_until_us, now_us, lost);
  }
  return true;
}

}  // namespace baton::router
