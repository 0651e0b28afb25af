// Waiting prompts, and which of them is admitted.
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/coverage.h"
#include "services/prefill/core/planner_state.h"

namespace baton::prefill {

void ChainPlanner::State::Enqueue(uint64_t attempt_id) {
  Request& request = requests.at(attempt_id);
  request.order = ++arrived;
  queue.push_back(attempt_id);
  waiting_by_size.emplace(request.prompt_tokens, request.order, attempt_id);
}

void ChainPlanner::State::Dequeue(uint64_t attempt_id) {
  const Request& request = requests.at(attempt_id);
  queue.erase(std::find(queue.begin(), queue.end(), attempt_id));
  waiting_by_size.erase({request.prompt_tokens, request.order, attempt_id});
}

bool ChainPlanner::State::HasRoomFor(int pages) const {
  return pages <= pool->free_pages() && static_cast<int>(open.size()) < limits.max_open_requests;
}

bool ChainPlanner::State::MayAdmitOldest() const {
  const int pages = PagesOf(queue.front());
  if (pages > pool->free_pages()) Covered<"planner: the oldest prompt waits for pages">();
  return HasRoomFor(pages);
}

// What it takes is not what the oldest one waits for.
bool ChainPlanner::State::MayOvertake(uint64_t attempt_id) const {
  if (attempt_id == queue.front()) return MayAdmitOldest();
  const int oldest = PagesOf(queue.front());
  const int pages = PagesOf(attempt_id);
  return pages + oldest <= pool->free_pages() &&
         static_cast<int>(open.size()) + 1 < limits.max_open_requests;
}

// Opens a waiting request; there is room for it.
void ChainPlanner::State::Admit(uint64_t attempt_id, Plan& plan, int64_t now_us) {
  Request& request = requests.at(attempt_id);
  std::optional<std::vector<int>> pages = pool->Allocate(PagesOf(attempt_id));
  BATON_CHECK(pages.has_value()) << "attempt " << attempt_id << " is admitted without pages";
  if (attempt_id != queue.front()) Covered<"planner: a short prompt overtakes a long one">();
  Dequeue(attempt_id);
  const auto younger = std::find_if(open.begin(), open.end(), [&](uint64_t other) {
    return requests.at(other).order > request.order;
  });
  open.insert(younger, attempt_id);
  request.open = true;
  request.pages = *std::move(pages);
  request.closed.assign(done.size() * static_cast<size_t>(ranks), false);
  request.first_plan_us = now_us;
  request.outcome.queue_us = now_us - request.arrived_us;
  plan.opens.push_back({attempt_id, request.ticket, request.pages,
                        request.ticket.has_value() ? 0 : request.prompt_tokens});
}

absl::Status ChainPlanner::State::CheckQueue() const {
  const auto older = [this](uint64_t one, uint64_t two) {
    return requests.at(one).order < requests.at(two).order;
  };
  if (queue.size() != waiting_by_size.size() ||
      !std::is_sorted(queue.begin(), queue.end(), older)) {
    return absl::InternalError(absl::StrCat(queue.size(),
                                            " requests wait in the order of arrival, ",
                                            waiting_by_size.size(), " in that of their size"));
  }
  if (!std::is_sorted(open.begin(), open.end(), older)) {
    return absl::InternalError("open requests are not in the order of arrival");
  }
  // Counted in tokens, the next page of a prompt costs at most a page. Counted in time it may cost
  // more: a prompt with a longer prefix than the leader's costs more per token, and the credit is
  // in an earlier leader's tokens.
  const bool below_most =
      limits.chunk_rule == ChunkRule::kOptimal || shared_credit <= limits.page_size;
  if (shared_credit >= 0 && below_most) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("a credit of ", shared_credit, " tokens"));
}

}  // namespace baton::prefill
