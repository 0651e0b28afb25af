#include "services/router/bearer.h"

#include <gtest/gtest.h>

#include <string>

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

TEST(TenantTest, IsNamedOrTheOwnerOfItsKey) {
  EXPECT_EQ(TenantOf("acme", true, "secret"), "acme");
  EXPECT_EQ(TenantOf("", false, "secret"), "") << "the server does not check keys";
  EXPECT_EQ(TenantOf("", true, ""), "");
  const std::string owner = TenantOf("", true, "secret");
  EXPECT_EQ(owner.find("secret"), std::string::npos);
  EXPECT_EQ(TenantOf("", true, "secret"), owner);
  EXPECT_NE(TenantOf("", true, "other"), owner);
  EXPECT_LT(TenantOf(std::string(100'000, 'x'), false, "").size(), 20u);
}

}  // namespace
}  // namespace baton::router
