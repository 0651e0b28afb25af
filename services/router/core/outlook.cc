// How long a request without a ready pair may wait for one, and its error if none comes.
#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "services/router/core/group.h"
#include "services/router/core/membership.h"

namespace baton::router {
namespace {

// Reasons that WhatIsMissing lists; a thousand unready workers need not all be named.
constexpr size_t kMaxReasons = 4;

// "chain c0", "decode service 1"; of a process alone its name.
std::string NameOf(const GridName& grid) {
  if (grid.role == Role::kPrefill) return "chain " + grid.id;
  return grid.alone ? grid.id : "decode service " + grid.id;
}

// Name of a place in the grid of `any`. A stage is a rank of the pipeline.
std::string NameOfPlace(const WorkerInfo& any, size_t place) {
  const auto ranks = static_cast<size_t>(any.tensor_rank.size);
  if (ranks == 1) return absl::StrCat("rank ", place, " of ", any.pp_size);
  std::string rank = absl::StrCat("tensor-parallel rank ", place % ranks, " of ", ranks);
  if (any.role == Role::kDecode && any.pp_size == 1) return rank;
  return absl::StrCat(rank, " of stage ", place / ranks, " of ", any.pp_size);
}

}  // namespace

// A pair is expected until a grace after the latest change of any of its workers. The pair of the
// chain and the decode that changed last lasts longest, so each side can be checked by itself.
int64_t Membership::PairExpectedUntilUs(int64_t now_us) const {
  Grids grids;
  for (const auto& [id, worker] : workers_) {
    grids.Hold(worker.info.grid_place(), worker.draining ? now_us : worker.changed_us);
  }
  // After those who are here: what came back in another shape doesn't wait for its old places.
  for (const auto& [id, absent] : absent_) {
    if (absent.lost_us + options_.pair_grace_us <= now_us) continue;
    grids.Hold(absent.place, absent.lost_us);
  }
  const std::optional<int64_t> changed_us = grids.PairChangedUs();
  if (!changed_us.has_value()) return 0;
  const int64_t until_us = *changed_us + options_.pair_grace_us;
  return until_us > now_us ? until_us : 0;
}

std::string Membership::WhyNotReady(const Worker& worker) const {
  if (worker.draining) return worker.info.instance.id + " is draining";
  if (!worker.ready) {
    return absl::StrCat(worker.info.instance.id, " is not ready",
                        worker.why_not_ready.empty() ? "" : ": ", worker.why_not_ready);
  }
  if (worker.suspect) return worker.info.instance.id + " does not answer";
  if (worker.probation_until_us != 0) {
    return absl::StrCat(worker.info.instance.id, " has failed ", worker.failures,
                        " times in a row and is left alone for a moment");
  }
  return "";
}

std::string Membership::WhoIsNotConnected() const {
  for (const auto& [name, places] : grids_) {
    if (CanServe(places)) continue;
    return absl::StrCat(NameOf(name), " has not linked its processes yet");
  }
  for (const Pair& pair : WholePairs()) {
    const std::pair ends(pair.chain.stage0.incarnation, pair.decode.incarnation);
    if (!roster_.unconnected.contains(ends)) continue;
    return absl::StrCat("chain ", pair.chain.chain_id, " could not connect to decode service ",
                        pair.decode.id, " a moment ago, nor any other pair");
  }
  return "chains and decode services don't fit one another";
}

// No worker here needs a decode service, or is one.
bool Membership::OnlyColocated() const {
  return !workers_.empty() && std::all_of(workers_.begin(), workers_.end(), [](const auto& entry) {
    return entry.second.info.decodes;
  });
}

const char* Membership::WhatServes() const {
  return OnlyColocated() ? "colocated chain" : "pair of a prefill chain and a decode service";
}

std::string Membership::WhatIsMissing() const {
  std::vector<std::string> reasons;
  const auto add = [&reasons](std::string reason) {
    if (!reason.empty()) reasons.push_back(std::move(reason));
  };
  for (const Role role : {Role::kPrefill, Role::kDecode}) {
    const bool here = std::any_of(grids_.begin(), grids_.end(),
                                  [role](const auto& grid) { return grid.first.role == role; });
    const bool needed = role == Role::kPrefill || !OnlyColocated();
    if (!here && needed) {
      add(role == Role::kPrefill ? "no prefill chain is registered"
                                 : "no decode service is registered");
    }
    for (const auto& [name, places] : grids_) {
      if (name.role != role) continue;
      const Worker& any = **std::find_if(places.begin(), places.end(),
                                         [](const Worker* worker) { return worker != nullptr; });
      for (size_t place = 0; place < places.size(); ++place) {
        if (places[place] == nullptr) {
          add(absl::StrCat(NameOf(name), " lacks ", NameOfPlace(any.info, place)));
        } else {
          add(WhyNotReady(*places[place]));
        }
      }
    }
  }
  if (reasons.empty()) add(WhoIsNotConnected());
  for (const auto& [id, applicant] : applicants_) {
    add(absl::StrCat(id, " is refused for now: ", applicant.refusal.message()));
  }
  const size_t more = reasons.size() > kMaxReasons ? reasons.size() - kMaxReasons : 0;
  reasons.resize(reasons.size() - more);
  std::string text = absl::StrJoin(reasons, "; ");
  if (more > 0) absl::StrAppend(&text, "; and ", more, " more");
  return text;
}

}  // namespace baton::router
