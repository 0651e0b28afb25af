#include "common/transport/ucx_support.h"

#include <gtest/gtest.h>

namespace baton {
namespace {

TEST(OnlyTcpTest, IsWhatTheTransportsSay) {
  EXPECT_TRUE(OnlyTcp("tcp,self", std::nullopt, true));
  EXPECT_TRUE(OnlyTcp("tcp", "eth0,mlx5_0:1", true));
  EXPECT_FALSE(OnlyTcp("tcp,shm,self", std::nullopt, false));
  EXPECT_FALSE(OnlyTcp("rc,tcp", std::nullopt, false));
  EXPECT_FALSE(OnlyTcp("^sysv", std::nullopt, false));
  EXPECT_FALSE(OnlyTcp("all", std::nullopt, false));
  EXPECT_FALSE(OnlyTcp(std::nullopt, "lo", false)) << "shared memory is among UCX's own choice";
}

TEST(OnlyTcpTest, WithoutSharedMemoryItIsWhatTheDevicesAre) {
  EXPECT_TRUE(OnlyTcp("^shm", std::nullopt, false));
  EXPECT_FALSE(OnlyTcp("^shm", std::nullopt, true));
  EXPECT_FALSE(OnlyTcp("^shm", "all", true));
  EXPECT_TRUE(OnlyTcp("^shm", "lo", true)) << "the RDMA device is not used";
  EXPECT_FALSE(OnlyTcp("^shm", "eth0,mlx5_0:1", true));
}

}  // namespace
}  // namespace baton
