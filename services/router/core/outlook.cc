// What a request that finds no ready pair may hope for, and what it is told.
#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "services/router/core/membership.h"

namespace baton::router {
namespace {

// Reasons that WhatIsMissing lists; a thousand unready workers need not all be named.
constexpr size_t kMaxReasons = 4;

// The places of one chain that are here or expected back.
struct Places {
  int size = 0;
  std::set<int> held;
  int64_t changed_us = 0;  // Last.

  void Hold(int place, int64_t at_us) {
    held.insert(place);
    changed_us = std::max(changed_us, at_us);
  }
};

// Of a chain that `any` is in. A stage is a rank of the pipeline.
std::string NameOfPlace(const WorkerInfo& any, size_t place) {
  const auto ranks = static_cast<size_t>(any.tensor_rank.size);
  if (ranks == 1) return absl::StrCat("rank ", place, " of ", any.pp_size);
  return absl::StrCat("tensor-parallel rank ", place % ranks, " of ", ranks, " of stage ",
                      place / ranks, " of ", any.pp_size);
}

}  // namespace

// A pair's hope ends a grace after the latest change of any of its workers. The pair of the chain
// and the decode that changed last has the longest, so the two sides can be looked at one by one.
int64_t Membership::PairExpectedUntilUs(int64_t now_us) const {
  constexpr int64_t kNone = std::numeric_limits<int64_t>::min();
  std::map<std::string, Places> chains;
  int64_t decode_us = kNone;
  for (const auto& [id, worker] : workers_) {
    const int64_t changed_us = worker.draining ? now_us : worker.changed_us;
    if (worker.info.role == Role::kDecode) {
      decode_us = std::max(decode_us, changed_us);
      continue;
    }
    Places& places = chains[worker.info.chain_id];
    places.size = worker.info.places();
    places.Hold(worker.info.place(), changed_us);
  }
  for (const auto& [id, absent] : absent_) {
    if (absent.lost_us + options_.pair_grace_us <= now_us) continue;
    if (absent.role == Role::kDecode) {
      decode_us = std::max(decode_us, absent.lost_us);
      continue;
    }
    Places& places = chains[absent.chain_id];
    if (places.size == 0) places.size = absent.places;
    // A chain that came back in another shape doesn't wait for its old stages.
    if (places.size == absent.places) places.Hold(absent.place, absent.lost_us);
  }
  int64_t chain_us = kNone;
  for (const auto& [id, places] : chains) {
    const bool complete = static_cast<int>(places.held.size()) == places.size;
    if (complete) chain_us = std::max(chain_us, places.changed_us);
  }
  if (decode_us == kNone || chain_us == kNone) return 0;
  const int64_t until_us = std::max(decode_us, chain_us) + options_.pair_grace_us;
  return until_us > now_us ? until_us : 0;
}

std::string Membership::WhyNotReady(const Worker& worker) const {
  if (worker.draining) return worker.info.instance.id + " is draining";
  if (!worker.ready) return worker.info.instance.id + " is not ready";
  if (worker.suspect) return worker.info.instance.id + " does not answer";
  if (worker.probation_until_us != 0) {
    return absl::StrCat(worker.info.instance.id, " has failed ", worker.failures,
                        " times in a row and is left alone for a moment");
  }
  return "";
}

std::string Membership::WhoIsNotConnected() const {
  for (const auto& [id, worker] : workers_) {
    for (const auto& [other_id, other] : workers_) {
      if (!std::binary_search(worker.unconnected.begin(), worker.unconnected.end(),
                              other.info.instance.incarnation)) {
        continue;
      }
      return absl::StrCat(id, " has no connection to ", other_id, " at ", other.info.grpc_address,
                          ": chains and decode services need one to one another");
    }
  }
  return "chains and decode services have not connected to one another yet";
}

std::string Membership::WhatIsMissing() const {
  std::vector<std::string> reasons;
  const auto add = [&reasons](std::string reason) {
    if (!reason.empty()) reasons.push_back(std::move(reason));
  };
  const std::map<std::string, Stages> chains = Chains();
  if (chains.empty()) add("no prefill chain is registered");
  for (const auto& [chain_id, stages] : chains) {
    const Worker& any = **std::find_if(stages.begin(), stages.end(),
                                       [](const Worker* stage) { return stage != nullptr; });
    for (size_t place = 0; place < stages.size(); ++place) {
      if (stages[place] == nullptr) {
        add(absl::StrCat("chain ", chain_id, " lacks ", NameOfPlace(any.info, place)));
      } else {
        add(WhyNotReady(*stages[place]));
      }
    }
  }
  bool any_decode = false;
  for (const auto& [id, worker] : workers_) {
    if (worker.info.role != Role::kDecode) continue;
    any_decode = true;
    add(WhyNotReady(worker));
  }
  if (!any_decode) add("no decode service is registered");
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
