#include "common/transport/endpoint_life.h"

#include <gtest/gtest.h>

#include <utility>

#include "absl/status/status.h"

namespace baton {
namespace {

constexpr int64_t kSecond = 1'000'000;
constexpr EndpointLifeOptions kOptions{
    .ping_us = 500'000, .silence_us = 3 * kSecond, .slowest_bytes_per_us = 10.0};

class EndpointLifeTest : public testing::Test {
 protected:
  // Looks at `life` twice in each ping's time until `until_us`, or until it is dead; every ping is
  // answered if `answered`.
  absl::Status Look(EndpointLife& life, int64_t until_us, bool answered) {
    absl::Status status;
    for (; status.ok() && now_us_ < until_us; now_us_ += kOptions.ping_us / 2) {
      const auto ping = life.TakePing(now_us_);
      if (ping.has_value()) ++pings_;
      if (ping.has_value() && answered) life.Answered(*ping, now_us_ + 100);
      status = life.Check(now_us_);
    }
    return status;
  }

  int64_t now_us_ = 0;
  int pings_ = 0;
};

TEST_F(EndpointLifeTest, OneThatIsAnsweredLives) {
  EndpointLife life(kOptions, 0);
  EXPECT_TRUE(Look(life, 60 * kSecond, /*answered=*/true).ok());
  EXPECT_EQ(pings_, 120);
}

TEST_F(EndpointLifeTest, OneThatIsAnsweredNoMoreIsDead) {
  EndpointLife life(kOptions, 0);
  ASSERT_TRUE(Look(life, 10 * kSecond, /*answered=*/true).ok());
  const absl::Status status = Look(life, 60 * kSecond, /*answered=*/false);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_GE(now_us_, 13 * kSecond);
  EXPECT_LE(now_us_, 14 * kSecond);
}

// The greeting was lost, or the way back.
TEST_F(EndpointLifeTest, OneThatIsNeverAnsweredIsDead) {
  EndpointLife life(kOptions, 0);
  EXPECT_TRUE(absl::IsUnavailable(Look(life, 60 * kSecond, /*answered=*/false)));
  EXPECT_LE(now_us_, 4 * kSecond);
}

TEST_F(EndpointLifeTest, ASendThatNeverEndsIsDeathThoughPingsAreAnswered) {
  EndpointLife life(kOptions, 0);
  ASSERT_TRUE(Look(life, 10 * kSecond, /*answered=*/true).ok());
  life.SendBegan(1000, now_us_);
  EXPECT_TRUE(absl::IsUnavailable(Look(life, 60 * kSecond, /*answered=*/true)));
  EXPECT_GE(now_us_, 13 * kSecond);
  EXPECT_LE(now_us_, 14 * kSecond);
}

// One after the other ends, each in its time.
TEST_F(EndpointLifeTest, SendsThatGetOnAreWaitedFor) {
  EndpointLife life(kOptions, 0);
  uint64_t before = life.SendBegan(1000, 0);
  for (int send = 0; send < 20; ++send) {
    const uint64_t next = life.SendBegan(1000, now_us_);
    ASSERT_TRUE(Look(life, now_us_ + kSecond, /*answered=*/true).ok()) << send;
    life.SendEnded(std::exchange(before, next));
  }
}

// A lost offer on a connection that carries everything else.
TEST_F(EndpointLifeTest, OneSendThatNeverEndsIsFoundAmongOthersThatDo) {
  EndpointLife life(kOptions, 0);
  life.SendBegan(1000, 0);
  absl::Status status;
  while (status.ok() && now_us_ < 60 * kSecond) {
    const uint64_t other = life.SendBegan(1000, now_us_);
    status = Look(life, now_us_ + kSecond / 2, /*answered=*/true);
    life.SendEnded(other);
  }
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_LE(now_us_, 4 * kSecond);
}

TEST_F(EndpointLifeTest, ManyBytesAreGivenTheirTime) {
  EndpointLife life(kOptions, 0);
  ASSERT_TRUE(Look(life, kSecond, /*answered=*/true).ok());
  life.SendEnded(life.SendBegan(100 * kSecond, now_us_));  // Ten seconds at the slowest.
  EXPECT_TRUE(Look(life, 13 * kSecond, /*answered=*/false).ok());
  EXPECT_TRUE(absl::IsUnavailable(Look(life, 20 * kSecond, /*answered=*/false)));
}

// A process that stood still itself can't have seen an answer.
TEST_F(EndpointLifeTest, APauseOfOnesOwnIsNobodysSilence) {
  EndpointLife life(kOptions, 0);
  ASSERT_TRUE(Look(life, kSecond, /*answered=*/true).ok());
  const auto ping = life.TakePing(now_us_);
  ASSERT_TRUE(ping.has_value());
  const uint64_t send = life.SendBegan(10, now_us_);
  now_us_ += 30 * kSecond;
  EXPECT_TRUE(life.Check(now_us_).ok());
  life.Answered(*ping, now_us_);
  life.SendEnded(send);
  EXPECT_TRUE(Look(life, 60 * kSecond, /*answered=*/true).ok());
}

TEST_F(EndpointLifeTest, AnswersToNothingCountForNothing) {
  EndpointLife life(kOptions, 0);
  const auto ping = life.TakePing(0);
  ASSERT_TRUE(ping.has_value());
  life.Answered(*ping + 7, 2 * kSecond);
  life.Answered(0, 2 * kSecond);
  EXPECT_TRUE(absl::IsUnavailable(Look(life, 60 * kSecond, /*answered=*/false)));
  EXPECT_LE(now_us_, 4 * kSecond);
}

TEST_F(EndpointLifeTest, ALateAnswerToAnEarlierPingIsAnAnswer) {
  EndpointLife life(kOptions, 0);
  const auto first = life.TakePing(0);
  ASSERT_TRUE(first.has_value());
  ASSERT_TRUE(Look(life, 2 * kSecond, /*answered=*/false).ok());
  life.Answered(*first, now_us_);
  EXPECT_TRUE(Look(life, 5 * kSecond, /*answered=*/false).ok());
}

TEST_F(EndpointLifeTest, NothingIsAskedOrJudgedWithoutABound) {
  EndpointLife life({.silence_us = 0}, 0);
  life.SendBegan(1, 0);
  EXPECT_TRUE(Look(life, 60 * kSecond, /*answered=*/false).ok());
  EXPECT_EQ(pings_, 0);
}

TEST(ReturnLifeTest, AnOpenerThatAsksNoMoreIsGone) {
  ReturnLife life(kOptions, 0);
  absl::Status status;
  int64_t now_us = 0;
  for (; now_us < 10 * kSecond; now_us += 250'000) {
    life.Heard(now_us);
    ASSERT_TRUE(life.Check(now_us).ok());
  }
  for (; status.ok() && now_us < 60 * kSecond; now_us += 250'000) status = life.Check(now_us);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_LE(now_us, 17 * kSecond);
}

TEST(ReturnLifeTest, AnOpenerThatNeverAsksIsGone) {
  ReturnLife life(kOptions, 0);
  int64_t now_us = 0;
  while (life.Check(now_us).ok() && now_us < 60 * kSecond) now_us += 250'000;
  EXPECT_EQ(now_us, 6 * kSecond);
}

TEST(ReturnLifeTest, APauseOfOnesOwnIsNobodysSilence) {
  ReturnLife life(kOptions, 0);
  life.Heard(0);
  EXPECT_TRUE(life.Check(0).ok());
  EXPECT_TRUE(life.Check(60 * kSecond).ok());
}

}  // namespace
}  // namespace baton
