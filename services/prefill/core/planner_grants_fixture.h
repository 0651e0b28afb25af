// A planner of a decode service: prompts are reserved, granted, committed and drained.
#ifndef SERVICES_PREFILL_CORE_PLANNER_GRANTS_FIXTURE_H_
#define SERVICES_PREFILL_CORE_PLANNER_GRANTS_FIXTURE_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/prefill/core/planner_fixture.h"

namespace baton::prefill {

inline const InstanceRef kSelf{"decode-0", 100};
inline const std::vector<KvWriter> kWriters{{{"prefill-0", 1}, {0, 2}}, {{"prefill-1", 2}, {2, 6}}};

class GrantsTest : public DecodingTest {
 protected:
  static PlannerLimits Granting(bool caches = false) {
    PlannerLimits limits = Decoding();
    limits.granting = kSelf;
    limits.layers = 6;
    limits.kv_heads = 2;
    limits.name = "decode service";
    limits.caches = caches;
    return limits;
  }
  explicit GrantsTest(const PlannerLimits& limits = Granting()) : DecodingTest(limits) {}

  void Up(int pages = 64, int ranks = 1, uint64_t newest = 0) {
    ChainUp up{kEpoch, 1, pages};
    up.ranks = ranks;
    for (int rank = 1; rank < ranks; ++rank) {
      up.followers.push_back({absl::StrCat("decode-0-", rank), 7});
    }
    up.newest_generation = newest;
    Send(up);
  }
  static StartRequested Request(uint64_t attempt, int tokens = 20, int max_tokens = 5) {
    StartRequested start{attempt, tokens};
    start.stop = {.max_tokens = max_tokens, .eos_ids = {kEos}};
    start.writers = kWriters;
    return start;
  }
  static StartRequested Cached(uint64_t attempt, int tokens, int max_tokens = 5) {
    StartRequested start = Request(attempt, tokens, max_tokens);
    start.tokens = std::make_shared<const std::vector<int32_t>>(static_cast<size_t>(tokens), 9);
    return start;
  }
  // Expects a ticket at once.
  Ticket Reserve(const StartRequested& request) {
    Send(request);
    const auto tickets = All<HandOutTicket>();
    EXPECT_EQ(tickets.size(), 1u);
    return tickets.empty() ? Ticket{} : tickets[0].ticket;
  }
  void Commit(const Ticket& ticket, int32_t token = 41, int rank = 0) {
    std::optional<SampledToken> first;
    if (rank == 0) first = SampledToken{token, -1, {}};
    Send(KvHeard{rank, KvCommitted{ticket.slot, ticket.generation, first, 0}});
  }
  void Drain(const Ticket& ticket, int rank = 0) {
    Send(KvHeard{rank, KvDrained{ticket.slot, ticket.generation}});
  }
  Ticket Decoding1(const StartRequested& request) {
    Ticket ticket = Reserve(request);
    Commit(ticket);
    Drain(ticket);
    return ticket;
  }
  void Step(int32_t token = 41) {
    ASSERT_LT(done_, plans_.size());
    const Plan plan = plans_[done_++];
    Drawn(0, plan, token);
  }
  int used() const { return planner_->load().owned_pages; }

  size_t done_ = 0;  // Plans.
};

class GrowingGrantsTest : public GrantsTest {
 protected:
  static PlannerLimits Growing() {
    PlannerLimits limits = Granting();
    limits.reserved_decode_tokens = 1;
    return limits;
  }
  GrowingGrantsTest() : GrantsTest(Growing()) {}
  bool RetractedOnce() const { return planner_->load().retractions_total == 1; }
};

}  // namespace baton::prefill

#endif  // SERVICES_PREFILL_CORE_PLANNER_GRANTS_FIXTURE_H_
