#include "common/preflight/gpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

namespace baton {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

const std::vector<Gpu> kFour = {{"GPU-aa0", 1}, {"GPU-aa1", 2}, {"GPU-b", 3}, {"GPU-c", 4}};

// The free memory of those that are visible, which tells them apart.
std::vector<int64_t> Visible(const std::optional<std::string>& variable) {
  std::vector<int64_t> free;
  for (const Gpu& gpu : VisibleGpusOf(kFour, variable)) free.push_back(gpu.free_bytes);
  return free;
}

TEST(GpusTest, WithoutTheVariableAllAreVisible) {
  EXPECT_THAT(Visible(std::nullopt), ElementsAre(1, 2, 3, 4));
}

TEST(GpusTest, TheVariableChoosesAndOrders) {
  EXPECT_THAT(Visible("3, 0"), ElementsAre(4, 1));
  EXPECT_THAT(Visible("GPU-b,GPU-aa1"), ElementsAre(3, 2));
  EXPECT_THAT(Visible("MIG-1,2"), ElementsAre(0, 3)) << "a part of a GPU has unknown memory";
}

TEST(GpusTest, WhatIsNoGpuEndsTheList) {
  EXPECT_THAT(Visible(""), IsEmpty());
  EXPECT_THAT(Visible("NoDevFiles"), IsEmpty());
  EXPECT_THAT(Visible("1,-1,2"), ElementsAre(2));
  EXPECT_THAT(Visible("0,4,1"), ElementsAre(1));
  EXPECT_THAT(Visible("GPU-aa"), IsEmpty()) << "two begin so";
  EXPECT_THAT(Visible("GPU-"), IsEmpty());
}

}  // namespace
}  // namespace baton
