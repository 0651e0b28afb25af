#include "services/prefill/chain/messages.h"

#include <gtest/gtest.h>

#include <limits>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/rpc/convert.h"

namespace baton::prefill {
namespace {

constexpr KnownCost kKnown = {
    {.overhead_us = 900, .prefix_us = 0.05, .token_us = 12, .attention_us = 0.0004}, 0.1};

TEST(MessagesTest, AMeasuredCostArrivesAsItWasSent) {
  const auto known = FromProto(ToProto(kKnown));
  ASSERT_TRUE(known.ok()) << known.status();
  EXPECT_EQ(known->cost, kKnown.cost);
  EXPECT_EQ(known->error, kKnown.error);
}

TEST(MessagesTest, AMeasuredCostThatMakesNoSenseIsRefused) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double bad : {-1.0, 1e300, nan, infinity}) {
    v1::MeasuredCost proto = ToProto(kKnown);
    proto.set_overhead_us(bad);
    EXPECT_EQ(FromProto(proto).status().code(), absl::StatusCode::kInvalidArgument) << bad;
    proto = ToProto(kKnown);
    proto.set_error_ratio(bad);
    EXPECT_EQ(FromProto(proto).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
  EXPECT_FALSE(FromProto(v1::MeasuredCost()).ok()) << "tokens that cost nothing";
  v1::MeasuredCost untrusted = ToProto(kKnown);
  untrusted.set_error_ratio(0.31);
  EXPECT_FALSE(FromProto(untrusted).ok());
}

TEST(MessagesTest, APromptAndItsKeys) {
  PlanBounds bounds;
  bounds.max_context_tokens = 100;
  bounds.vocab_size = 10;
  bounds.kv_heads = 1;
  bounds.tensor_ranks = 1;
  v1::StartRequest request;
  request.set_attempt_id(1);
  for (const int32_t id : {3, 0, 9}) request.add_fixed_prompt_token_ids(id);
  request.mutable_sampling()->set_seed(1);
  request.mutable_sampling()->set_max_tokens(1);
  request.set_timeout_ms(1000);
  *request.mutable_ticket() = rpc::ToProto(Ticket{{"decode-0", 1}, 0, 1, 3, 1});
  const absl::StatusOr<Start> start = FromProto(request, bounds, {});
  ASSERT_TRUE(start.ok()) << start.status();
  EXPECT_EQ(start->prompt->tokens, (std::vector<int32_t>{3, 0, 9}));
  request.mutable_prefix_keys()->Resize(256, 7);
  EXPECT_TRUE(FromProto(request, bounds, {}).ok());
  request.add_prefix_keys(7);
  EXPECT_EQ(FieldOf(FromProto(request, bounds, {}).status()), "prefix_keys");
}

// Two ranks with two heads can hand them to one, two or four, not to three.
TEST(MessagesTest, ATicketForRanksThatCannotShareTheHeadsIsRefused) {
  PlanBounds bounds;
  bounds.max_context_tokens = 100;
  bounds.vocab_size = 10;
  bounds.kv_heads = 2;
  bounds.tensor_ranks = 2;
  v1::StartRequest request;
  request.set_attempt_id(1);
  request.add_fixed_prompt_token_ids(3);
  request.mutable_sampling()->set_seed(1);
  request.mutable_sampling()->set_max_tokens(1);
  request.set_timeout_ms(1000);
  for (const int ranks : {1, 2, 3, 4}) {
    Ticket ticket{{"decode-0", 1}, 0, 1, 1, 1};
    for (int i = 1; i < ranks; ++i) ticket.followers.push_back({absl::StrCat("decode-", i), 1});
    *request.mutable_ticket() = rpc::ToProto(ticket);
    const absl::StatusOr<Start> start = FromProto(request, bounds, {});
    EXPECT_EQ(start.ok(), ranks != 3) << start.status();
    if (start.ok()) {
      EXPECT_EQ(start->ticket, ticket);
    } else {
      EXPECT_EQ(FieldOf(start.status()), "ticket.followers");
    }
  }
}

}  // namespace
}  // namespace baton::prefill
