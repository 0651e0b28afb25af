#include "common/net/host.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baton::net {
namespace {

TEST(HostTest, Ipv6StandsInBrackets) {
  EXPECT_EQ(JoinHostPort("10.0.0.1", 80), "10.0.0.1:80");
  EXPECT_EQ(JoinHostPort("node-3", 80), "node-3:80");
  EXPECT_EQ(JoinHostPort("::1", 80), "[::1]:80");
  EXPECT_EQ(JoinHostPort("[fe80::2]", 80), "[fe80::2]:80");
}

TEST(HostTest, SplitsWhatJoins) {
  for (const char* host : {"10.0.0.1", "node-3", "::1", "2001:db8::7"}) {
    const auto split = SplitHostPort(JoinHostPort(host, 30001));
    ASSERT_TRUE(split.ok()) << split.status();
    EXPECT_EQ(split->first, host);
    EXPECT_EQ(split->second, 30001);
  }
  for (const char* bad : {"", "host", ":80", "host:", "host:x", "host:70000", "::1:80", "[]:80"}) {
    EXPECT_EQ(SplitHostPort(bad).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
}

TEST(HostTest, ListensOnWhatThisMachineHas) {
  EXPECT_EQ(*ListenAddress("127.0.0.1"), "127.0.0.1");
  EXPECT_EQ(*ListenAddress("127.0.0.2"), "127.0.0.2");
  EXPECT_EQ(*ListenAddress("0.0.0.0"), "0.0.0.0");
  EXPECT_TRUE(IsLoopback(*ListenAddress("localhost")));
}

TEST(HostTest, RefusesOtherMachinesAndUnknownNames) {
  const auto other = ListenAddress("203.0.113.9");
  EXPECT_EQ(other.status().message(), "'203.0.113.9' is no address of this machine");
  const auto unknown = ListenAddress("no such name");
  EXPECT_EQ(unknown.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(unknown.status().message()),
              testing::HasSubstr("'no such name' is neither an address nor a known name"));
}

TEST(HostTest, KnowsKindsOfAddresses) {
  EXPECT_TRUE(IsUnspecified("0.0.0.0") && IsUnspecified("::") && IsUnspecified("[::]"));
  EXPECT_FALSE(IsUnspecified("127.0.0.1") || IsUnspecified("localhost"));
  EXPECT_TRUE(IsLoopback("127.0.0.1") && IsLoopback("127.9.9.9") && IsLoopback("::1"));
  EXPECT_FALSE(IsLoopback("10.0.0.1") || IsLoopback("::") || IsLoopback("localhost"));
  EXPECT_TRUE(IsIpv6("::") && IsIpv6("[fe80::1]"));
  EXPECT_FALSE(IsIpv6("10.0.0.1"));
  EXPECT_EQ(ReachableHere("0.0.0.0"), "127.0.0.1");
  EXPECT_EQ(ReachableHere("::"), "::1");
  EXPECT_EQ(ReachableHere("10.0.0.1"), "10.0.0.1");
}

TEST(HostTest, TheRouteToTheRouterTellsTheAddress) {
  EXPECT_EQ(*RouteSource("0.0.0.0", "127.0.0.1:30001"), "127.0.0.1");
  EXPECT_EQ(*RouteSource("::", "127.0.0.1:30001"), "127.0.0.1");
  // An IPv4 listener can't be reached by the address that leads to an IPv6 router.
  EXPECT_EQ(RouteSource("0.0.0.0", "[::1]:30001").status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(IsUnspecified(DefaultRouteSource("0.0.0.0")));
}

TEST(HostTest, FindsTheDeviceOfAnAddress) {
  EXPECT_EQ(DeviceOf("127.0.0.1"), "lo");
  EXPECT_EQ(DeviceOf("127.0.0.2"), "lo");
  EXPECT_EQ(DeviceOf("203.0.113.9"), "");
}

}  // namespace
}  // namespace baton::net
