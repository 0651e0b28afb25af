#include "services/decode/core/follower.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/coverage.h"
#include "common/base/status.h"

namespace baton::decode {

void Follower::Handle(const FollowerEvent& event, std::vector<FollowerAction>& actions) {
  actions_ = &actions;
  std::visit([this](const auto& e) { On(e); }, event);
  actions_ = nullptr;
}

void Follower::On(const EpochBegan&) {
  BATON_CHECK(may_begin()) << "an epoch begins over " << held_pages() << " pages and "
                           << steps_.size() << " steps of the last one";
  begun_ = true;
  last_step_ = 0;
}

void Follower::On(const EpochOver&) {
  if (!std::exchange(begun_, false)) return;
  if (!granted_.empty()) Covered<"follower: an epoch ends with grants">();
  for (const auto& [grant, pages] : granted_) Emit(RevokeKv{grant.first, grant.second});
  revoked_.merge(granted_);
}

void Follower::On(const OrderHeard& event) {
  if (!begun_) {
    Covered<"follower: an order comes after its epoch">();
    return;
  }
  absl::Status status = std::visit([this](const auto& order) { return Take(order); }, event.order);
  if (status.ok()) return;
  Covered<"follower: an order makes no sense">();
  Emit(FailEpoch{std::move(status)});
}

absl::Status Follower::CheckGrant(const GrantOrder& order) const {
  if (order.slot >= static_cast<uint32_t>(limits_.slots)) {
    return InvalidField("grant.slot", absl::StrCat(order.slot, " is not one of ", limits_.slots));
  }
  if (order.generation <= last_generation_) {
    return InvalidField("grant.generation",
                        absl::StrCat(order.generation, " follows ", last_generation_));
  }
  const int pages = static_cast<int>(order.pages.size());
  if (order.prompt_pages < 1 || order.prompt_pages > pages) {
    return InvalidField("grant.prompt_pages", absl::StrCat(order.prompt_pages, " of ", pages));
  }
  if (order.first_page < 0 || order.first_page >= order.prompt_pages) {
    return InvalidField("grant.first_page",
                        absl::StrCat(order.first_page, " of ", order.prompt_pages));
  }
  for (const KvWriter& writer : order.writers) {
    const LayerRange layers = writer.layers;
    if (layers.begin < 0 || layers.end <= layers.begin || layers.end > limits_.layers) {
      return InvalidField("grant.writers",
                          absl::StrCat(writer.instance.id, " has layers [", layers.begin, ", ",
                                       layers.end, ") of ", limits_.layers));
    }
  }
  return CheckPages(order);
}

// Rank 0 gives a slot or a page to another request only when every rank has reported it drained.
absl::Status Follower::CheckPages(const GrantOrder& order) const {
  for (const Grants* const grants : {&granted_, &revoked_}) {
    for (const auto& [grant, pages] : *grants) {
      if (grant.first == order.slot) {
        return InvalidField("grant.slot", absl::StrCat(order.slot, " is taken"));
      }
    }
  }
  std::set<int> own;
  for (size_t i = 0; i < order.pages.size(); ++i) {
    const int page = order.pages[i];
    const bool shared = i < static_cast<size_t>(order.first_page);
    const bool known = page >= 0 && page < limits_.page_count;
    if (!known || (!shared && (!IsFree(page) || !own.insert(page).second))) {
      return InvalidField("grant.pages",
                          absl::StrCat(page, " is taken, or not one of ", limits_.page_count));
    }
  }
  return absl::OkStatus();
}

void Follower::Mark(std::span<const int> pages, bool taken) {
  for (const int page : pages) taken_[static_cast<size_t>(page)] = taken;
}

absl::Status Follower::Take(const GrantOrder& order) {
  BATON_RETURN_IF_ERROR(CheckGrant(order));
  last_generation_ = order.generation;
  Pages& pages = granted_[{order.slot, order.generation}] = {order.pages, order.first_page};
  Mark(pages.own(), true);
  GrantKv action;
  action.rank = limits_.rank.rank;
  action.grant.slot = order.slot;
  action.grant.generation = order.generation;
  action.grant.pages.assign(order.pages.begin(), order.pages.begin() + order.prompt_pages);
  action.grant.first_page = order.first_page;
  action.grant.writers = order.writers;
  Emit(std::move(action));  // Without a deadline: rank 0 sees to it.
  const TellGranted word{order.slot, order.generation};
  if (steps_.empty()) {
    Emit(word);
  } else {
    Covered<"follower: a grant waits for a step">();
    steps_.back().granted_after.push_back(word);
  }
  return absl::OkStatus();
}

absl::Status Follower::Take(const RevokeOrder& order) {
  Grants::node_type grant = granted_.extract({order.slot, order.generation});
  if (grant.empty()) {
    return InvalidField("revoke", absl::StrCat("generation ", order.generation, " of slot ",
                                               order.slot, " is not granted"));
  }
  revoked_.insert(std::move(grant));
  Emit(RevokeKv{order.slot, order.generation});
  return absl::OkStatus();
}

absl::StatusOr<RunStep::Sequence> Follower::CheckRow(const StepOrder::Row& row) const {
  const auto found = granted_.find({row.slot, row.generation});
  if (found == granted_.end()) {
    return InvalidField("step.rows", absl::StrCat("generation ", row.generation, " of slot ",
                                                  row.slot, " is not granted"));
  }
  std::vector<int> pages = found->second.all;
  auto context = static_cast<int64_t>(pages.size()) * limits_.page_size;
  if (row.new_page >= 0) {
    if (!IsFree(row.new_page) || row.position != context) {
      return InvalidField(
          "step.rows", absl::StrCat("page ", row.new_page, " for position ", row.position,
                                    " is taken, not one of ", limits_.page_count, ", or not the ",
                                    "next behind ", pages.size(), " of ", limits_.page_size));
    }
    pages.push_back(row.new_page);
    context += limits_.page_size;
  }
  if (row.position < 0 || row.position >= limits_.max_context_tokens || row.position >= context) {
    return InvalidField("step.rows",
                        absl::StrCat("position ", row.position, " is outside of ", pages.size(),
                                     " pages of ", limits_.page_size, " tokens"));
  }
  if (row.token < 0 || row.token >= limits_.vocab_size) {
    return InvalidField(
        "step.rows",
        absl::StrCat("token ", row.token, " is outside the vocabulary of ", limits_.vocab_size));
  }
  RunStep::Sequence sequence;
  sequence.slot = row.slot;
  sequence.generation = row.generation;
  sequence.token = row.token;
  sequence.position = row.position;
  pages.resize(static_cast<size_t>(row.position / limits_.page_size) + 1);
  sequence.pages = std::move(pages);
  sequence.new_page = row.new_page;
  return sequence;
}

absl::Status Follower::Take(const StepOrder& order) {
  const bool next = order.step == last_step_ + 1 || last_step_ == 0;
  if (!next) {
    return InvalidField("step.step", absl::StrCat(order.step, " follows ", last_step_));
  }
  if (steps_.size() >= kMaxFollowerSteps) {
    return absl::ResourceExhaustedError(
        absl::StrCat(steps_.size(), " steps have not ended when rank 0 sends the next"));
  }
  if (order.rows.empty()) return InvalidField("step.rows", "is empty");
  RunStep step;
  step.step = order.step;
  std::set<uint32_t> slots;
  std::set<int> new_pages;
  for (const StepOrder::Row& row : order.rows) {
    BATON_ASSIGN_OR_RETURN(RunStep::Sequence sequence, CheckRow(row));
    if (!slots.insert(row.slot).second) {
      return InvalidField("step.rows", absl::StrCat("slot ", row.slot, " comes twice"));
    }
    if (row.new_page >= 0 && !new_pages.insert(row.new_page).second) {
      return InvalidField("step.rows", absl::StrCat("page ", row.new_page, " is new to two"));
    }
    step.sequences.push_back(std::move(sequence));
  }
  for (const StepOrder::Row& row : order.rows) {
    if (row.new_page < 0) continue;
    granted_.at({row.slot, row.generation}).all.push_back(row.new_page);
    Mark(std::span(&row.new_page, 1), true);
  }
  last_step_ = order.step;
  steps_.push_back(Step{order.step, {}});
  Emit(std::move(step));
  return absl::OkStatus();
}

void Follower::On(const FollowerStepEnded& event) {
  BATON_CHECK(!steps_.empty() && steps_.front().step == event.step)
      << "step " << event.step << " was not the next to end";
  const Step ended = std::move(steps_.front());
  steps_.pop_front();
  if (!begun_) {
    Covered<"follower: a step ends after its epoch">();
    return;
  }
  for (const TellGranted& word : ended.granted_after) {
    if (granted_.contains({word.slot, word.generation})) Emit(word);
  }
  if (event.status.ok()) return;
  Covered<"follower: a step fails">();
  Emit(FailEpoch{event.status});
}

void Follower::On(const LeaseHeard& event) {
  if (const auto* drained = std::get_if<KvDrained>(&event.event)) {
    const Grants::node_type grant = revoked_.extract({drained->slot, drained->generation});
    BATON_CHECK(!grant.empty()) << "generation " << drained->generation << " of slot "
                                << drained->slot << " was not revoked";
    Mark(grant.mapped().own(), false);
  }
  if (begun_) Emit(TellLease{event.event});
}

int Follower::held_pages() const {
  size_t held = 0;
  for (const auto& [grant, pages] : granted_) held += pages.own().size();
  for (const auto& [grant, pages] : revoked_) held += pages.own().size();
  return static_cast<int>(held);
}

}  // namespace baton::decode
