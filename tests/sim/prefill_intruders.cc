// What no peer of ours says to a prefill process: prompts that contradict their tickets, plans that
// fit no stage, unexpected activations and credits, members that are ready twice. A
// prompt is refused and nothing else changes; the others end the epoch, for that very reason.
#include <algorithm>
#include <iterator>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "tests/sim/prefill_process.h"

namespace baton::sim {
namespace {

using prefill::Plan;
using prefill::StartRequested;

constexpr uint64_t kNobody = uint64_t{1} << 60;  // No attempt's number.
constexpr uint64_t kFarAhead = 1000;             // Plans.

// ---- Prompts ----

struct BadStart {
  absl::StatusCode code;
  const char* words;  // In the refusal.
  void (*spoil)(StartRequested&, const Topology&);
};

// In the order in which they are looked at, each right but for its own mistake.
constexpr BadStart kBadStarts[] = {
    {absl::StatusCode::kInvalidArgument, "expected 1 to",
     [](StartRequested& start, const Topology&) { start.prompt_tokens = 0; }},
    {absl::StatusCode::kInvalidArgument, "expected 1 to",
     [](StartRequested& start, const Topology& topology) {
       start.prompt_tokens = topology.max_context_tokens + 1;
     }},
    {absl::StatusCode::kInvalidArgument, "ticket",
     [](StartRequested& start, const Topology&) { ++start.ticket->prompt_tokens; }},
    {absl::StatusCode::kInvalidArgument, "ticket",
     [](StartRequested& start, const Topology&) { --start.ticket->prompt_pages; }},
    {absl::StatusCode::kInvalidArgument, "ticket",
     [](StartRequested& start, const Topology&) { ++start.ticket->prompt_pages; }},
    {absl::StatusCode::kResourceExhausted, "the prefill chain has",
     [](StartRequested& start, const Topology& topology) {
       start.ticket->prompt_pages = topology.prefill_pages + 1;
       start.prompt_tokens = start.ticket->prompt_tokens =
           topology.prefill_pages * topology.page_size + 1;
     }},
};

// ---- Plans ----

// Spoils a plan; false: there is nothing in it to spoil so.
using SpoilPlan = bool (*)(Plan&, const Topology&);
struct BadPlan {
  const char* words;  // Why the epoch ends.
  SpoilPlan spoil;
};

constexpr BadPlan kBadPlans[] = {
    {"came too early", [](Plan& plan, const Topology&) { return ++plan.number > 0; }},
    {"is of epoch", [](Plan& plan, const Topology&) { return ++plan.epoch > 0; }},
    {"never opened",
     [](Plan& plan, const Topology&) {
       plan.items.push_back({kNobody, 0, 1, true});
       return true;
     }},
    {"twice",
     [](Plan& plan, const Topology&) {
       if (!plan.items.empty()) plan.items.push_back(plan.items[0]);
       return !plan.items.empty();
     }},
    {"twice",
     [](Plan& plan, const Topology&) {
       if (!plan.items.empty()) plan.aborts.push_back(plan.items[0].attempt_id);
       return !plan.items.empty();
     }},
    {"has tokens",
     [](Plan& plan, const Topology& topology) {
       if (!plan.items.empty()) plan.items[0].token_begin += topology.page_size;
       return !plan.items.empty();
     }},
    {"has tokens",
     [](Plan& plan, const Topology&) {
       if (!plan.items.empty()) plan.items.back().token_count = 0;
       return !plan.items.empty();
     }},
    {"has tokens",
     [](Plan& plan, const Topology& topology) {
       if (!plan.items.empty()) plan.items.back().token_count = topology.max_context_tokens;
       return !plan.items.empty();
     }},
    {"has tokens",
     [](Plan& plan, const Topology&) {
       if (!plan.items.empty()) plan.items[0].final = !plan.items[0].final;
       return !plan.items.empty();
     }},
    {"has tokens",  // Its last page has none of the chain's.
     [](Plan& plan, const Topology&) {
       for (prefill::PlanOpen& open : plan.opens) {
         const auto item = std::find_if(plan.items.begin(), plan.items.end(), [&](const auto& i) {
           return i.attempt_id == open.attempt_id && i.final;
         });
         if (item == plan.items.end()) continue;
         open.pages.pop_back();
         return true;
       }
       return false;
     }},
    {"again",
     [](Plan& plan, const Topology&) {
       if (!plan.opens.empty()) plan.opens.push_back(plan.opens[0]);
       return !plan.opens.empty();
     }},
    {"again",  // What an earlier plan has opened.
     [](Plan& plan, const Topology&) {
       const auto going_on = std::find_if(plan.items.begin(), plan.items.end(),
                                          [](const auto& item) { return item.token_begin > 0; });
       if (going_on == plan.items.end()) return false;
       plan.opens.push_back({going_on->attempt_id, Ticket(), {}});
       return true;
     }},
    {"without a chunk of it",
     [](Plan& plan, const Topology&) {
       plan.opens.push_back({kNobody, Ticket(), {}});
       return true;
     }},
};

template <typename Table>
const auto& DrawFrom(World& world, const Table& table) {
  const auto last = static_cast<int64_t>(std::size(table)) - 1;
  return table[static_cast<size_t>(world.random().Between(0, last))];
}

}  // namespace

void PrefillProcess::LetIntrudersStart(const prefill::StartRequested& like) {
  HandlePlanner(prefill::Tick{});                      // What is due happens before.
  if (!wiring_->up() || planner_->draining()) return;  // Refused for that, whatever they say.
  const BadStart& bad = DrawFrom(world_, kBadStarts);
  prefill::StartRequested start = like;
  start.attempt_id = kNobody;
  start.prompt_tokens = start.ticket->prompt_tokens = 1;
  start.ticket->prompt_pages = 1;
  bad.spoil(start, topology_);
  if (bad.code == absl::StatusCode::kResourceExhausted &&
      start.prompt_tokens > topology_.max_context_tokens) {
    return;
  }
  ExpectRefused(start, bad.code, bad.words);
}

void PrefillProcess::ExpectRefused(const prefill::StartRequested& start, absl::StatusCode code,
                                   const char* words) {
  const prefill::PlannerLoad before = planner_->load();
  std::vector<prefill::PlannerAction> actions;
  planner_->Handle(start, world_.now_us(), actions);
  const prefill::PlannerLoad after = planner_->load();
  const auto* finish =
      actions.size() == 1 ? std::get_if<prefill::FinishRequest>(&actions[0]) : nullptr;
  const bool refused = finish != nullptr && finish->attempt_id == start.attempt_id &&
                       finish->status.code() == code &&
                       absl::StrContains(finish->status.ToString(), words);
  const bool unchanged = before.queued == after.queued && before.open == after.open &&
                         before.queued_tokens == after.queued_tokens &&
                         before.free_pages == after.free_pages;
  if (refused && unchanged) return;
  world_.Violate(absl::StrCat(
      self_.id, ": a prompt of ", start.prompt_tokens, " tokens, which is to be refused for '",
      words, "', is answered with ", finish == nullptr ? "nothing" : finish->status.ToString()));
}

bool PrefillProcess::StrikeWithNonsense(const prefill::Plan& plan) {
  const bool next = !witness_.ended() && plan.epoch == epoch_ && plan.number == last_plan_ + 1;
  if (next) last_plan_ = plan.number;
  if (!next || !world_.Strikes(&NetworkFaults::nonsense)) return false;
  const BadPlan& bad = DrawFrom(world_, kBadPlans);
  prefill::Plan spoilt = plan;
  if (!bad.spoil(spoilt, topology_)) return false;
  ExpectEndOfEpoch(prefill::PlanArrived{std::move(spoilt)}, bad.words);
  return true;
}

// Those of the last plan once more.
bool PrefillProcess::StrikeWithActivations(uint64_t next) {
  const uint64_t last = std::exchange(last_input_, next);
  if (last == 0 || witness_.ended() || !world_.Strikes(&NetworkFaults::nonsense)) return false;
  ExpectEndOfEpoch(prefill::ActivationsArrived{epoch_, last}, "break the credit");
  return true;
}

bool PrefillProcess::StrikeWithCredit() {
  if (witness_.ended() || !world_.Strikes(&NetworkFaults::nonsense)) return false;
  ExpectEndOfEpoch(prefill::CreditReturned{epoch_, last_plan_ + kFarAhead}, "are not out");
  return true;
}

void PrefillProcess::ExpectEndOfEpoch(const prefill::StageEvent& event, const char* words) {
  world_.Trace(node_, absl::StrCat("NONSENSE, to end the epoch for '", words, "'"));
  std::vector<prefill::StageAction> actions;
  stage_.Handle(event, world_.now_us(), actions);
  const auto* end = actions.size() == 1 ? std::get_if<prefill::EndEpoch>(&actions[0]) : nullptr;
  const std::string why = end == nullptr ? "" : end->status.ToString();
  // Who holds as many plans as it may looks no further.
  if (!absl::StrContains(why, words) && !absl::StrContains(why, "one too many")) {
    return world_.Violate(absl::StrCat(
        self_.id, " is told nonsense and does not end its epoch for '", words, "': ", why));
  }
  Perform(actions[0]);
}

// A member that is ready twice, that reports before there is anything to report, or that knows
// epochs which are not newer or beyond all, is to blame.
bool PrefillProcess::StrikeWithReady(const links::WiringEvent& event) {
  if (!std::holds_alternative<links::StageReady>(event)) return false;
  const auto& ready = std::get<links::StageReady>(event);
  const bool heard = wiring_->epoch() == ready.epoch && wiring_->links().contains(ready.member);
  if (!heard || wiring_->up() || !world_.Strikes(&NetworkFaults::nonsense)) return false;
  const int64_t kind = world_.random().Between(0, 3);
  world_.Trace(node_, absl::StrCat("NONSENSE ", kind, " of member ", ready.member));
  if (kind == 0) {
    wiring_->Raise(links::ReportHeard{ready.member, ready.epoch});
  } else if (kind == 1) {
    wiring_->Raise(links::StageReady{ready.member, ready.epoch, 0});
  } else if (kind == 2) {
    const uint64_t newest[] = {0, ready.epoch - 1, ready.epoch, links::kMaxEpoch, ~uint64_t{0}};
    wiring_->Raise(links::StageRefused{ready.member, ready.epoch, DrawFrom(world_, newest)});
  } else {
    wiring_->Raise(ready);
    if (wiring_->up()) return true;  // The last one; what it says again is of a chain that works.
    wiring_->Raise(ready);
  }
  if (wiring_->links().empty()) return true;
  world_.Violate(absl::StrCat(self_.id, " goes on with a member that says nonsense"));
  return true;
}

}  // namespace baton::sim
