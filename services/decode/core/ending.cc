#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/coverage.h"
#include "common/base/status.h"
#include "services/decode/core/decode_state.h"

namespace baton::decode {
namespace {

const char* WhatPassesIn(Phase phase) {
  switch (phase) {
    case Phase::kWaiting:
      Covered<"decode: a deadline passes while waiting for pages">();
      return "waiting for pages";
    case Phase::kGranting:
      Covered<"decode: a deadline passes while ranks are granting">();
      return "waiting for the other ranks to take the prompt's KV";
    case Phase::kReserved:
      Covered<"decode: a deadline passes while waiting for KV">();
      return "waiting for the prompt's KV";
    case Phase::kCommitted:
      Covered<"decode: a deadline passes while decoding">();
      return "decoding";
    case Phase::kEnded:
      return "waiting for its stream";
  }
  return "held";
}

}  // namespace

void DecodeCore::State::On(const AbortRequested& event) {
  if (!requests.contains(event.attempt_id)) {
    Covered<"decode: an abort of no reservation">();
    early_aborts.push_back(event.attempt_id);
    if (early_aborts.size() > limits.remembered_aborts) early_aborts.pop_front();
    return;
  }
  EndWith(event.attempt_id, event.reason.ok() ? absl::CancelledError("aborted") : event.reason);
}

void DecodeCore::State::On(const Tick&) {}

int64_t DecodeCore::State::DueUs(const Request& request) const {
  if (!LacksStream(request)) return request.deadline_us;
  return std::min(request.deadline_us, request.granted_us + limits.stream_lease_us);
}

void DecodeCore::State::Arm(uint64_t attempt_id) {
  const int64_t due_us = DueUs(requests.at(attempt_id));
  if (due_us != kNeverUs) deadlines.emplace(due_us, attempt_id);
}

void DecodeCore::State::Disarm(uint64_t attempt_id) {
  deadlines.erase({DueUs(requests.at(attempt_id)), attempt_id});
}

void DecodeCore::State::EndOverdue() {
  while (!deadlines.empty() && deadlines.begin()->first <= now_us) {
    const uint64_t attempt_id = deadlines.begin()->second;
    const Request& request = requests.at(attempt_id);
    if (now_us < request.deadline_us) {
      Covered<"decode: no stream comes">();
      EndWith(attempt_id, Own(absl::UnavailableError(
                              absl::StrCat("its stream was not opened within ",
                                           limits.stream_lease_us / 1000, " ms of its ticket"))));
      continue;
    }
    EndWith(attempt_id, Own(absl::DeadlineExceededError(absl::StrCat(
                            "the deadline passed while ", WhatPassesIn(request.phase)))));
  }
}

void DecodeCore::State::Refuse(uint64_t attempt_id, absl::Status status) {
  Emit(ReplyReserve{attempt_id, Own(std::move(status))});
}

void DecodeCore::State::Complete(uint64_t attempt_id, absl::StatusOr<FinishReason> outcome) {
  Request& request = requests.at(attempt_id);
  if (request.phase == Phase::kGranting) return EndWith(attempt_id, outcome.status());
  if (outcome.ok()) KeepText(request);
  GiveBack(attempt_id, request);
  if (request.stream_open) {
    Emit(Finish{attempt_id, std::move(outcome)});
    Erase(attempt_id);
  } else {
    request.phase = Phase::kEnded;
    request.outcome = std::move(outcome);
    KeepOutcome(attempt_id);
  }
}

void DecodeCore::State::KeepOutcome(uint64_t attempt_id) {
  Covered<"decode: an outcome is kept for its stream">();
  kept_outcomes.push_back(attempt_id);
  if (kept_outcomes.size() <= limits.kept_outcomes) return;
  Covered<"decode: the oldest outcome is forgotten">();
  EndWith(kept_outcomes.front(),
          Own(absl::ResourceExhaustedError("its stream did not open for too long")));
}

void DecodeCore::State::EndWith(uint64_t attempt_id, absl::Status status) {
  Request& request = requests.at(attempt_id);
  if (request.phase == Phase::kWaiting) {
    queue.erase(std::find(queue.begin(), queue.end(), attempt_id));
    Refuse(attempt_id, std::move(status));
  } else {
    GiveBack(attempt_id, request);
    if (request.phase == Phase::kGranting) {
      Covered<"decode: a request ends before every rank takes its KV">();
      Refuse(attempt_id, std::move(status));
    } else {
      Emit(Finish{attempt_id, std::move(status)});
    }
  }
  Erase(attempt_id);
}

// The request stops using its pages and slot. They come free in ReleaseIfUnused, but for those that
// the cache has.
void DecodeCore::State::GiveBack(uint64_t attempt_id, Request& request) {
  if (request.phase == Phase::kEnded) return;
  Hold hold;
  hold.pages.assign(request.pages.begin() + request.prefix.pages, request.pages.end());
  hold.prefix = std::exchange(request.prefix, {}).node;
  request.pages.clear();
  pool.Quarantine(hold.pages);
  hold.slot = request.slot;
  hold.not_drained = AllRanks(limits.ranks);
  hold.in_step = in_step.contains(request.generation);
  holds.emplace(request.generation, std::move(hold));
  granted.erase(request.generation);
  std::erase(batch, attempt_id);
  Emit(RevokeKv{request.slot, request.generation});
}

void DecodeCore::State::Erase(uint64_t attempt_id) {
  Disarm(attempt_id);
  std::erase(kept_outcomes, attempt_id);
  requests.erase(attempt_id);
}

void DecodeCore::State::ReleaseIfUnused(uint64_t generation) {
  Hold& hold = holds.at(generation);
  if (hold.not_drained != 0 || hold.in_step) return;
  ++page_changes;
  pool.EndQuarantine(hold.pages);
  if (tree.has_value()) tree->Unpin(hold.prefix);
  free_slots.push_back(hold.slot);
  holds.erase(generation);
}

}  // namespace baton::decode
