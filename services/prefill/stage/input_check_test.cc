#include <gtest/gtest.h>

#include <thread>

#include "services/prefill/stage/input_buffers.h"

namespace baton::prefill {
namespace {

TEST(InputCheckTest, HoldsWhenBothSidesHaveSaidTheSame) {
  InputCheck check(3);
  EXPECT_TRUE(check.Arrived(7).ok());
  std::thread thread([&] { EXPECT_TRUE(check.Sent(7).ok()); });
  EXPECT_TRUE(check.Await().ok());
  thread.join();
}

TEST(InputCheckTest, WhoeverComesSecondHearsThatTheyDiffer) {
  const absl::Status damaged = absl::DataLossError("activations of plan 3 are damaged");
  InputCheck check(3);
  EXPECT_TRUE(check.Sent(7).ok());
  EXPECT_EQ(check.Arrived(8), damaged);
  EXPECT_EQ(check.Await(), damaged);

  InputCheck turned(3);
  EXPECT_TRUE(turned.Arrived(7).ok());
  EXPECT_EQ(turned.Sent(8), damaged);
  EXPECT_EQ(turned.Await(), damaged);
}

TEST(InputCheckTest, NobodyWaitsForWhatDoesNotComeAnyMore) {
  InputCheck check(3);
  EXPECT_TRUE(check.Arrived(7).ok());
  std::thread thread([&] { check.Settle(absl::CancelledError("over")); });
  EXPECT_EQ(check.Await(), absl::CancelledError("over"));
  thread.join();
  EXPECT_TRUE(check.Sent(7).ok()) << "it may come all the same";
  EXPECT_EQ(check.Await(), absl::CancelledError("over")) << "and changes nothing any more";
}

TEST(InputCheckTest, AChecksumComesOnce) {
  InputCheck check(3);
  EXPECT_TRUE(check.Sent(7).ok());
  EXPECT_EQ(check.Sent(8),
            absl::FailedPreconditionError("activations of plan 3: their checksum came twice"));
  EXPECT_TRUE(check.Arrived(7).ok()) << "the first counts";
  EXPECT_TRUE(check.Await().ok());
}

TEST(InputCheckTest, AnAnswerStaysWhenTheEpochEnds) {
  InputCheck check(3);
  EXPECT_TRUE(check.Sent(7).ok());
  EXPECT_TRUE(check.Arrived(7).ok());
  check.Settle(absl::CancelledError("over"));
  EXPECT_TRUE(check.Await().ok());
}

}  // namespace
}  // namespace baton::prefill
