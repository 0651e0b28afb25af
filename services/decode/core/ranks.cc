// A service of several ranks: what one rank reports, and what counts only when all have reported
// it. With one rank everything counts at once.
#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/coverage.h"
#include "common/base/status.h"
#include "common/kv/head_routes.h"
#include "services/decode/core/decode_state.h"

namespace baton::decode {
namespace {

RankSet BitOf(int rank) { return RankSet{1} << rank; }

// The last stage's rank 0, in whatever order they are named.
const std::string& WhoDraws(const std::vector<KvWriter>& writers, int layers) {
  return std::find_if(writers.begin(), writers.end(),
                      [layers](const KvWriter& writer) {
                        return writer.layers.end == layers && writer.tensor_rank.rank == 0;
                      })
      ->instance.id;
}

// Whether it had not been said yet.
bool Strike(RankSet& left, int rank) {
  const bool was_left = (left & BitOf(rank)) != 0;
  left &= ~BitOf(rank);
  return was_left;
}

}  // namespace

void DecodeCore::State::On(const RanksJoined& event) {
  BATON_CHECK(!joined && holds.empty()) << "ranks join unasked";
  BATON_CHECK(static_cast<int>(event.followers.size()) == limits.ranks - 1 && event.page_count > 0)
      << event.followers.size() << " followers, " << event.page_count << " pages";
  Covered<"decode: ranks come together">();
  joined = true;
  followers = event.followers;
  // The same ids on all ranks, so as many as the smallest has.
  page_count = std::min(limits.page_count, event.page_count);
  pool = BlockPool(page_count);
  ++page_changes;
  tree.reset();  // Followers hold nothing any more.
  if (limits.caches) tree.emplace(limits.layout.page_size);
  last_generation = std::max(last_generation, event.newest_generation);
  grows = event.knows_growth;
}

void DecodeCore::State::On(const RanksLost& event) {
  lost = event.status;
  joined = false;
  Covered<"decode: ranks are lost">();
  std::vector<uint64_t> held;
  for (const auto& [attempt_id, request] : requests) {
    if (request.phase == Phase::kEnded) continue;
    Covered<"decode: a request ends with lost ranks">();
    held.push_back(attempt_id);
  }
  for (const uint64_t attempt_id : held) EndWith(attempt_id, Own(event.status));
  // Followers see to their own pages before they are linked again.
  std::vector<uint64_t> generations;
  for (auto& [generation, hold] : holds) {
    hold.not_drained &= BitOf(0);
    generations.push_back(generation);
  }
  for (const uint64_t generation : generations) ReleaseIfUnused(generation);
}

absl::Status DecodeCore::State::RefuseUntilJoined() const {
  if (joined) return absl::OkStatus();
  Covered<"decode: refused while ranks are apart">();
  return absl::UnavailableError(absl::StrCat(
      "the ", limits.ranks, " ranks of this decode service are not together: ", lost.message()));
}

// What a failed step is to its requests. A rank that leaves its epoch cancels the group's sums, on
// all ranks; to a client that would be its own wish. The requests can be sent again.
absl::Status DecodeCore::State::FailureOf(const absl::Status& step) {
  if (!absl::IsCancelled(step) && !absl::IsAborted(step)) return step;
  Covered<"decode: a rank leaves in a step">();
  absl::Status status = absl::UnavailableError(step.message());
  const auto leg = LegOf(step);
  return leg ? WithLeg(std::move(status), *leg, InstanceOf(step).value_or("")) : status;
}

// Writers may send to any rank as soon as they have the ticket, so every rank's table comes first.
void DecodeCore::State::Grant(uint64_t attempt_id, Request& request) {
  const auto prompt_end = request.pages.begin() + limits.layout.PagesFor(request.prompt_tokens);
  request.not_committed = AllRanks(limits.ranks);
  request.not_granted = AllRanks(limits.ranks) & ~BitOf(0);
  for (int rank = 0; rank < limits.ranks; ++rank) {
    GrantKv action;
    action.rank = rank;
    action.grant.slot = request.slot;
    action.grant.generation = request.generation;
    action.grant.pages.assign(request.pages.begin(), prompt_end);
    action.grant.first_page = request.prefix.pages;
    action.grant.writers = WritersTo(request.writers, limits.kv_heads, {rank, limits.ranks});
    action.grant.deadline_us = request.deadline_us;
    action.continuation.assign(prompt_end, request.pages.end());
    Emit(std::move(action));
  }
  if (request.not_granted == 0) HandOutTicket(attempt_id, request);
}

void DecodeCore::State::HandOutTicket(uint64_t attempt_id, Request& request) {
  Disarm(attempt_id);
  request.phase = Phase::kReserved;
  request.granted_us = now_us;
  Arm(attempt_id);
  Ticket ticket;
  ticket.decode = limits.self;
  ticket.slot = request.slot;
  ticket.generation = request.generation;
  ticket.prompt_tokens = request.prompt_tokens;
  ticket.prompt_pages = limits.layout.PagesFor(request.prompt_tokens);
  ticket.first_page = request.prefix.pages;
  ticket.followers = followers;
  Emit(ReplyReserve{attempt_id, std::move(ticket)});
}

void DecodeCore::State::On(const FollowerGranted& event) {
  const std::optional<uint64_t> attempt_id = HolderOf(event.slot, event.generation);
  if (!attempt_id.has_value()) return;
  Request& request = requests.at(*attempt_id);
  if (Strike(request.not_granted, event.rank) && request.not_granted == 0) {
    HandOutTicket(*attempt_id, request);
  }
}

void DecodeCore::State::On(const FollowerHeard& event) {
  if (const auto* committed = std::get_if<KvCommitted>(&event.event)) {
    Committed(event.rank, *committed);
  } else if (const auto* failed = std::get_if<KvFailed>(&event.event)) {
    Failed(*failed);
  } else {
    Drained(event.rank, std::get<KvDrained>(event.event));
  }
}

// The first token is the one that rank 0 has: the last stage's rank 0 has heads for it, and says
// the same to all.
void DecodeCore::State::Committed(int rank, const KvCommitted& event) {
  const std::optional<uint64_t> attempt_id = HolderOf(event.slot, event.generation);
  if (!attempt_id.has_value()) return;
  Request& request = requests.at(*attempt_id);
  if (request.phase != Phase::kReserved || !Strike(request.not_committed, rank)) return;
  if (rank == 0) {
    BATON_CHECK(event.first_token.has_value()) << "rank 0's table demands the first token";
    request.first_token = *event.first_token;
  }
  if (request.not_committed != 0) {
    Covered<"decode: a rank has its KV before another one">();
    return;
  }
  const int32_t token = request.first_token.token;
  if (IsInVocabulary(token)) {
    request.phase = Phase::kCommitted;
    KeepPrompt(request);
    batch.push_back(*attempt_id);
    Take(*attempt_id, SampledToken(request.first_token));
  } else {
    Covered<"decode: a first token is outside the vocabulary">();
    Complete(*attempt_id, WithLeg(absl::InternalError(absl::StrCat("first token ", token,
                                                                   " is outside the vocabulary of ",
                                                                   limits.vocab_size)),
                                  "prefill", WhoDraws(request.writers, limits.layout.layers)));
  }
}

void DecodeCore::State::Failed(const KvFailed& event) {
  const std::optional<uint64_t> attempt_id = HolderOf(event.slot, event.generation);
  if (attempt_id.has_value()) Complete(*attempt_id, event.status);
}

void DecodeCore::State::Drained(int rank, const KvDrained& event) {
  const auto found = holds.find(event.generation);
  // A follower's report may come after the ranks were lost and its holds were released.
  if (rank != 0 && (found == holds.end() || found->second.slot != event.slot)) {
    Covered<"decode: a follower's drain comes when its hold is over">();
    return;
  }
  BATON_CHECK(found != holds.end() && found->second.slot == event.slot)
      << "generation " << event.generation << " of slot " << event.slot << " was not revoked";
  const bool first = Strike(found->second.not_drained, rank);
  BATON_CHECK(first || rank != 0) << "generation " << event.generation << " is drained twice";
  ReleaseIfUnused(event.generation);
}

}  // namespace baton::decode
