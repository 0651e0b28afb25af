#include "common/transport/ucx_support.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "common/transport/data_plane.h"

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

TEST(MayRegisterMemoryTest, GoesByTheEnvironment) {
  setenv("UCX_TLS", "tcp,self", /*overwrite=*/1);
  EXPECT_FALSE(MayRegisterMemory());
  setenv("UCX_TLS", "rc,tcp", /*overwrite=*/1);
  EXPECT_TRUE(MayRegisterMemory());
  setenv("UCX_TLS", "^shm", /*overwrite=*/1);
  setenv("UCX_NET_DEVICES", "eth0,mlx5_0:1", /*overwrite=*/1);
  EXPECT_TRUE(MayRegisterMemory());
  setenv("UCX_NET_DEVICES", "eth0", /*overwrite=*/1);
  EXPECT_FALSE(MayRegisterMemory());
}

}  // namespace
}  // namespace baton
