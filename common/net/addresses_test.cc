#include <gtest/gtest.h>

#include <set>

#include "common/net/host.h"

namespace baton::net {
namespace {

TEST(HostPortsTest, AreSeparatedByCommas) {
  EXPECT_EQ(*SplitHostPorts("a:1, [::1]:2"), (std::vector<std::string>{"a:1", "[::1]:2"}));
  EXPECT_TRUE(SplitHostPorts("")->empty());
  EXPECT_FALSE(SplitHostPorts("a:1,").ok());
  EXPECT_FALSE(SplitHostPorts("a:1,b").ok());
}

TEST(NumericAddressesTest, AreAllOfANameAndEachOnce) {
  const auto of_address = NumericAddresses("127.0.0.3:80");
  ASSERT_TRUE(of_address.ok());
  EXPECT_EQ(*of_address, std::vector<std::string>{"127.0.0.3:80"});
  const auto of_name = NumericAddresses("localhost:81");
  ASSERT_TRUE(of_name.ok()) << of_name.status();
  EXPECT_EQ(std::set<std::string>(of_name->begin(), of_name->end()).size(), of_name->size());
  for (const std::string& address : *of_name) EXPECT_TRUE(IsNumericHostPort(address)) << address;
  EXPECT_EQ(NumericAddresses("[::1]:80")->front(), "[::1]:80");
  EXPECT_TRUE(absl::IsUnavailable(NumericAddresses("no-such-host.invalid:80").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(NumericAddresses("no port").status()));
  EXPECT_FALSE(IsNumericHostPort("localhost:80"));
  EXPECT_TRUE(IsNumericHostPort("[fd00::1]:80"));
}

}  // namespace
}  // namespace baton::net
