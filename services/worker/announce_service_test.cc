#include "services/worker/announce_service.h"

#include <gtest/gtest.h>

namespace baton::worker {
namespace {

absl::StatusOr<std::string> Address(const std::string& peer, int port,
                                    const std::string& host = "") {
  v1::AnnounceRequest request;
  request.set_grpc_port(port);
  request.set_host(host);
  return AnnouncedAddress(peer, request);
}

TEST(AnnouncedAddressTest, IsWhereTheCallComesFromUnlessTheRouterSaysOtherwise) {
  EXPECT_EQ(*Address("ipv4:10.0.0.1:5000", 30001), "10.0.0.1:30001");
  EXPECT_EQ(*Address("ipv6:%5Bfd00::1%5D:5000", 30001), "[fd00::1]:30001");
  EXPECT_EQ(*Address("ipv6:[fd00::1]:5000", 30001), "[fd00::1]:30001");
  EXPECT_EQ(*Address("ipv4:10.0.0.1:5000", 30001, "10.9.9.9"), "10.9.9.9:30001");
}

TEST(AnnouncedAddressTest, RefusesWhatNoRouterCanBeAt) {
  EXPECT_TRUE(absl::IsInvalidArgument(Address("ipv4:10.0.0.1:5000", 0).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Address("ipv4:10.0.0.1:5000", 65536).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Address("unix:/tmp/socket", 30001).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Address("", 30001).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Address("ipv4:10.0.0.1:5000", 30001, "a name").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(
      Address("ipv4:10.0.0.1:5000", 30001, std::string(1000, 'a')).status()));
}

}  // namespace
}  // namespace baton::worker
