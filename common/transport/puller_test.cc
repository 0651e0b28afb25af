#include "common/transport/puller.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "common/transport/offer_ledger.h"

namespace baton {
namespace {

constexpr uint64_t kSource = 7;
constexpr size_t kPayloadBytes = (5 << 20) + 3;  // Not a whole number of slices.

// Sender and receiver in one process, which may always read its own memory.
class PullerTest : public ::testing::Test {
 protected:
  PullerTest() : payload_(kPayloadBytes), target_(kPayloadBytes) {
    for (size_t i = 0; i < payload_.size(); ++i) payload_[i] = std::byte(i % 251);
    greeting_ = {static_cast<uint64_t>(getpid()), ledger_.address(), ledger_.cookie(), 3};
  }

  PullOffer Offer() {
    offered_ = *ledger_.Open();
    return {kSource, offered_.id, offered_.slot, reinterpret_cast<uint64_t>(payload_.data()),
            payload_.size()};
  }

  void Add(const PullOffer& offer) {
    const std::span<std::byte> whole = target_;
    puller_.Add({offer, offer.bytes, {whole.first(10), whole.subspan(10)}, nullptr, 1});
  }

  void AdvanceToTheEnd() {
    while (puller_.Advance()) {
    }
  }

  OfferLedger ledger_{1};
  std::vector<std::byte> payload_;
  std::vector<std::byte> target_;
  GreetingSender greeting_;
  OfferLedger::Offer offered_;
  std::vector<absl::Status> ends_;
  Puller puller_{[this](const Puller::Pull& pull, const absl::Status& status) {
    EXPECT_EQ(pull.bytes, kPayloadBytes);
    EXPECT_EQ(pull.receipt, 1u);
    ends_.push_back(status);
  }};
};

// More of them than one call reads, across the ends of slices, and with nothing in some.
TEST_F(PullerTest, ReadsAPayloadIntoManyRuns) {
  ASSERT_TRUE(puller_.AddSource(kSource, greeting_));
  const PullOffer offer = Offer();
  std::vector<std::span<std::byte>> runs;
  std::span<std::byte> left = target_;
  for (size_t i = 0; i < 200; ++i) {
    runs.push_back(left.first(i % 7 == 3 ? 0 : 1000 * (i % 60)));
    left = left.subspan(runs.back().size());
  }
  runs.push_back(left);
  ASSERT_FALSE(left.empty());
  puller_.Add({offer, offer.bytes, std::move(runs), nullptr, 1});
  AdvanceToTheEnd();
  EXPECT_EQ(ends_, std::vector<absl::Status>{absl::OkStatus()});
  EXPECT_EQ(target_, payload_);
}

TEST_F(PullerTest, ReadsAPayloadIntoItsRunsAndSaysSo) {
  ASSERT_TRUE(puller_.AddSource(kSource, greeting_));
  const PullOffer offer = Offer();
  EXPECT_TRUE(puller_.Readable(offer));
  Add(offer);
  AdvanceToTheEnd();
  ASSERT_EQ(ends_, std::vector<absl::Status>{absl::OkStatus()});
  EXPECT_EQ(target_, payload_);
  const std::vector<Puller::Answer> answers = puller_.TakeAnswers();
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].source, kSource);
  EXPECT_EQ(answers[0].end.peer, 3u);
  EXPECT_EQ(answers[0].end.id, offer.id);
  EXPECT_EQ(answers[0].end.outcome, PullOutcome::kTaken);
  EXPECT_FALSE(puller_.HasPending());
}

// Control and other peers get their turn between slices.
TEST_F(PullerTest, ReadsASliceAtATime) {
  ASSERT_TRUE(puller_.AddSource(kSource, greeting_));
  Add(Offer());
  EXPECT_TRUE(puller_.Advance());
  EXPECT_TRUE(ends_.empty());
  EXPECT_NE(target_, payload_);
}

TEST_F(PullerTest, APayloadThatWasTakenBackMeanwhileIsNoPayload) {
  ASSERT_TRUE(puller_.AddSource(kSource, greeting_));
  Add(Offer());
  EXPECT_TRUE(puller_.Advance());
  ledger_.Close(offered_);
  (void)ledger_.Open();  // Another offer has the slot.
  AdvanceToTheEnd();
  ASSERT_EQ(ends_.size(), 1u);
  EXPECT_EQ(ends_[0].code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(puller_.TakeAnswers().at(0).end.outcome, PullOutcome::kFailed);
}

TEST_F(PullerTest, MemoryThatGoesMeanwhileIsAnError) {
  ASSERT_TRUE(puller_.AddSource(kSource, greeting_));
  PullOffer offer = Offer();
  void* memory = mmap(nullptr, kPayloadBytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  offer.address = reinterpret_cast<uint64_t>(memory);
  EXPECT_TRUE(puller_.Readable(offer));
  Add(offer);
  EXPECT_TRUE(puller_.Advance());
  munmap(memory, kPayloadBytes);
  EXPECT_FALSE(puller_.Readable(offer));
  AdvanceToTheEnd();
  ASSERT_EQ(ends_.size(), 1u);
  EXPECT_EQ(ends_[0].code(), absl::StatusCode::kUnavailable);
}

TEST_F(PullerTest, ALostProcessEndsItsPullsAndNoOthers) {
  ASSERT_TRUE(puller_.AddSource(kSource, greeting_));
  ASSERT_TRUE(puller_.AddSource(kSource + 1, greeting_));
  Add(Offer());
  PullOffer other = Offer();
  other.source = kSource + 1;
  Add(other);
  puller_.RemoveSource(kSource);
  ASSERT_EQ(ends_.size(), 1u);
  EXPECT_EQ(ends_[0].code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(puller_.HasSource(kSource));
  AdvanceToTheEnd();
  ASSERT_EQ(ends_.size(), 2u);
  EXPECT_TRUE(ends_[1].ok()) << ends_[1];
}

// What a process of another pid namespace, with the same number, looks like; or one that is gone.
TEST_F(PullerTest, IsNotTakenInByAnotherProcess) {
  GreetingSender other = greeting_;
  other.cookie += 1;
  EXPECT_FALSE(puller_.AddSource(kSource, other));
  other = greeting_;
  other.process = 0x7ffffffe;  // More than any system has.
  EXPECT_FALSE(puller_.AddSource(kSource, other));
  other.process = ~uint64_t{0};
  EXPECT_FALSE(puller_.AddSource(kSource, other));
  other = greeting_;
  other.ledger = 8;  // Nothing is mapped there.
  EXPECT_FALSE(puller_.AddSource(kSource, other));
  EXPECT_FALSE(puller_.HasSource(kSource));
}

TEST_F(PullerTest, ShuttingDownEndsWhatIsLeft) {
  ASSERT_TRUE(puller_.AddSource(kSource, greeting_));
  Add(Offer());
  puller_.Abandon(absl::CancelledError("over"));
  EXPECT_EQ(ends_, std::vector<absl::Status>{absl::CancelledError("over")});
  EXPECT_FALSE(puller_.Advance());
}

TEST(OfferLedgerTest, NeverUsesAnIdAgainAndRunsOutOfSlots) {
  OfferLedger ledger(1);
  std::vector<OfferLedger::Offer> offers;
  while (const std::optional<OfferLedger::Offer> offer = ledger.Open()) offers.push_back(*offer);
  EXPECT_EQ(offers.size(), OfferLedger::kSlots);
  for (const OfferLedger::Offer& offer : offers) {
    uint64_t word = 0;
    ASSERT_TRUE(ReadProcess(static_cast<uint64_t>(getpid()),
                            OfferLedger::SlotAddress(ledger.address(), offer.slot),
                            std::as_writable_bytes(std::span(&word, 1))));
    EXPECT_EQ(word, offer.id);
  }
  ledger.Close(offers[5]);
  const std::optional<OfferLedger::Offer> again = ledger.Open();
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(again->slot, offers[5].slot);
  EXPECT_EQ(again->id, offers.back().id + 1);
  EXPECT_NE(OfferLedger(2).cookie(), ledger.cookie());
}

}  // namespace
}  // namespace baton
