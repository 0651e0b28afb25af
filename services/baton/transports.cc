#include "services/baton/transports.h"

#include <cstdlib>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/net/host.h"

namespace baton {
namespace {

std::vector<std::string> RdmaPorts() {
  std::vector<std::string> ports;
  std::error_code error;
  const std::filesystem::path root = "/sys/class/infiniband";
  for (const auto& device : std::filesystem::directory_iterator(root, error)) {
    for (const auto& port : std::filesystem::directory_iterator(device.path() / "ports", error)) {
      ports.push_back(
          absl::StrCat(device.path().filename().string(), ":", port.path().filename().string()));
    }
  }
  return ports;
}

}  // namespace

std::map<std::string, std::string> TransportVariables(const v1::Options& options,
                                                      const std::string& device,
                                                      const std::vector<std::string>& rdma_ports) {
  std::map<std::string, std::string> variables;
  // UCX's shared memory is left out of what it may choose: all senders of a host write to one queue
  // of the receiver, and one that is killed between taking a place in it and filling the place
  // stops the queue for all others, for good (common/transport/README.md).
  variables["UCX_TLS"] =
      options.kv_transport() == "auto" ? "^shm" : absl::StrCat(options.kv_transport(), ",self");
  if (net::IsIpv6(options.host())) variables["UCX_TCP_AF_PRIO"] = "inet6,inet";
  if (device.empty()) return variables;
  // UCX listens on a device's first address, so the data plane is as far visible as --host says up
  // to the device. RDMA ports have no address to go by; loopback has no use for them.
  std::vector<std::string> devices = {device};
  if (!net::IsLoopback(options.host())) {
    devices.insert(devices.end(), rdma_ports.begin(), rdma_ports.end());
  }
  variables["UCX_NET_DEVICES"] = absl::StrJoin(devices, ",");
  return variables;
}

DataPlaneOptions PlaneOptions(const v1::Options& options) {
  DataPlaneOptions plane;
  plane.pull = options.kv_transport() == "auto";
  return plane;
}

void ChooseTransports(const v1::Options& options) {
  const std::string device =
      net::IsUnspecified(options.host()) ? "" : net::DeviceOf(options.host());
  for (const auto& [name, value] : TransportVariables(options, device, RdmaPorts())) {
    setenv(name.c_str(), value.c_str(), /*overwrite=*/0);
  }
}

}  // namespace baton
