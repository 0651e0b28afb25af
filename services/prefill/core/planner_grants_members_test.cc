// Grants to decode services of several ranks and stages.
#include <optional>
#include <vector>

#include "common/base/status.h"
#include "services/prefill/core/planner_grants_fixture.h"

namespace baton::prefill {
namespace {

// ---- Ranks ----

TEST_F(GrantsTest, ATicketWaitsForEveryRank) {
  Up(64, 2);
  Send(Request(1));
  const std::vector<GrantKv> grants = All<GrantKv>();
  ASSERT_EQ(grants.size(), 2u);
  EXPECT_EQ(grants[1].member, 1);
  EXPECT_EQ(grants[0].grant.pages, grants[1].grant.pages);
  EXPECT_TRUE(All<HandOutTicket>().empty());
  const KvGrant grant = grants[0].grant;
  Send(MemberGranted{1, grant.slot, grant.generation});
  ASSERT_EQ(All<HandOutTicket>().size(), 1u);
  const Ticket ticket = All<HandOutTicket>()[0].ticket;
  EXPECT_EQ(ticket.followers, (std::vector<InstanceRef>{{"decode-0-1", 7}}));
  Commit(ticket, 41, /*rank=*/1);
  EXPECT_TRUE(All<DeliverToken>().empty()) << "rank 0 lacks its heads";
  Commit(ticket);
  EXPECT_EQ(All<DeliverToken>().size(), 1u);
  Drain(ticket);
  Send(AbortRequested{1, absl::CancelledError("client")});
  Send(StagePlanDone{0, kEpoch, {1, 10, 1}, 0});
  Send(StagePlanDone{0, kEpoch, {1, 10, 1}, 1});
  Send(StagePlanDone{0, kEpoch, {2, 10, 1}, 0});
  Send(StagePlanDone{0, kEpoch, {2, 10, 1}, 1});
  Closed(0, 1);
  Send(StageRequestClosed{0, kEpoch, {1, absl::OkStatus(), 0, 0, 0}, 1});
  EXPECT_EQ(used(), 2) << "rank 1 has not drained it";
  Drain(ticket, 1);
  EXPECT_EQ(used(), 0);
}

// Its ticket is not handed out, so no chain reads its prompt: it is granted pages again.
TEST_F(GrowingGrantsTest, AGrantWithoutATicketIsGrantedAgain) {
  Up(3, 2);
  Send(Request(1, 15, 20));
  const KvGrant first = All<GrantKv>().at(0).grant;
  Send(MemberGranted{1, first.slot, first.generation});
  const Ticket ticket = All<HandOutTicket>().at(0).ticket;
  Commit(ticket, 41, 1);
  Commit(ticket);
  Drain(ticket);
  Drain(ticket, 1);
  Send(Request(2, 20, 2));
  const KvGrant second = All<GrantKv>().at(0).grant;
  while (!RetractedOnce()) {
    const Plan plan = plans_.at(done_++);
    Send(StagePlanDone{0, kEpoch, {plan.number, 10, 1}, 1});
    Drawn(0, plan, 41);
  }
  Send(KvHeard{0, KvDrained{second.slot, second.generation}});
  Send(KvHeard{1, KvDrained{second.slot, second.generation}});
  EXPECT_EQ(planner_->load().queued, 1);
  Send(AbortRequested{1, absl::CancelledError("client")});
  while (done_ < plans_.size()) {
    const Plan plan = plans_.at(done_++);
    Send(StagePlanDone{0, kEpoch, {plan.number, 10, 1}, 1});
    Drawn(0, plan, 41);
  }
  Closed(0, 1);
  Send(StageRequestClosed{0, kEpoch, {1, absl::OkStatus(), 0, 0, 0}, 1});
  ASSERT_EQ(All<GrantKv>().size(), 2u);
  EXPECT_GT(All<GrantKv>()[0].grant.generation, second.generation);
}

TEST_F(GrantsTest, GenerationsGoOnFromWhatRanksHaveHad) {
  Up(64, 2, /*newest=*/41);
  Send(Request(1));
  EXPECT_EQ(All<GrantKv>().at(0).grant.generation, 42u);
  Send(ChainDown{absl::UnavailableError("a rank is lost")});
  EXPECT_EQ(finished_.size(), 1u);
  Send(KvHeard{0, KvDrained{0, 42}});
  Up();
  Send(Request(2));
  EXPECT_EQ(All<GrantKv>().at(0).grant.generation, 43u);
}

// ---- Stages ----

class StagedGrantsTest : public GrantsTest {
 protected:
  // Two stages of two ranks: members 0 and 1 have layers [0, 3), 2 and 3 the others.
  void UpStaged() {
    ChainUp up{kEpoch, 2, 64};
    up.stage_layers = {3, 3};
    up.ranks = 2;
    up.followers = {{"d-1", 7}, {"d-2", 7}, {"d-3", 7}};
    Send(up);
  }
  void Granted(const KvGrant& grant) {
    for (int member = 1; member < 4; ++member) {
      Send(MemberGranted{member, grant.slot, grant.generation});
    }
  }
};

TEST_F(StagedGrantsTest, EveryMemberIsGrantedItsOwnLayers) {
  UpStaged();
  Send(Request(1));
  const std::vector<GrantKv> grants = All<GrantKv>();
  ASSERT_EQ(grants.size(), 4u);
  for (size_t member = 0; member < 4; ++member) {
    EXPECT_EQ(grants[member].member, static_cast<int>(member));
    EXPECT_EQ(grants[member].grant.pages, grants[0].grant.pages);
    for (const KvWriter& writer : grants[member].grant.writers) {
      EXPECT_GE(writer.layers.begin, member < 2 ? 0 : 3);
      EXPECT_LE(writer.layers.end, member < 2 ? 3 : 6);
    }
  }
  ASSERT_EQ(grants[0].grant.writers.size(), 2u) << "both have some of its layers";
  EXPECT_EQ(grants[0].grant.writers[1].layers, (LayerRange{2, 3}));
  ASSERT_EQ(grants[2].grant.writers.size(), 1u);
  EXPECT_EQ(grants[2].grant.writers[0].instance.id, "prefill-1");
  EXPECT_TRUE(All<HandOutTicket>().empty());
  Granted(grants[0].grant);
  ASSERT_EQ(All<HandOutTicket>().size(), 1u);
  const Ticket ticket = All<HandOutTicket>()[0].ticket;
  EXPECT_EQ(ticket.places(), 4);
  EXPECT_EQ(ticket.ranks(), 2);
  EXPECT_EQ(ticket.stages, (std::vector<LayerRange>{{0, 3}, {3, 6}}));
}

TEST_F(StagedGrantsTest, TheFirstTokenIsThatOfWhoDrawsTheNext) {
  UpStaged();
  Send(Request(1));
  const KvGrant grant = All<GrantKv>().at(0).grant;
  Granted(grant);
  const auto commit = [&](int member, std::optional<int32_t> token) {
    std::optional<SampledToken> first;
    if (token.has_value()) first = SampledToken{*token, -1, {}};
    Send(KvHeard{member, KvCommitted{grant.slot, grant.generation, first, 0}});
  };
  commit(2, 41);
  commit(3, 40);
  commit(0, std::nullopt);
  EXPECT_TRUE(All<DeliverToken>().empty()) << "member 1 lacks its heads";
  commit(1, std::nullopt);
  ASSERT_EQ(All<DeliverToken>().size(), 1u);
  EXPECT_EQ(All<DeliverToken>()[0].token.token, 41);
  ASSERT_EQ(plans_.size(), 1u);
  EXPECT_TRUE(plans_[0].opens.at(0).adopted());
}

TEST_F(StagedGrantsTest, ACommitWithoutAFirstTokenEndsItsRequestAlone) {
  UpStaged();
  Send(Request(1));
  const KvGrant grant = All<GrantKv>().at(0).grant;
  Granted(grant);
  for (int member = 0; member < 4; ++member) {
    Send(KvHeard{member, KvCommitted{grant.slot, grant.generation, std::nullopt, 0}});
  }
  ASSERT_EQ(finished_.size(), 1u);
  EXPECT_TRUE(absl::IsInternal(finished_[0].status));
  for (int member = 0; member < 3; ++member) {
    Send(KvHeard{member, KvDrained{grant.slot, grant.generation}});
  }
  EXPECT_EQ(used(), 2) << "the last stage's second rank may still be written to";
  Send(KvHeard{3, KvDrained{grant.slot, grant.generation}});
  EXPECT_EQ(used(), 0);
}

}  // namespace
}  // namespace baton::prefill
