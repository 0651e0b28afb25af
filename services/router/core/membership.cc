#include "services/router/core/membership.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/coverage.h"
#include "common/base/status.h"
#include "services/router/core/fit.h"

namespace baton::router {
namespace {

bool Usable(const Worker& worker) {
  return worker.ready && !worker.draining && !worker.suspect && worker.probation_until_us == 0;
}

// Whether who speaks for a chain or a decode service links these lives of its processes: it may
// have meant another one in one's place, which has just left.
bool LinksAll(const std::vector<const Worker*>& places) {
  const Worker& speaker = *places.front();
  if (places.size() == 1) return true;
  return std::all_of(places.begin(), places.end(), [&speaker](const Worker* worker) {
    return std::binary_search(speaker.linked.begin(), speaker.linked.end(),
                              worker->info.instance.incarnation);
  });
}

}  // namespace

Membership::Membership(MembershipOptions options) : options_(options) {}

absl::Status Membership::Register(const WorkerInfo& worker, int64_t now_us,
                                  std::vector<Worker>& lost) {
  BATON_RETURN_IF_ERROR(CheckWellFormed(worker));
  BATON_RETURN_IF_ERROR(CheckProtocol(worker));
  began_us_ = std::min(began_us_, now_us);
  const auto known = workers_.find(worker.instance.id);
  if (known != workers_.end() && known->second.info == worker) {
    Covered<"membership: a worker joins again">();
    known->second.lease_until_us = now_us + options_.lease_us;  // The answer to the first was lost.
    known->second.excused = false;
    return absl::OkStatus();
  }
  if (known == workers_.end() && static_cast<int>(workers_.size()) >= options_.max_workers) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the cluster has ", workers_.size(), " workers already, the most it takes"));
  }
  if (absl::Status taken = CheckNameIsFree(worker.instance); !taken.ok()) {
    Covered<"membership: a twin asks">();
    Refuse(worker, taken, now_us);
    return taken;
  }
  const absl::Status misfit = CheckFitsMembers(worker);
  if (misfit.ok()) {
    Join(worker, now_us + options_.lease_us, now_us, lost);
    return absl::OkStatus();
  }
  Refuse(worker, misfit, now_us);
  return GiveWayTo(worker, now_us, lost) ? absl::OkStatus() : misfit;
}

absl::Status Membership::CheckNameIsFree(const InstanceRef& instance) const {
  const auto known = workers_.find(instance.id);
  if (known == workers_.end()) return absl::OkStatus();
  const Worker& holder = known->second;
  if (holder.info.instance == instance || holder.suspect) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("another process of the name ", instance.id,
                                                    " lives, at ", holder.info.grpc_address,
                                                    "; two cannot have one --instance-id"));
}

void Membership::Join(const WorkerInfo& worker, int64_t lease_until_us, int64_t now_us,
                      std::vector<Worker>& lost) {
  const auto known = workers_.find(worker.instance.id);
  Covered<"membership: a worker joins">();
  if (known != workers_.end()) Lose(known, lost);
  absent_.erase(worker.instance.id);
  applicants_.erase(worker.instance.id);
  Worker joined;
  joined.info = worker;
  joined.changed_us = now_us;
  joined.lease_until_us = lease_until_us;
  sweep_us_ = std::min(sweep_us_, joined.lease_until_us);
  // No pair changes: it is not ready, and a complete grid admits no worker.
  const Worker& added = workers_.emplace(worker.instance.id, std::move(joined)).first->second;
  Places& places = grids_[worker.grid()];
  // Members agree on the number of places and none is held twice: CheckFit saw to it.
  places.resize(static_cast<size_t>(worker.places()));
  places[static_cast<size_t>(worker.place())] = &added;
  Relist(worker.grid());
}

bool Membership::AllHearOfAll() const {
  return static_cast<int>(workers_.size()) <= options_.told_of_all;
}

void Membership::Relist(const GridName& grid) {
  ++version_;
  relisted_.insert(grid);
}

void Membership::Heartbeat(const InstanceRef& instance, bool ready, const WorkerLoad& load,
                           int64_t now_us, std::vector<uint64_t> linked,
                           std::string why_not_ready) {
  Worker* member = FindToChange(instance);
  BATON_CHECK(member != nullptr) << instance.id << " is no member";
  Worker& worker = *member;
  worker.lease_until_us = now_us + options_.lease_us;
  worker.excused = false;
  std::sort(linked.begin(), linked.end());
  if (worker.ready != ready || worker.linked != linked) worker.changed_us = now_us;
  worker.load = load;
  worker.why_not_ready = std::move(why_not_ready);
  if (worker.ready != ready || worker.linked != linked || worker.suspect) {
    worker.suspect = false;
    worker.linked = std::move(linked);
    worker.ready = ready;
    Changed(worker);
  }
}

absl::StatusOr<InstanceRef> Membership::Drain(const std::string& instance_id) {
  const auto found = workers_.find(instance_id);
  if (found == workers_.end()) {
    return absl::NotFoundError(absl::StrCat("no worker ", instance_id, " is registered"));
  }
  found->second.drain_asked = true;
  SaysDraining(found->second.info.instance);
  return found->second.info.instance;
}

void Membership::SaysDraining(const InstanceRef& instance) {
  Worker* worker = FindToChange(instance);
  if (worker == nullptr) return;
  if (!std::exchange(worker->draining, true)) Changed(*worker);
}

Worker* Membership::FindToChange(const InstanceRef& instance) {
  const auto found = workers_.find(instance.id);
  const bool here = found != workers_.end() && found->second.info.instance == instance;
  return here ? &found->second : nullptr;
}

bool Membership::Suspect(const InstanceRef& instance, int64_t now_us) {
  Worker* worker = FindToChange(instance);
  if (worker == nullptr || std::exchange(worker->suspect, true)) return false;
  Covered<"membership: a worker is suspect">();
  worker->changed_us = now_us;
  Changed(*worker);
  return true;
}

bool Membership::FailedToServe(const InstanceRef& instance, int64_t now_us) {
  Worker* worker = FindToChange(instance);
  if (worker == nullptr) return false;
  if (worker->probation_until_us == 0) {
    ++worker->failures;
    worker->probation_us = std::min(std::max(2 * worker->probation_us, options_.first_probation_us),
                                    options_.longest_probation_us);
    worker->probation_until_us = now_us + worker->probation_us;
    sweep_us_ = std::min(sweep_us_, worker->probation_until_us);
  }
  return Suspect(instance, now_us);
}

void Membership::Served(const InstanceRef& instance) {
  Worker* worker = FindToChange(instance);
  if (worker == nullptr) return;
  worker->failures = 0;
  worker->probation_us = 0;
  if (std::exchange(worker->probation_until_us, 0) != 0) Changed(*worker);
}

void Membership::CouldNotConnect(const Pair& pair, int64_t now_us) {
  const std::pair ends(pair.chain.stage0.incarnation, pair.decode.incarnation);
  Covered<"membership: a pair could not connect">();
  for (const InstanceRef& end : {pair.chain.stage0, pair.decode}) {
    if (Worker* worker = FindToChange(end)) worker->changed_us = now_us;
  }
  unconnected_until_us_[ends] = now_us + options_.unconnected_us;
  sweep_us_ = std::min(sweep_us_, now_us + options_.unconnected_us);
  if (roster_.unconnected.insert(ends).second) ForgetPairs();
}

void Membership::Remember(const WorkerInfo& worker, bool left, int64_t now_us) {
  if (options_.pair_grace_us <= 0) return;
  absent_[worker.instance.id] = {worker.grid_place(), now_us, left};
  if (static_cast<int>(absent_.size()) <= options_.max_workers) return;
  Covered<"membership: a lost worker is forgotten for another">();
  absent_.erase(std::min_element(absent_.begin(), absent_.end(), [](const auto& a, const auto& b) {
    return a.second.lost_us < b.second.lost_us;
  }));
}

void Membership::Lose(WorkerMap::iterator worker, std::vector<Worker>& lost) {
  Changed(worker->second);
  const GridName grid = worker->second.info.grid();
  Places& places = grids_.at(grid);
  places[static_cast<size_t>(worker->second.info.place())] = nullptr;
  const bool over = std::all_of(places.begin(), places.end(),
                                [](const Worker* place) { return place == nullptr; });
  lost.push_back(std::move(worker->second));
  workers_.erase(worker);
  Relist(grid);
  if (over) grids_.erase(grid);
}

void Membership::ExcuseSilence(int64_t until_us) {
  for (auto& [id, worker] : workers_) {
    if (std::exchange(worker.excused, true)) continue;
    worker.lease_until_us = std::max(worker.lease_until_us, until_us);
  }
}

std::vector<Worker> Membership::Expire(int64_t now_us) {
  std::vector<Worker> lost;
  std::erase_if(absent_, [&](const auto& entry) {
    return entry.second.lost_us + options_.pair_grace_us <= now_us;
  });
  std::erase_if(applicants_, [&](const auto& entry) { return entry.second.until_us <= now_us; });
  if (now_us >= sweep_us_) Sweep(now_us, lost);
  return lost;
}

void Membership::Sweep(int64_t now_us, std::vector<Worker>& lost) {
  sweep_us_ = kNeverUs;
  for (auto worker = workers_.begin(); worker != workers_.end();) {
    const auto next = std::next(worker);
    if (worker->second.lease_until_us <= now_us) {
      Covered<"membership: a lease runs out">();
      Remember(worker->second.info, /*left=*/false, now_us);
      Lose(worker, lost);
    } else {
      EndProbation(worker->second, now_us);
      sweep_us_ = std::min(sweep_us_, worker->second.lease_until_us);
    }
    worker = next;
  }
  std::erase_if(unconnected_until_us_, [&](const auto& entry) {
    if (now_us < entry.second) {
      sweep_us_ = std::min(sweep_us_, entry.second);
      return false;
    }
    roster_.unconnected.erase(entry.first);
    ForgetPairs();
    return true;
  });
}

void Membership::EndProbation(Worker& worker, int64_t now_us) {
  if (worker.probation_until_us == 0) return;
  if (now_us < worker.probation_until_us) {
    sweep_us_ = std::min(sweep_us_, worker.probation_until_us);
    return;
  }
  worker.probation_until_us = 0;
  Changed(worker);
}

bool Membership::Remove(const InstanceRef& instance, int64_t now_us, std::vector<Worker>& lost) {
  const auto found = workers_.find(instance.id);
  if (found == workers_.end() || found->second.info.instance != instance) return false;
  Remember(found->second.info, /*left=*/true, now_us);
  Lose(found, lost);
  return true;
}

int64_t Membership::NextDeadlineUs() const {
  int64_t next_us = sweep_us_;
  for (const auto& [id, absent] : absent_) {
    next_us = std::min(next_us, absent.lost_us + options_.pair_grace_us);
  }
  for (const auto& [id, applicant] : applicants_) next_us = std::min(next_us, applicant.until_us);
  return next_us;
}

std::vector<Worker> Membership::Workers() const {
  std::vector<Worker> all;
  all.reserve(workers_.size());
  for (const auto& [id, worker] : workers_) all.push_back(worker);
  return all;
}

std::vector<WorkerInfo> Membership::ListFor(const Worker& worker) const {
  std::vector<WorkerInfo> list;
  if (AllHearOfAll()) {
    list.reserve(workers_.size());
    for (const auto& [id, member] : workers_) list.push_back(member.info);
    return list;
  }
  for (const Worker* member : grids_.at(worker.info.grid())) {
    if (member != nullptr) list.push_back(member->info);
  }
  return list;
}

std::vector<InstanceRef> Membership::TakeRelisted() {
  std::vector<InstanceRef> relisted;
  const std::set<GridName> changed = std::exchange(relisted_, {});
  if (changed.empty()) return relisted;
  // As the cluster outgrows that all hear of all, or the reverse, everybody's list is another.
  const bool to_all = AllHearOfAll();
  if (std::exchange(told_of_all_, to_all) || to_all) {
    for (const auto& [id, member] : workers_) relisted.push_back(member.info.instance);
    return relisted;
  }
  for (const GridName& name : changed) {
    const auto grid = grids_.find(name);
    if (grid == grids_.end()) continue;
    for (const Worker* member : grid->second) {
      if (member != nullptr) relisted.push_back(member->info.instance);
    }
  }
  return relisted;
}

const Worker* Membership::Find(const InstanceRef& instance) const {
  const auto found = workers_.find(instance.id);
  const bool here = found != workers_.end() && found->second.info.instance == instance;
  return here ? &found->second : nullptr;
}

int Membership::UsablePages(const WorkerInfo& member) const {
  int pages = member.page_count;
  if (member.role != Role::kDecode || member.places() == 1) return pages;
  const auto grid = grids_.find(member.grid());
  if (grid == grids_.end()) return pages;
  for (const Worker* rank : grid->second) {
    if (rank != nullptr) pages = std::min(pages, rank->info.page_count);
  }
  return pages;
}

bool Membership::CanServe(const Places& places) {
  const auto serves = [](const Worker* worker) { return worker != nullptr && Usable(*worker); };
  return std::all_of(places.begin(), places.end(), serves) && LinksAll(places);
}

void Membership::Changed(const Worker& worker) {
  ForgetPairs();
  changed_.insert(worker.info.grid());
}

void Membership::ForgetPairs() {
  pair_count_.reset();
  has_pair_.reset();
}

void Membership::Refresh() const {
  for (const GridName& name : changed_) {
    SideTable& table = roster_.TableOf(name.role);
    const auto grid = grids_.find(name);
    if (grid == grids_.end()) {
      table.Remove(name);
      continue;
    }
    const Places& places = grid->second;
    if (!CanServe(places)) {
      table.Rest(name);
      continue;
    }
    table.Put(name, SideOf(name, places));
  }
  changed_.clear();
}

bool Membership::HasReadyPair() const {
  Refresh();
  if (!has_pair_.has_value()) has_pair_ = roster_.HasPair();
  return *has_pair_;
}

size_t Membership::CountReadyPairs() const {
  Refresh();
  if (!pair_count_.has_value()) pair_count_ = roster_.CountPairs();
  return *pair_count_;
}

std::vector<Pair> Membership::WholePairs() const {
  Roster whole;
  for (const auto& [name, places] : grids_) {
    const bool here = std::all_of(places.begin(), places.end(), [](const Worker* worker) {
      return worker != nullptr && !worker->draining;
    });
    if (!here) continue;
    whole.TableOf(name.role).Put(name, SideOf(name, places));
  }
  return whole.Pairs();
}

// By each side's largest: which of them connect counts for little, and that there is a pair.
int64_t Membership::LargestContext() const {
  if (!HasReadyPair()) return 0;
  const auto of = [](const Pair& pair, int64_t context) {
    return std::min(pair.chain.max_prompt_tokens + 1, context);
  };
  int64_t largest = 0;
  for (size_t slot = 0; slot < roster_.chains.slots(); ++slot) {
    const Side* chain = roster_.chains.At(slot);
    if (chain == nullptr) continue;
    const bool alone = chain->pair.colocated();
    const int64_t context = alone ? chain->pair.max_context_tokens : roster_.decodes.most_context();
    largest = std::max(largest, of(chain->pair, context));
  }
  return largest;
}

}  // namespace baton::router
