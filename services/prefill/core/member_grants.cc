#include "services/prefill/core/member_grants.h"

#include <set>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/coverage.h"
#include "common/base/status.h"

namespace baton::prefill {

absl::Status MemberGrants::Check(const KvGrant& grant) const {
  if (grant.slot >= static_cast<uint32_t>(limits_.slots)) {
    return InvalidField("grant.slot", absl::StrCat(grant.slot, " is not one of ", limits_.slots));
  }
  const auto same_slot = held_.lower_bound({grant.slot, 0});
  if (same_slot != held_.end() && same_slot->first.first == grant.slot) {
    return InvalidField("grant.slot", absl::StrCat(grant.slot, " is taken"));
  }
  if (grant.generation <= newest_generation_) {
    return InvalidField("grant.generation",
                        absl::StrCat(grant.generation, " follows ", newest_generation_));
  }
  const int pages = static_cast<int>(grant.pages.size());
  if (grant.first_page < 0 || grant.first_page >= pages) {
    return InvalidField("grant.first_page", absl::StrCat(grant.first_page, " of ", pages));
  }
  std::set<int> unique;
  for (const int page : grant.pages) {
    if (page >= 0 && page < limits_.page_count && unique.insert(page).second) continue;
    return InvalidField("grant.pages",
                        absl::StrCat(page, " comes twice, or is not one of ", limits_.page_count));
  }
  for (const KvWriter& writer : grant.writers) {
    const LayerRange layers = writer.layers;
    const LayerRange own = limits_.place.layers;
    const bool known =
        layers.begin >= own.begin && layers.end > layers.begin && layers.end <= own.end;
    const int ranks = limits_.place.rank.size;
    const bool sound = known && HeadRoutes(limits_.kv_heads, writer.tensor_rank.size, ranks).ok();
    if (sound && RouteBetween(limits_.kv_heads, writer.tensor_rank, limits_.place.rank)) continue;
    return InvalidField(
        "grant.writers",
        absl::StrCat(writer.instance.id, " sends layers [", layers.begin, ", ", layers.end,
                     ") to one with [", own.begin, ", ", own.end, "), or has no heads for it"));
  }
  return absl::OkStatus();
}

absl::Status MemberGrants::Grant(const KvGrant& grant) {
  if (absl::Status status = Check(grant); !status.ok()) {
    Covered<"grants: one makes no sense">();
    return status;
  }
  newest_generation_ = grant.generation;
  held_[{grant.slot, grant.generation}] = {static_cast<int>(grant.pages.size()) - grant.first_page};
  inlet_->Grant(grant);
  return absl::OkStatus();
}

absl::Status MemberGrants::Revoke(uint32_t slot, uint64_t generation) {
  const auto held = held_.find({slot, generation});
  if (held == held_.end() || held->second.revoked) {
    Covered<"grants: what is revoked was not granted">();
    return InvalidField(
        "revoke", absl::StrCat("generation ", generation, " of slot ", slot, " is not granted"));
  }
  held->second.revoked = true;
  inlet_->Revoke(slot, generation);
  return absl::OkStatus();
}

void MemberGrants::Heard(const LeaseEvent& event) {
  if (const auto* drained = std::get_if<KvDrained>(&event)) {
    held_.erase({drained->slot, drained->generation});
  }
}

void MemberGrants::EndEpoch() {
  for (auto& [grant, held] : held_) {
    if (held.revoked) continue;
    Covered<"grants: an epoch ends with some">();
    held.revoked = true;
    inlet_->Revoke(grant.first, grant.second);
  }
}

int MemberGrants::held_pages() const {
  int pages = 0;
  for (const auto& [grant, held] : held_) pages += held.pages;
  return pages;
}

}  // namespace baton::prefill
