#include "common/engine/sampling/compiling_requests.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "common/base/sync.h"

namespace baton {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class CompilingRequestsTest : public ::testing::Test {
 protected:
  bool Hold(int number, const std::shared_ptr<const PendingConstraint>& constraint) {
    std::string request = std::to_string(number);
    return requests_.Hold(constraint, request);
  }
  static std::shared_ptr<PendingConstraint> Pending() {
    return std::make_shared<PendingConstraint>();
  }

  CompilingRequests<std::string> requests_;
};

TEST_F(CompilingRequestsTest, WhatIsReadyIsNotHeld) {
  EXPECT_FALSE(Hold(1, nullptr));
  const auto failed = Pending();
  failed->Set(absl::InvalidArgumentError("("));
  EXPECT_FALSE(Hold(2, failed)) << "its draw fails, which needs no waiting";
  EXPECT_TRUE(requests_.empty());
  EXPECT_EQ(requests_.NextUs(5), kNeverUs);
}

TEST_F(CompilingRequestsTest, EachWaitsForItsOwn) {
  const auto slow = Pending();
  const auto quick = Pending();
  for (int id = 1; id <= 4; ++id) {
    const auto& of = id % 2 == 0 ? quick : slow;
    EXPECT_TRUE(Hold(id, of));
  }
  EXPECT_GT(requests_.NextUs(5), 5);
  EXPECT_THAT(requests_.Take(5), IsEmpty());
  quick->Set(absl::UnknownError(""));
  EXPECT_THAT(requests_.Take(5), ElementsAre("2", "4"));
  EXPECT_THAT(requests_.Take(kNeverUs), ElementsAre("1", "3"))
      << "a service that ends waits no more";
}

TEST_F(CompilingRequestsTest, OneMayLeave) {
  const auto slow = Pending();
  EXPECT_TRUE(Hold(1, slow));
  EXPECT_TRUE(Hold(2, slow));
  const auto is = [](const char* of) {
    return [of](const std::string& held) { return held == of; };
  };
  EXPECT_EQ(requests_.Remove(is("3")), std::nullopt);
  EXPECT_NE(requests_.Find(is("1")), nullptr);
  EXPECT_EQ(requests_.Remove(is("1")), "1");
  EXPECT_EQ(requests_.Find(is("1")), nullptr);
  slow->Set(absl::UnknownError(""));
  EXPECT_THAT(requests_.Take(5), ElementsAre("2"));
}

TEST_F(CompilingRequestsTest, TheirNumberIsBounded) {
  const auto slow = Pending();
  for (size_t i = 0; i < CompilingRequests<std::string>::kMost; ++i) ASSERT_TRUE(Hold(1, slow));
  EXPECT_FALSE(Hold(2, slow));
}

TEST_F(CompilingRequestsTest, WhatIsCompiledElsewhereWaitsUntilItIsRemovedOrUntilATime) {
  const auto hold = [this](int64_t until_us, std::string request) {
    return requests_.HoldUntil(until_us, request);
  };
  EXPECT_TRUE(hold(900, "late"));
  EXPECT_TRUE(hold(700, "soon"));
  EXPECT_TRUE(hold(700, "told"));
  EXPECT_EQ(requests_.NextUs(5), 700) << "nothing is to be looked at before";
  EXPECT_THAT(requests_.Take(699), IsEmpty());
  EXPECT_EQ(requests_.Remove([](const std::string& held) { return held == "told"; }), "told");
  EXPECT_THAT(requests_.Take(700), ElementsAre("soon"));
  EXPECT_THAT(requests_.Take(kNeverUs), ElementsAre("late"));
  for (size_t i = 0; i < CompilingRequests<std::string>::kMostElsewhere; ++i) {
    ASSERT_TRUE(hold(1, ""));
  }
  EXPECT_FALSE(hold(1, ""));
  EXPECT_TRUE(Hold(1, Pending())) << "the other process is not asked";
}

// The first request must not wait for the vocabulary longer than for a schema.
TEST(ConstraintsTest, TheVocabularyIsLoadedAtOnce) {
  Notification loaded;
  Constraints constraints([&]() -> absl::StatusOr<Constraints::Vocabulary> {
    loaded.Notify();
    return absl::FailedPreconditionError("no tokenizer");
  });
  loaded.WaitForNotification();
}

// A request may be read twice: when its structure is to be compiled, and when it begins.
TEST(ConstraintsTest, WhatIsUsedIsFoundAgain) {
  Constraints constraints([] { return absl::FailedPreconditionError("no tokenizer"); });
  const auto find = [&](size_t number) {
    v1::TextStructure structure;
    structure.set_regex(std::to_string(number));
    auto found = constraints.Find(structure);
    EXPECT_TRUE(found.ok()) << found.status();
    return *std::move(found);
  };
  const auto used = find(0);
  const std::weak_ptr<const PendingConstraint> unused = find(1);
  for (size_t i = 2; i < 3 * Constraints::kMaxKept; ++i) {
    EXPECT_FALSE(find(i)->Await().ok());
  }
  EXPECT_EQ(find(0), used);
  EXPECT_TRUE(unused.expired());
}

}  // namespace
}  // namespace baton
