#include <gtest/gtest.h>

#include "services/baton/worker_runtime.h"

namespace baton {
namespace {

using Variables = std::map<std::string, std::string>;

v1::Options OptionsOf(const std::string& host, const std::string& transport) {
  v1::Options options;
  options.set_host(host);
  options.set_kv_transport(transport);
  return options;
}

TEST(TransportsTest, AutoLeavesSharedMemoryOut) {
  EXPECT_EQ(TransportVariables(OptionsOf("0.0.0.0", "auto"), "", {"mlx5_0:1"}),
            (Variables{{"UCX_TLS", "^shm"}}));
  EXPECT_EQ(TransportVariables(OptionsOf("0.0.0.0", "tcp"), "", {}),
            (Variables{{"UCX_TLS", "tcp,self"}}));
}

TEST(TransportsTest, OnlyAutoReadsPeersMemory) {
  EXPECT_TRUE(PlaneOptions(OptionsOf("0.0.0.0", "auto")).pull);
  EXPECT_FALSE(PlaneOptions(OptionsOf("0.0.0.0", "tcp")).pull);
  EXPECT_FALSE(PlaneOptions(OptionsOf("0.0.0.0", "shm")).pull);
}

TEST(TransportsTest, ListensOnTheDeviceOfTheHostAlone) {
  EXPECT_EQ(TransportVariables(OptionsOf("127.0.0.1", "auto"), "lo", {"mlx5_0:1"}),
            (Variables{{"UCX_TLS", "^shm"}, {"UCX_NET_DEVICES", "lo"}}));
  EXPECT_EQ(TransportVariables(OptionsOf("10.0.0.4", "auto"), "eth0", {"mlx5_0:1", "mlx5_1:1"}),
            (Variables{{"UCX_TLS", "^shm"}, {"UCX_NET_DEVICES", "eth0,mlx5_0:1,mlx5_1:1"}}));
}

TEST(TransportsTest, NcclListensWhereTheHostIsAndGpusAreNumberedAsTheDriverDoes) {
  v1::Options options = OptionsOf("10.0.0.4", "auto");
  options.set_device("cpu");
  EXPECT_EQ(DeviceVariables(options, "eth0"), Variables{});
  options.set_device("cuda:1");
  EXPECT_EQ(DeviceVariables(options, "eth0"),
            (Variables{{"CUDA_DEVICE_ORDER", "PCI_BUS_ID"}, {"NCCL_SOCKET_IFNAME", "=eth0"}}));
  EXPECT_EQ(DeviceVariables(options, ""), (Variables{{"CUDA_DEVICE_ORDER", "PCI_BUS_ID"}}));
}

TEST(TransportsTest, PrefersTheFamilyOfTheHost) {
  EXPECT_EQ(TransportVariables(OptionsOf("2001:db8::4", "tcp"), "eth0", {}),
            (Variables{{"UCX_TLS", "tcp,self"},
                       {"UCX_TCP_AF_PRIO", "inet6,inet"},
                       {"UCX_NET_DEVICES", "eth0"}}));
}

}  // namespace
}  // namespace baton
