#include "common/config/router_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "common/base/status.h"

namespace baton::config {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::string Routers(int count) {
  std::string text = "r0:1";
  for (int i = 1; i < count; ++i) text += ",r" + std::to_string(i) + ":1";
  return text;
}

TEST(RouterListTest, TakesAddressesAndNames) {
  EXPECT_THAT(*ParseRouters("10.0.0.1:30002, routers.baton:1,[::1]:2"),
              ElementsAre("10.0.0.1:30002", "routers.baton:1", "[::1]:2"));
  EXPECT_THAT(*ParseRouters(""), IsEmpty());
  EXPECT_EQ(ParseRouters(Routers(kMaxListedRouters))->size(), kMaxListedRouters);
}

TEST(RouterListTest, RefusesWhatNamesNoPortAndTooMany) {
  for (const std::string& text :
       {std::string("routers"), std::string("a:1,b"), std::string("a:1,"), std::string("a:0"),
        std::string("a:70000"), std::string("::1:30001"), Routers(kMaxListedRouters + 1)}) {
    const absl::Status status = ParseRouters(text).status();
    EXPECT_EQ(FieldOf(status), "router_address") << text << ": " << status;
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << text;
  }
}

}  // namespace
}  // namespace baton::config
