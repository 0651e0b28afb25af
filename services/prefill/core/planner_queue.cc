// Waiting prompts, and which of them is admitted. They have turns by their arrival, less a head
// start for priority and for what the policy prefers (common/types/turn.h): policies differ in
// nothing else, and none starves a prompt.
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/coverage.h"
#include "common/base/random.h"
#include "services/prefill/core/planner_state.h"

namespace baton::prefill {
namespace {

// What the policies give a head start for. Such that requests which wait together are ordered by
// it, and one that has waited for long goes before one that has just come.
constexpr int64_t kCachedTokenUs = 1'000;
constexpr int64_t kNewTokenUs = 10'000;
constexpr uint64_t kRandomUs = 10'000'000;

}  // namespace

// By how much it goes before its arrival, for its priority and its tenant's share.
int64_t ChainPlanner::State::UserHeadStartUs(const Request& request) {
  return request.priority * kPriorityStepUs + request.head_start_us;
}

// The same with what the policy gives.
int64_t ChainPlanner::State::HeadStartUs(const Request& request) const {
  int64_t start_us = UserHeadStartUs(request);
  switch (limits.queue_order) {
    case QueueOrder::kArrival:
      break;
    case QueueOrder::kLongestPrefix:
      if (tree.has_value()) {
        const auto pages = static_cast<int64_t>(MatchOf(request).pages.size());
        start_us += pages * limits.page_size * kCachedTokenUs;
      }
      break;
    case QueueOrder::kLongestOutput:
      start_us += request.stop.max_tokens * kNewTokenUs;
      break;
    case QueueOrder::kRandom:
      start_us += static_cast<int64_t>(Mix64(request.turn.order) % kRandomUs);
      break;
  }
  return start_us;
}

void ChainPlanner::State::Enqueue(uint64_t attempt_id) {
  Request& request = requests.at(attempt_id);
  request.turn.from_us = request.arrived_us - HeadStartUs(request);
  const auto later = std::find_if(queue.begin(), queue.end(), [&](uint64_t other) {
    return requests.at(other).turn > request.turn;
  });
  queue.insert(later, attempt_id);
  if (!IsGranted(attempt_id)) {
    waiting_by_size.emplace(request.read_tokens, request.turn, attempt_id);
  }
}

void ChainPlanner::State::Dequeue(uint64_t attempt_id) {
  const Request& request = requests.at(attempt_id);
  queue.erase(std::find(queue.begin(), queue.end(), attempt_id));
  waiting_by_size.erase({request.read_tokens, request.turn, attempt_id});
}

bool ChainPlanner::State::HasRoomFor(int pages) const {
  return rows_in_want == 0 && pages + growth_pages <= AvailablePages() &&
         static_cast<int>(open.size()) < limits.max_open_requests;
}

bool ChainPlanner::State::MayAdmitOldest() const {
  if (HasRoomFor(WantedPages(queue.front())) || FitsWithItsMatch(queue.front())) return true;
  if (WantedPages(queue.front()) > AvailablePages()) {
    Covered<"planner: the oldest prompt waits for pages">();
  }
  return false;
}

// What it takes is not what the oldest one waits for.
bool ChainPlanner::State::MayOvertake(uint64_t attempt_id) const {
  if (attempt_id == queue.front()) return MayAdmitOldest();
  const int pages = WantedPages(queue.front()) + WantedPages(attempt_id);
  return rows_in_want == 0 && pages + growth_pages <= AvailablePages() &&
         static_cast<int>(open.size()) + 1 < limits.max_open_requests;
}

// Gives a waiting request, which has taken its match, its pages; there is room for it.
void ChainPlanner::State::Open(uint64_t attempt_id, int64_t now_us) {
  Request& request = requests.at(attempt_id);
  Dequeue(attempt_id);
  const auto later = std::find_if(open.begin(), open.end(), [&](uint64_t other) {
    return requests.at(other).turn > request.turn;
  });
  open.insert(later, attempt_id);
  request.open = true;
  AllocatePages(attempt_id);
  growth_pages += WantedPages(attempt_id) - static_cast<int>(request.pages.size());
  if (!request.text.empty()) return;
  request.first_plan_us = now_us;
  request.outcome.queue_us = now_us - request.arrived_us;
  request.outcome.cached_tokens = request.prefix.pages * limits.page_size;
}

void ChainPlanner::State::Admit(uint64_t attempt_id, Plan& plan, int64_t now_us) {
  if (attempt_id != queue.front()) Covered<"planner: a short prompt overtakes a long one">();
  Open(attempt_id, now_us);
  Request& request = requests.at(attempt_id);
  request.told = true;
  request.closed.assign(done.size() * static_cast<size_t>(ranks), false);
  plan.opens.push_back({attempt_id, request.ticket, request.pages,
                        request.ticket.has_value() ? 0 : request.prompt_tokens,
                        request.planned_tokens, request.text});
}

}  // namespace baton::prefill
