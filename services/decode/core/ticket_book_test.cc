#include "services/decode/core/ticket_book.h"

#include <gtest/gtest.h>

namespace baton::decode {
namespace {

constexpr int64_t kLeaseUs = 1000;

class TicketBookTest : public testing::Test {
 protected:
  void Ticketed(uint64_t attempt, int64_t now_us = 0) {
    book_.Ask(attempt);
    book_.GiveTicket(attempt, 10 * attempt, now_us);
  }
  static SampledToken Token(int32_t id) { return {id, 0, {}}; }

  TicketBook book_{kLeaseUs, /*kept=*/2};
};

TEST_F(TicketBookTest, AStreamComesBehindItsTicketOnly) {
  EXPECT_TRUE(absl::IsNotFound(book_.Open(1, 10).status()));
  book_.Ask(1);
  EXPECT_TRUE(absl::IsFailedPrecondition(book_.Open(1, 0).status()));
  book_.GiveTicket(1, 10, 0);
  EXPECT_TRUE(absl::IsFailedPrecondition(book_.Open(1, 9).status()));
  EXPECT_TRUE(book_.Open(1, 10).ok());
  EXPECT_TRUE(absl::IsAlreadyExists(book_.Open(1, 10).status()));
  EXPECT_TRUE(book_.Deliver(1, Token(4)));
  EXPECT_EQ(book_.End(1, FinishReason::kStop), TicketBook::EndFor::kStream);
  EXPECT_TRUE(book_.empty());
}

TEST_F(TicketBookTest, ARequestWithoutATicketEndsItsReservation) {
  book_.Ask(1);
  EXPECT_EQ(book_.End(1, absl::UnavailableError("no")), TicketBook::EndFor::kReservation);
  EXPECT_FALSE(book_.Holds(1));
}

TEST_F(TicketBookTest, TokensAndTheEndAreKept) {
  Ticketed(1);
  EXPECT_FALSE(book_.Deliver(1, Token(4)));
  EXPECT_FALSE(book_.Deliver(1, Token(5)));
  const auto owed = book_.Open(1, 10);
  ASSERT_TRUE(owed.ok());
  ASSERT_EQ(owed->tokens.size(), 2u);
  EXPECT_EQ(owed->tokens[1].token, 5);
  EXPECT_FALSE(owed->outcome.has_value());

  Ticketed(2);
  EXPECT_FALSE(book_.Deliver(2, Token(6)));
  EXPECT_EQ(book_.End(2, FinishReason::kLength), TicketBook::EndFor::kLater);
  const auto all = book_.Open(2, 20);
  ASSERT_TRUE(all.ok());
  EXPECT_EQ(all->tokens.size(), 1u);
  EXPECT_EQ(**all->outcome, FinishReason::kLength);
  EXPECT_TRUE(absl::IsNotFound(book_.Open(2, 20).status()));
}

TEST_F(TicketBookTest, AStreamThatDoesNotComeEndsTheRequest) {
  Ticketed(1, 0);
  Ticketed(2, 500);
  EXPECT_EQ(book_.NextDeadlineUs(), kLeaseUs);
  EXPECT_TRUE(book_.Expire(kLeaseUs - 1).empty());
  EXPECT_EQ(book_.Expire(kLeaseUs), std::vector<uint64_t>{1});
  EXPECT_TRUE(book_.Expire(kLeaseUs).empty()) << "once";
  EXPECT_EQ(book_.End(1, book_.TooLate()), TicketBook::EndFor::kLater) << "no stream is open";
  EXPECT_FALSE(book_.Holds(1));
  EXPECT_TRUE(book_.Open(2, 20).ok());
  EXPECT_EQ(book_.NextDeadlineUs(), kNeverUs);
  EXPECT_TRUE(book_.Expire(10 * kLeaseUs).empty());
}

TEST_F(TicketBookTest, WhatIsKeptIsForgottenInTime) {
  Ticketed(1, 0);
  book_.End(1, FinishReason::kStop);
  EXPECT_TRUE(book_.Expire(kLeaseUs).empty()) << "it is over anyway";
  EXPECT_TRUE(book_.empty());
  Ticketed(2);
  book_.ForgetIfOver(2);
  EXPECT_TRUE(book_.Holds(2));
  book_.End(2, FinishReason::kStop);
  book_.ForgetIfOver(2);
  EXPECT_TRUE(book_.empty());
}

TEST_F(TicketBookTest, TheOldestOutcomesAreForgotten) {
  for (uint64_t attempt = 3; attempt > 0; --attempt) {
    Ticketed(attempt, static_cast<int64_t>(10 - attempt));
    book_.End(attempt, FinishReason::kStop);
  }
  EXPECT_FALSE(book_.Holds(3));
  EXPECT_TRUE(book_.Holds(2));
  EXPECT_TRUE(book_.Holds(1));
}

}  // namespace
}  // namespace baton::decode
