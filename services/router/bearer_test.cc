#include "services/router/bearer.h"

#include <gtest/gtest.h>

namespace baton::router {
namespace {

TEST(BearerTest, TheSchemeHasNoCaseAndTheKeyHas) {
  EXPECT_EQ(BearerKey("Bearer Secret"), "Secret");
  EXPECT_EQ(BearerKey("bearer Secret"), "Secret");
  EXPECT_EQ(BearerKey("BEARER   Secret "), "Secret");
  EXPECT_EQ(BearerKey(" Bearer\tSecret"), "Secret");
  EXPECT_EQ(BearerKey("Bearer a b"), "a b");
}

TEST(BearerTest, OtherSchemesHaveNoKey) {
  for (const char* header : {"", "Bearer", "Bearer ", "BearerSecret", "Basic Secret", "Secret"}) {
    EXPECT_EQ(BearerKey(header), "") << header;
  }
}

}  // namespace
}  // namespace baton::router
