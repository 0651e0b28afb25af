// What a decode service's core makes of its several ranks: grants for each, and what all must have
// said before it counts (decode_witness.h).
#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "tests/sim/content.h"
#include "tests/sim/decode_witness.h"

namespace baton::sim {

std::set<int> DecodeWitness::AllRanks(int first) const {
  std::set<int> ranks;
  for (int rank = first; rank < topology_.decode_ranks; ++rank) ranks.insert(rank);
  return ranks;
}

// Its own pages, until it knows how many the others have.
int DecodeWitness::page_count() const {
  return ever_joined_ ? topology_.decode_pages : topology_.PagesOf(NodeOf(self_.id));
}

// It counts when every rank has said so; before the ticket no writer can have written.
void DecodeWitness::HearCommitted(int rank, const KvCommitted& event) {
  Session* const session = FindGrant(event.generation);
  if (session == nullptr || !session->ticket || session->not_committed.erase(rank) == 0) return;
  if (rank == 0) {
    session->bad_first_token = !IsInVocabulary(event.first_token->token);
    if (!session->bad_first_token && event.first_token != session->sequence->answer.front()) {
      Complain(grants_.at(event.generation), "the first token is not the prompt's");
    }
  }
  if (!session->not_committed.empty()) return;
  if (session->bad_first_token) {
    revokes_due_.insert(event.generation);
    return;
  }
  session->committed = true;
  session->sampled = 1;
  if (session->stream_open) tokens_due_.insert(grants_.at(event.generation));
}

// A follower's word may come when its hold is over.
void DecodeWitness::HearDrained(int rank, const KvDrained& event) {
  const auto hold = holds_.find(event.generation);
  if (hold == holds_.end() || hold->second.slot != event.slot) return;
  hold->second.not_drained.erase(rank);
  ReleaseIfUnused(event.generation);
}

void DecodeWitness::Hear(const decode::RanksJoined& event) {
  if (std::exchange(joined_, true) || !grants_.empty() || !holds_.empty() || running_step_) {
    world_.Violate(self_.id + ": ranks join over what is left of the last epoch");
  }
  followers_ = event.followers;
  ever_joined_ = true;
  if (event.page_count != topology_.decode_pages || event.newest_generation != taken_elsewhere_ ||
      static_cast<int>(followers_.size()) != topology_.decode_ranks - 1) {
    world_.Violate(self_.id + ": ranks join with other numbers than they have said");
  }
}

// Whatever they hold of anybody goes; what has ended and waits for its stream alone stays.
void DecodeWitness::Hear(const decode::RanksLost&) {
  if (!std::exchange(joined_, false)) return;
  for (const auto& [attempt_id, session] : sessions_) {
    if (!session.revoked) failures_due_.insert(attempt_id);
  }
  std::vector<uint64_t> generations;
  for (auto& [generation, hold] : holds_) {
    std::erase_if(hold.not_drained, [](int rank) { return rank > 0; });
    generations.push_back(generation);
  }
  for (const uint64_t generation : generations) ReleaseIfUnused(generation);
}

void DecodeWitness::Hear(const decode::FollowerGranted& event) {
  Session* const session = FindGrant(event.generation);
  if (session == nullptr || session->not_granted.erase(event.rank) == 0) return;
  if (session->not_granted.empty()) tickets_due_.insert(grants_.at(event.generation));
}

void DecodeWitness::Hear(const decode::FollowerHeard& event) {
  if (const auto* committed = std::get_if<KvCommitted>(&event.event)) {
    HearCommitted(event.rank, *committed);
  } else if (const auto* failed = std::get_if<KvFailed>(&event.event)) {
    Hear(*failed);
  } else {
    HearDrained(event.rank, std::get<KvDrained>(event.event));
  }
}

// One grant per rank, rank 0's first, for the request that has waited longest.
void DecodeWitness::See(const decode::GrantKv& action) {
  const uint64_t generation = action.grant.generation;
  if (action.rank == 0) {
    if (grant_.has_value()) world_.Violate("a grant that some rank does not hear of");
    if (generation <= last_generation_ || generation <= taken_elsewhere_) {
      world_.Violate(absl::StrCat(self_.id, ": generation ", generation, " is used again"));
    }
    if (waiting_.empty()) return world_.Violate("a grant for nobody");
    last_generation_ = generation;
    const uint64_t attempt_id = waiting_.front();
    waiting_.pop_front();
    grants_[generation] = attempt_id;
    Session& session = sessions_.at(attempt_id);
    session.generation = generation;
    session.slot = action.grant.slot;
    session.pages = PagesAtFirst(session);
    session.not_granted = AllRanks(1);
    session.not_committed = AllRanks();
    grant_ = action;
    granted_ranks_ = 0;
    if (session.not_granted.empty()) tickets_due_.insert(attempt_id);
  }
  if (!grant_.has_value() || action.rank != granted_ranks_) {
    return world_.Violate("ranks hear of a grant twice, or not in order");
  }
  CheckGrant(sessions_.at(grants_.at(grant_->grant.generation)), action);
  if (++granted_ranks_ == topology_.decode_ranks) grant_.reset();
}

void DecodeWitness::CheckGrant(const Session& session, const decode::GrantKv& action) {
  const uint64_t attempt_id = session.request.attempt_id;
  const Oracle::Sequence& sequence = *session.sequence;
  if (action.grant.slot != grant_->grant.slot ||
      action.grant.generation != grant_->grant.generation ||
      action.grant.pages != grant_->grant.pages || action.continuation != grant_->continuation) {
    Complain(attempt_id, "is granted differently on two ranks");
  }
  if (static_cast<int>(action.grant.pages.size()) != sequence.prompt_pages ||
      static_cast<int>(action.grant.pages.size() + action.continuation.size()) != session.pages) {
    Complain(attempt_id, absl::StrCat("has ", action.grant.pages.size(), " and ",
                                      action.continuation.size(), " pages granted for a prompt of ",
                                      sequence.prompt_pages, ", and ", session.pages, " in all"));
  }
  std::vector<KvWriter> writers;
  for (const KvWriter& writer : session.request.writers) {
    if (topology_.WritesTo(writer.tensor_rank.rank, action.rank)) writers.push_back(writer);
  }
  if (action.grant.writers != writers || action.grant.deadline_us != session.request.deadline_us) {
    Complain(attempt_id, absl::StrCat("has a grant on rank ", action.rank,
                                      " for other writers or another time"));
  }
  for (const std::vector<int>* const pages : {&action.grant.pages, &action.continuation}) {
    for (const int page : *pages) {
      if (!Own(page, session.generation)) {
        Complain(attempt_id, "is granted somebody else's page");
      }
    }
  }
}

// Only together they begin again.
void DecodeWitness::See(const decode::PartRanks& action) {
  if (!std::exchange(part_due_, false) || action.status.ok()) {
    world_.Violate(self_.id + ": ranks are parted for no reason");
  }
}

}  // namespace baton::sim
