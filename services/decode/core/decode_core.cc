#include "services/decode/core/decode_core.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "services/decode/core/decode_state.h"

namespace baton::decode {

DecodeCore::DecodeCore(DecodeLimits limits) {
  BATON_CHECK(limits.max_running_requests > 0 && limits.layout.page_size > 0 &&
              limits.max_context_tokens > 0 && limits.vocab_size > 0 &&
              limits.reserved_decode_tokens > 0)
      << "incomplete limits";
  state_ = std::make_unique<State>(std::move(limits));
}

DecodeCore::~DecodeCore() = default;

void DecodeCore::Handle(const Event& event, int64_t now_us, std::vector<Action>& actions) {
  state_->now_us = now_us;
  std::vector<Action> later;
  state_->actions = &later;
  state_->EndOverdue();
  state_->EndDrain();
  std::visit([this](const auto& e) { state_->On(e); }, event);
  state_->GrowRows();
  state_->AdmitWaiting();
  // The next step runs while the last one's tokens are written out.
  state_->actions = &actions;
  state_->StartStep();
  state_->actions = nullptr;
  std::move(later.begin(), later.end(), std::back_inserter(actions));
}

int64_t DecodeCore::NextDeadlineUs() const {
  const int64_t drain_us = state_->requests.empty() ? kNeverUs : state_->drain_deadline_us;
  if (state_->deadlines.empty()) return drain_us;
  return std::min(drain_us, state_->deadlines.begin()->first);
}

const BlockPool& DecodeCore::pool() const { return state_->pool; }

bool DecodeCore::draining() const { return state_->draining; }

// Requests ended when the ranks were lost; each has a hold until nothing uses its pages.
bool DecodeCore::may_join() const { return !state_->joined && state_->holds.empty(); }

bool DecodeCore::joined() const { return state_->joined; }

DrainCounts DecodeCore::drain_counts() const { return state_->drain_counts; }

DecodeLoad DecodeCore::load() const {
  DecodeLoad load;
  for (const auto& [attempt_id, request] : state_->requests) {
    load.waiting += request.phase == Phase::kWaiting ? 1 : 0;
    const bool granting = request.phase == Phase::kGranting;
    load.reserved += granting || request.phase == Phase::kReserved ? 1 : 0;
    load.running += request.phase == Phase::kCommitted ? 1 : 0;
  }
  load.free_pages = state_->AvailablePages();
  load.owned_pages = state_->pool.owned_pages();
  if (state_->tree.has_value()) {
    load.owned_pages -= state_->tree->evictable_pages();
    load.cached_pages = state_->tree->pages();
  }
  load.evicted_pages_total = state_->evicted_pages_total;
  load.reused_pages_total = state_->reused_pages_total;
  load.retractions_total = state_->retractions_total;
  load.quarantined_pages = state_->pool.quarantined_pages();
  return load;
}

absl::Status DecodeCore::CheckInvariants() const {
  const State& core = *state_;
  BATON_RETURN_IF_ERROR(core.pool.CheckInvariants());
  BATON_RETURN_IF_ERROR(core.CheckDrain());
  const auto broken = [](auto... parts) { return absl::InternalError(absl::StrCat(parts...)); };
  if (core.tree.has_value()) BATON_RETURN_IF_ERROR(core.tree->CheckInvariants());
  int owned = core.tree.has_value() ? core.tree->pages() : 0;
  size_t waiting = 0;
  size_t with_slot = core.holds.size();
  for (const auto& [attempt_id, request] : core.requests) {
    owned += static_cast<int>(request.pages.size()) - request.prefix.pages;
    waiting += request.phase == Phase::kWaiting ? 1 : 0;
    const bool granted = request.phase != Phase::kWaiting && request.phase != Phase::kEnded;
    with_slot += granted ? 1 : 0;
    if (granted != (core.granted.count(request.generation) == 1)) {
      return broken("I4: attempt ", attempt_id, " and generation ", request.generation,
                    " don't belong to each other");
    }
    if (request.generated > 0 && request.phase != Phase::kCommitted &&
        request.phase != Phase::kEnded) {
      return broken("I3: attempt ", attempt_id, " has a token before its commit");
    }
    if (core.now_us >= request.deadline_us) {
      return broken("I2: attempt ", attempt_id, " is held beyond its deadline");
    }
    if (core.LacksStream(request) &&
        core.now_us - request.granted_us >= core.limits.stream_lease_us) {
      return broken("I2: attempt ", attempt_id, " still waits for its stream after ",
                    (core.now_us - request.granted_us) / 1000, " ms");
    }
    if ((request.phase == Phase::kGranting) != (granted && request.not_granted != 0)) {
      return broken("attempt ", attempt_id, " has a ticket before every rank takes its KV");
    }
    const bool wants = request.phase == Phase::kCommitted && request.stream_open &&
                       !core.running_step.has_value() && core.LacksPage(request);
    if (wants && core.AvailablePages() > 0) {
      return broken("attempt ", attempt_id, " wants a page, and ", core.AvailablePages(),
                    " are free");
    }
    if (request.kept.size() > 1) return broken("attempt ", attempt_id, " keeps many tokens");
  }
  int quarantined = 0;
  for (const auto& [generation, hold] : core.holds) {
    quarantined += static_cast<int>(hold.pages.size());
  }
  if (owned != core.pool.owned_pages() || quarantined != core.pool.quarantined_pages()) {
    return broken("I1: requests and the cache own ", owned, " pages and ", quarantined,
                  " are held back, the pool says ", core.pool.owned_pages(), " and ",
                  core.pool.quarantined_pages());
  }
  if (waiting != core.queue.size()) {
    return broken("I2: ", waiting, " requests wait, the queue has ", core.queue.size());
  }
  if (with_slot + core.free_slots.size() != static_cast<size_t>(core.limits.max_running_requests)) {
    return broken("I1: ", with_slot, " slots taken and ", core.free_slots.size(), " free of ",
                  core.limits.max_running_requests);
  }
  return absl::OkStatus();
}

bool DecodeCore::AtRest() const {
  const int cached = state_->tree.has_value() ? state_->tree->evictable_pages() : 0;
  return state_->requests.empty() && state_->pool.free_pages() + cached == state_->page_count;
}

}  // namespace baton::decode
