#include "services/worker/core/taken_prompts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baton::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using Keys = TakenPrompts::Keys;

TEST(TakenPromptsTest, EachRouterHearsOfWhatOthersSent) {
  TakenPrompts taken;
  taken.Add(1, {10, 11});
  taken.Add(2, {20});
  taken.Add(2, {});  // Shorter than the first key.
  EXPECT_THAT(taken.Untold(1).prompts, ElementsAre(Keys{20}));
  EXPECT_THAT(taken.Untold(2).prompts, ElementsAre(Keys{10, 11}));
  EXPECT_THAT(taken.Untold(3).prompts, ElementsAre(Keys{10, 11}, Keys{20}));
}

TEST(TakenPromptsTest, WhatWasToldIsNotToldAgain) {
  TakenPrompts taken;
  taken.Add(1, {10});
  const TakenPrompts::News first = taken.Untold(2);
  taken.Add(1, {11});
  EXPECT_THAT(taken.Untold(2).prompts, SizeIs(2));  // The answer has not come.
  const TakenPrompts::News second = taken.Untold(2);
  taken.Told(2, second.last);
  taken.Told(2, first.last);  // Late.
  EXPECT_THAT(taken.Untold(2).prompts, IsEmpty());
  taken.Add(1, {12});
  EXPECT_THAT(taken.Untold(2).prompts, ElementsAre(Keys{12}));
}

TEST(TakenPromptsTest, KeepsTheNewestPrompts) {
  TakenPrompts taken;
  const int prompts = 2 * kMaxTakenKeys / kMaxPrefixKeys;
  for (int i = 0; i < prompts; ++i) taken.Add(1, Keys(kMaxPrefixKeys, static_cast<uint64_t>(i)));
  const TakenPrompts::News news = taken.Untold(2);
  ASSERT_THAT(news.prompts, SizeIs(prompts / 2));
  EXPECT_EQ(news.prompts.front().front(), static_cast<uint64_t>(prompts / 2));
}

TEST(TakenPromptsTest, ARouterThatHasGoneGivesWay) {
  TakenPrompts taken;
  taken.Add(100, {7});
  taken.Told(1, 1);
  taken.Add(100, {8});
  for (uint64_t router = 2; router < 30; ++router) taken.Told(router, 2);
  EXPECT_THAT(taken.Untold(1).prompts, SizeIs(2));  // Forgotten: as a new one.
  EXPECT_THAT(taken.Untold(29).prompts, IsEmpty());
}

}  // namespace
}  // namespace baton::worker
