// Pages that a decode service's texts take later, and who gives way to them (decode_witness.h).
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "tests/sim/decode_witness.h"

namespace baton::sim {

int DecodeWitness::PagesFor(int tokens) const {
  return (tokens + topology_.page_size - 1) / topology_.page_size;
}

int DecodeWitness::PagesAtFirst(const Session& session) const {
  const int whole = session.sequence->pages;
  if (topology_.reserved_tokens == 0 || !session.request.resumes) return whole;
  const int prompt = session.sequence->inputs.prompt_tokens;
  return std::min(whole, PagesFor(prompt + topology_.reserved_tokens));
}

// Its next token's place is behind its pages.
bool DecodeWitness::Lacks(const Session& session) const {
  return session.pages * topology_.page_size <
         session.sequence->inputs.prompt_tokens + session.sampled;
}

void DecodeWitness::SeeGrowth(Session& session, const decode::RunStep::Sequence& sequence) {
  const uint64_t attempt_id = session.request.attempt_id;
  if (!Lacks(session)) {
    if (sequence.new_page >= 0) Complain(attempt_id, "takes a page that it does not need");
    return;
  }
  ++session.pages;
  youngest_grown_ = std::max(youngest_grown_, session.generation);
  if (sequence.pages.empty() || sequence.new_page != sequence.pages.back()) {
    Complain(attempt_id, "steps on a page that its ranks were not told of");
  }
}

void DecodeWitness::SeeEnd(uint64_t generation, const absl::Status& status) {
  const auto ended = ended_.find(generation);
  if (!IsRetracted(status)) {
    if (ended != ended_.end()) ended->second.explained = true;
  } else if (ended == ended_.end() || ended->second.explained) {
    world_.Violate(absl::StrCat(self_.id, ": generation ", generation,
                                " is said to have given way, and has not"));
  }
}

void DecodeWitness::CheckGrowth(bool between) {
  std::erase_if(ended_, [](const auto& entry) { return entry.second.explained; });
  int wanted = 0;
  uint64_t oldest_left_out = ~uint64_t{0};
  for (const auto& [attempt_id, session] : sessions_) {
    if (!session.runs() || in_step_.contains(session.generation) || !Lacks(session)) continue;
    ++wanted;
    oldest_left_out = std::min(oldest_left_out, session.generation);
  }
  if (!between) {
    if (!ended_.empty()) world_.Violate(self_.id + ": a request gives way under a step");
    if (rows_want_ && last_generation_ != generation_before_) {
      world_.Violate(self_.id + ": a request is admitted while others wait for pages");
    }
    return;
  }
  const auto [owned, held] = CountPages();
  const bool admitted = last_generation_ != generation_before_;
  if (wanted > 0 && (owned + held < page_count() || admitted)) {
    world_.Violate(absl::StrCat(self_.id, ": ", wanted, " texts wait for pages, of which ",
                                page_count() - owned - held, " are free"));
  }
  if (oldest_left_out < youngest_grown_) {
    world_.Violate(self_.id + ": a younger text takes the page that an older one waits for");
  }
  CheckRetractions(wanted);
  rows_want_ = wanted > 0;
}

// The youngest first, and no more of them than there are pages wanted.
void DecodeWitness::CheckRetractions(int wanted) {
  int returning = 0;
  for (const auto& [generation, hold] : holds_) {
    returning += ended_.contains(generation) ? 0 : hold.pages;
  }
  size_t others = ended_.size();  // That may give way.
  uint64_t youngest = 0;          // Among those that go on.
  for (const auto& [generation, attempt_id] : grants_) {
    if (generation > generation_before_ || !sessions_.at(attempt_id).request.resumes) continue;
    ++others;
    youngest = generation;
  }
  for (const auto& [generation, ended] : ended_) wanted += ended.lacked ? 1 : 0;
  for (auto ended = ended_.rbegin(); ended != ended_.rend(); ++ended, --others) {
    const auto& [generation, request] = *ended;
    if (!request.resumes || returning >= wanted || others < 2 || generation < youngest) {
      Complain(request.attempt_id, "gives way, and should not");
    }
    wanted -= request.lacked ? 1 : 0;
    returning += holds_.at(generation).pages;
    const auto session = sessions_.find(request.attempt_id);
    if (session != sessions_.end()) session->second.retracted = true;
  }
  if (returning < wanted && others > 1) {
    world_.Violate(absl::StrCat(self_.id, ": ", wanted,
                                " texts wait for pages and none gives "
                                "way, though ",
                                others, " may"));
  }
}

}  // namespace baton::sim
