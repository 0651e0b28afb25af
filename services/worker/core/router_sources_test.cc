#include "services/worker/core/router_sources.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"

namespace baton::worker {
namespace {

using Names = std::set<std::string>;

constexpr int64_t kSecond = 1'000'000;

class RouterSourcesTest : public testing::Test {
 protected:
  std::vector<std::string> Begin(int64_t now_us) { return sources_.BeginResolving(now_us); }

  RouterSources sources_{{"one", "two"}, {"10.0.0.1:1"}, 10 * kSecond};
};

TEST_F(RouterSourcesTest, AskForEachNameAtOnceAndThenNowAndThen) {
  EXPECT_EQ(sources_.NextDeadlineUs(), 0);
  EXPECT_EQ(Begin(0), (std::vector<std::string>{"one", "two"}));
  EXPECT_TRUE(Begin(0).empty()) << "they are being asked for";
  EXPECT_EQ(sources_.NextDeadlineUs(), kNeverUs);
  sources_.Resolved("one", std::vector<std::string>{"10.0.0.2:1", "10.0.0.3:1"}, kSecond);
  EXPECT_EQ(sources_.NextDeadlineUs(), 11 * kSecond);
  sources_.Resolved("two", absl::UnavailableError("dns"), 2 * kSecond);
  EXPECT_EQ(sources_.NextDeadlineUs(), 3 * kSecond) << "a failure is asked again soon";
  sources_.Resolved("three", std::vector<std::string>{"10.0.0.9:1"}, 0);
  EXPECT_EQ(sources_.Addresses(), (Names{"10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"}));
  EXPECT_TRUE(Begin(3 * kSecond - 1).empty());
  EXPECT_EQ(Begin(3 * kSecond), std::vector<std::string>{"two"});
  EXPECT_EQ(Begin(11 * kSecond), std::vector<std::string>{"one"});
  sources_.Resolved("one", absl::UnavailableError("dns"), 12 * kSecond);
  EXPECT_EQ(sources_.Addresses().size(), 3u) << "an outage costs nobody a router";
  EXPECT_EQ(Begin(13 * kSecond), std::vector<std::string>{"one"});
  sources_.Resolved("one", std::vector<std::string>{"10.0.0.4:1"}, 13 * kSecond);
  EXPECT_EQ(sources_.Addresses(), (Names{"10.0.0.1:1", "10.0.0.4:1"}));
}

TEST_F(RouterSourcesTest, ALossIsAReasonToAskButNotOften) {
  Begin(0);
  sources_.Resolved("one", std::vector<std::string>{}, 0);
  sources_.Resolved("two", std::vector<std::string>{}, 0);
  sources_.ResolveSoon(kSecond / 10);
  EXPECT_EQ(sources_.NextDeadlineUs(), kSecond / 2) << "from the last question on";
  sources_.ResolveSoon(kSecond);
  EXPECT_EQ(sources_.NextDeadlineUs(), kSecond / 2) << "never later than it was due";
  EXPECT_EQ(Begin(5 * kSecond).size(), 2u);
  sources_.Resolved("one", std::vector<std::string>{}, 5 * kSecond);
  sources_.Resolved("two", std::vector<std::string>{}, 5 * kSecond);
  sources_.ResolveSoon(7 * kSecond);
  EXPECT_EQ(sources_.NextDeadlineUs(), 7 * kSecond);
}

TEST_F(RouterSourcesTest, AnnouncementsCountUntilTheyExpire) {
  Begin(0);
  sources_.Announced("10.0.0.7:1", kSecond);
  EXPECT_EQ(sources_.NextDeadlineUs(), kSecond);
  EXPECT_EQ(sources_.Addresses(), (Names{"10.0.0.1:1", "10.0.0.7:1"}));
  sources_.Announced("10.0.0.7:1", 2 * kSecond);
  sources_.Expire(kSecond);
  EXPECT_EQ(sources_.Addresses().size(), 2u) << "announced again";
  sources_.Expire(2 * kSecond - 1);
  EXPECT_EQ(sources_.Addresses().size(), 2u);
  sources_.Expire(2 * kSecond);
  EXPECT_EQ(sources_.Addresses(), Names{"10.0.0.1:1"});
  EXPECT_EQ(sources_.NextDeadlineUs(), kNeverUs);
}

TEST_F(RouterSourcesTest, AnnouncementsAreBounded) {
  for (int i = 0; i < 65; ++i) sources_.Announced(absl::StrCat("r", i), kSecond);
  EXPECT_EQ(sources_.Addresses().size(), 65u) << "64 and the one that was given";
  EXPECT_FALSE(sources_.Addresses().contains("r64"));
  sources_.Announced("r0", 2 * kSecond);
  sources_.Expire(kSecond);
  EXPECT_EQ(sources_.Addresses(), (Names{"10.0.0.1:1", "r0"})) << "who is known may go on";
}

}  // namespace
}  // namespace baton::worker
