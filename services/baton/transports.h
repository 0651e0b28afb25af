// What UCX may use, said in its environment variables.
#ifndef SERVICES_BATON_TRANSPORTS_H_
#define SERVICES_BATON_TRANSPORTS_H_

#include <map>
#include <string>
#include <vector>

#include "common/transport/data_plane.h"
#include "proto/baton/v1/config.pb.h"

namespace baton {

// The variables for these options. `device`: the network device of options.host(), which is
// numeric; empty for all. `rdma_ports`: this machine's ("mlx5_0:1").
std::map<std::string, std::string> TransportVariables(const v1::Options& options,
                                                      const std::string& device,
                                                      const std::vector<std::string>& rdma_ports);

// Options of the worker's data plane.
DataPlaneOptions PlaneOptions(const v1::Options& options);

// Sets them where the user has set nothing. Before the data plane reads the environment and before
// other threads do.
void ChooseTransports(const v1::Options& options);

}  // namespace baton

#endif  // SERVICES_BATON_TRANSPORTS_H_
