#include "tests/sim/follower_witness.h"

#include <algorithm>
#include <set>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace baton::sim {
namespace {

// An action in words, so that two can be compared and told apart in a complaint.
std::string Describe(const decode::GrantKv& action) {
  std::string text =
      absl::StrCat("grant rank ", action.rank, " slot ", action.grant.slot, " generation ",
                   action.grant.generation, " pages ", absl::StrJoin(action.grant.pages, ","));
  for (const KvWriter& writer : action.grant.writers) {
    absl::StrAppend(&text, " ", writer.instance.id, "[", writer.layers.begin, ",",
                    writer.layers.end, ")", writer.tensor_rank.rank);
  }
  if (action.grant.deadline_us != kNeverUs) absl::StrAppend(&text, " with a deadline");
  return text;
}

std::string Describe(const decode::RevokeKv& action) {
  return absl::StrCat("revoke slot ", action.slot, " generation ", action.generation);
}

std::string Describe(const decode::RunStep& action) {
  std::string text = absl::StrCat("step ", action.step);
  for (const auto& row : action.sequences) {
    absl::StrAppend(&text, " slot ", row.slot, " generation ", row.generation, " token ", row.token,
                    " at ", row.position, " pages ", absl::StrJoin(row.pages, ","));
  }
  return text;
}

std::string Describe(const decode::TellGranted& action) {
  return absl::StrCat("tell granted ", action.slot, " ", action.generation);
}

std::string Describe(const decode::TellLease& action) {
  const std::pair<uint32_t, uint64_t> of = std::visit(
      [](const auto& event) { return std::pair(event.slot, event.generation); }, action.event);
  return absl::StrCat("tell event ", action.event.index(), " of ", of.first, " ", of.second);
}

std::string Describe(const decode::FailEpoch& action) {
  return absl::StrCat("fail: ", absl::StatusCodeToString(action.status.code()));
}

}  // namespace

// ---- Events ----

void FollowerWitness::Before(const decode::FollowerEvent& event, bool nonsense) {
  nonsense_ = nonsense;
  due_.clear();
  std::visit([this](const auto& e) { Hear(e); }, event);
}

void FollowerWitness::Hear(const decode::EpochBegan&) {
  if (begun_ || !grants_.empty() || !steps_.empty()) {
    Complain("an epoch begins over what is left of the last one");
  }
  begun_ = true;
}

void FollowerWitness::Hear(const decode::EpochOver&) {
  if (!std::exchange(begun_, false)) return;
  for (auto& [slot, grant] : grants_) {
    if (std::exchange(grant.revoked, true)) continue;
    due_.push_back(Describe(decode::RevokeKv{slot, grant.order.generation}));
  }
}

void FollowerWitness::Hear(const decode::OrderHeard& event) {
  if (!begun_) return;
  if (nonsense_) {
    due_.push_back(Describe(decode::FailEpoch{absl::InvalidArgumentError("")}));
    return;
  }
  std::visit([this](const auto& order) { Obey(order); }, event.order);
}

void FollowerWitness::Obey(const decode::GrantOrder& order) {
  if (order.generation <= newest_generation_) {
    Complain(absl::StrCat("generation ", order.generation, " is used again, after ",
                          newest_generation_));
  }
  newest_generation_ = order.generation;
  CheckWriters(order);
  decode::GrantKv action;
  action.rank = rank_.rank;
  action.grant.slot = order.slot;
  action.grant.generation = order.generation;
  action.grant.pages = order.pages;
  action.grant.pages.resize(static_cast<size_t>(order.prompt_pages));
  action.grant.writers = order.writers;
  due_.push_back(Describe(action));
  grants_[order.slot] = {order, false};
  if (steps_.empty()) return MustTell(order.slot, order.generation);
  steps_.back().granted_after.emplace_back(order.slot, order.generation);
}

// Together they bring each of this rank's heads of every layer once.
void FollowerWitness::CheckWriters(const decode::GrantOrder& order) {
  std::map<std::pair<int, int>, int> brought;  // (Layer, head)
  for (const KvWriter& writer : order.writers) {
    if (!topology_.WritesTo(writer.tensor_rank.rank, rank_.rank)) {
      Complain(absl::StrCat(writer.instance.id, " is to write to it, and has nothing for it"));
    }
    const IndexRange heads = topology_.CommonHeads(writer.tensor_rank.rank, rank_.rank);
    for (int layer = writer.layers.begin; layer < writer.layers.end; ++layer) {
      for (int head = heads.begin; head < heads.end; ++head) ++brought[{layer, head}];
    }
  }
  const auto all =
      static_cast<size_t>(topology_.layers * KvHeadsOf(topology_.kv_heads, rank_).size());
  const bool once = std::all_of(brought.begin(), brought.end(),
                                [](const auto& entry) { return entry.second == 1; });
  if (brought.size() != all || !once) Complain("its writers bring a head twice, or not at all");
}

void FollowerWitness::Obey(const decode::RevokeOrder& order) {
  const auto grant = grants_.find(order.slot);
  if (grant == grants_.end() || grant->second.order.generation != order.generation ||
      std::exchange(grant->second.revoked, true)) {
    return Complain(
        absl::StrCat("is to revoke generation ", order.generation, ", which it does not have"));
  }
  due_.push_back(Describe(decode::RevokeKv{order.slot, order.generation}));
}

void FollowerWitness::Obey(const decode::StepOrder& order) {
  decode::RunStep step;
  step.step = order.step;
  for (const decode::StepOrder::Row& row : order.rows) {
    const auto grant = grants_.find(row.slot);
    if (grant == grants_.end() || grant->second.order.generation != row.generation ||
        grant->second.revoked) {
      return Complain(
          absl::StrCat("is to step generation ", row.generation, ", which it does not have"));
    }
    decode::RunStep::Sequence sequence;
    sequence.slot = row.slot;
    sequence.generation = row.generation;
    sequence.token = row.token;
    sequence.position = row.position;
    if (row.new_page >= 0) grant->second.order.pages.push_back(row.new_page);
    sequence.pages = grant->second.order.pages;
    sequence.pages.resize(static_cast<size_t>(row.position / topology_.page_size) + 1);
    step.sequences.push_back(std::move(sequence));
  }
  due_.push_back(Describe(step));
  steps_.push_back({order.step, {}});
}

void FollowerWitness::MustTell(uint32_t slot, uint64_t generation) {
  due_.push_back(Describe(decode::TellGranted{slot, generation}));
}

void FollowerWitness::Hear(const decode::FollowerStepEnded& event) {
  if (steps_.empty() || steps_.front().number != event.step) {
    return Complain(absl::StrCat("step ", event.step, " ends out of turn"));
  }
  const Step ended = std::move(steps_.front());
  steps_.pop_front();
  if (!begun_) return;
  for (const auto& [slot, generation] : ended.granted_after) {
    const auto grant = grants_.find(slot);
    const bool stands = grant != grants_.end() && grant->second.order.generation == generation &&
                        !grant->second.revoked;
    if (stands) MustTell(slot, generation);
  }
  if (!event.status.ok()) due_.push_back(Describe(decode::FailEpoch{event.status}));
}

void FollowerWitness::Hear(const decode::LeaseHeard& event) {
  if (const auto* drained = std::get_if<KvDrained>(&event.event)) {
    const auto grant = grants_.find(drained->slot);
    if (grant == grants_.end() || grant->second.order.generation != drained->generation) {
      return Complain("drains what it does not have");
    }
    const std::vector<int>& pages = grant->second.order.pages;
    freed_.insert(freed_.end(), pages.begin(), pages.end());
    grants_.erase(grant);
  }
  if (begun_) due_.push_back(Describe(decode::TellLease{event.event}));
}

// ---- What it does ----

void FollowerWitness::After(const std::vector<decode::FollowerAction>& actions,
                            const decode::Follower& core) {
  if (!world_.violation().empty()) return;
  std::vector<std::string> done;
  done.reserve(actions.size());
  for (const decode::FollowerAction& action : actions) {
    done.push_back(std::visit([](const auto& act) { return Describe(act); }, action));
  }
  if (done != due_) {
    return Complain(absl::StrCat("does [", absl::StrJoin(done, "; "), "], should do [",
                                 absl::StrJoin(due_, "; "), "]"));
  }
  int pages = 0;
  for (const auto& [slot, grant] : grants_) pages += static_cast<int>(grant.order.pages.size());
  const bool rests = grants_.empty() && steps_.empty();
  if (core.held_pages() != pages || core.AtRest() != rests ||
      core.may_begin() != (rests && !begun_) || core.newest_generation() != newest_generation_) {
    Complain(absl::StrCat("says that it holds ", core.held_pages(), " pages, it is ", pages,
                          ", or that it rests or may begin when it is not so"));
  }
}

}  // namespace baton::sim
