#include "services/router/core/fair_queue.h"

#include <algorithm>
#include <iterator>

#include "common/base/check.h"

namespace baton::router {

void FairQueue::Come(const std::string& tenant) {
  auto known = shares_.find(tenant);
  if (known == shares_.end()) {
    if (shares_.size() >= kMostTenants + present_) ForgetAbsent();
    known = shares_.try_emplace(tenant).first;
    known->second.tenant = known->first;
    known->second.served = average_;
  }
  present_ += known->second.present++ == 0 ? 1 : 0;
}

void FairQueue::Go(const std::string& tenant) {
  Share& share = shares_.at(tenant);
  BATON_CHECK(share.present > 0) << "tenant " << tenant << " has no request here";
  present_ -= --share.present == 0 ? 1 : 0;
}

// What they were served beyond the average is forgotten too.
void FairQueue::ForgetAbsent() {
  std::erase_if(shares_, [](const auto& entry) { return entry.second.present == 0; });
}

double FairQueue::Lifted(const Share& share) const {
  return std::max(share.served, through_ - kMostSaved);
}

void FairQueue::Add(const std::string& tenant, Turn turn, uint64_t call_id) {
  Share& share = shares_.at(tenant);
  if (share.waiting.empty()) {
    share.served = Lifted(share);
    order_.insert(PlaceOf(share));
  }
  const bool added = share.waiting.emplace(turn, call_id).second;
  BATON_CHECK(added) << "call " << call_id << " waits in a turn that another has";
  ++size_;
}

void FairQueue::Remove(const std::string& tenant, Turn turn) {
  const auto known = shares_.find(tenant);
  if (known == shares_.end() || known->second.waiting.erase(turn) == 0) return;
  --size_;
  if (known->second.waiting.empty()) order_.erase(PlaceOf(known->second));
}

void FairQueue::Set(Share& share, double served) {
  const bool waits = !share.waiting.empty();
  if (waits) order_.erase(PlaceOf(share));
  share.served = served;
  share.last = ++services_;
  if (waits) order_.insert(PlaceOf(share));
}

double FairQueue::Begin(const std::string& tenant, int64_t work) {
  Share& share = shares_.at(tenant);
  const double tag = Lifted(share);
  Set(share, tag + static_cast<double>(work));
  share.begun.insert(tag);
  return tag;
}

void FairQueue::Through(const std::string& tenant, int64_t work, int64_t more) {
  // The first of the tenant's tags, whichever of its prompts this is. Prompts may overtake one
  // another on their way to a chain, and by the tag of one that has, all of a flood would count as
  // computed: the next tenant would begin behind it.
  auto& begun = shares_.at(tenant).begun;
  BATON_CHECK(!begun.empty()) << "nothing of tenant " << tenant << " has begun";
  through_ = std::max(through_, *begun.begin());
  begun.erase(begun.begin());
  average_ =
      std::max(average_ + static_cast<double>(work) / static_cast<double>(present_), through_);
  if (more != 0) Serve(tenant, more);
}

void FairQueue::Drop(const std::string& tenant) {
  auto& begun = shares_.at(tenant).begun;
  BATON_CHECK(!begun.empty()) << "nothing of tenant " << tenant << " has begun";
  begun.erase(std::prev(begun.end()));
}

void FairQueue::Serve(const std::string& tenant, int64_t work) {
  Share& share = shares_.at(tenant);
  BATON_CHECK(share.present > 0) << "tenant " << tenant << " has no request here";
  Set(share, share.served + static_cast<double>(work));
  average_ += static_cast<double>(work) / static_cast<double>(present_);
}

size_t FairQueue::CountOf(const std::string& tenant) const {
  const auto known = shares_.find(tenant);
  return known == shares_.end() ? 0 : known->second.waiting.size();
}

size_t FairQueue::CountAhead(const std::string& tenant) const {
  const size_t own = CountOf(tenant);
  size_t ahead = 0;
  for (const Place& place : order_) {
    const Share* share = std::get<const Share*>(place);
    ahead += share->tenant == tenant ? own : std::min(share->waiting.size(), own + 1);
  }
  return ahead;
}

std::optional<uint64_t> FairQueue::GivesWayTo(const std::string& tenant) const {
  const Share* longest = nullptr;
  for (const Place& place : order_) {
    const Share* share = std::get<const Share*>(place);
    if (longest == nullptr || share->waiting.size() > longest->waiting.size()) longest = share;
  }
  if (longest == nullptr || longest->waiting.size() < CountOf(tenant) + 2) return std::nullopt;
  return std::prev(longest->waiting.end())->second;
}

std::vector<uint64_t> FairQueue::All() const {
  std::vector<uint64_t> calls;
  calls.reserve(size_);
  for (const Place& place : order_) {
    for (const auto& [turn, call_id] : std::get<const Share*>(place)->waiting) {
      calls.push_back(call_id);
    }
  }
  return calls;
}

int64_t FairTurns::Give(const InstanceRef& chain, uint64_t attempt_id, const std::string& tenant,
                        double tag, int64_t now_us) {
  std::vector<Given>& given = given_[chain];
  int64_t from_us = now_us;
  for (const Given& other : given) {
    if (other.tag <= tag || other.tenant == tenant) continue;
    from_us = std::min(from_us, other.from_us - kUncertainUs);
  }
  given.push_back({attempt_id, tenant, tag, from_us});
  return now_us - from_us;
}

void FairTurns::Through(const InstanceRef& chain, uint64_t attempt_id) {
  const auto of_chain = given_.find(chain);
  if (of_chain == given_.end()) return;
  std::erase_if(of_chain->second,
                [attempt_id](const Given& given) { return given.attempt_id == attempt_id; });
  if (of_chain->second.empty()) given_.erase(of_chain);
}

}  // namespace baton::router
