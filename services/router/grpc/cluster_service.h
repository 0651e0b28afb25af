// baton.v1.Cluster: workers join, renew their lease and learn of one another.
#ifndef SERVICES_ROUTER_GRPC_CLUSTER_SERVICE_H_
#define SERVICES_ROUTER_GRPC_CLUSTER_SERVICE_H_

#include "proto/baton/v1/cluster.grpc.pb.h"
#include "services/router/router_shell.h"

namespace baton::router {

class ClusterService : public v1::Cluster::CallbackService {
 public:
  explicit ClusterService(RouterShell& shell) : shell_(shell) {}  // Outlives this.

  grpc::ServerBidiReactor<v1::LeaseRequest, v1::LeaseResponse>* Lease(
      grpc::CallbackServerContext* context) override;
  grpc::ServerUnaryReactor* Find(grpc::CallbackServerContext* context,
                                 const v1::FindRequest* request,
                                 v1::FindResponse* response) override;
  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context,
                                  const v1::DrainRequest* request,
                                  v1::DrainResponse* response) override;
  grpc::ServerUnaryReactor* List(grpc::CallbackServerContext* context,
                                 const v1::ListRequest* request,
                                 v1::ListResponse* response) override;

 private:
  RouterShell& shell_;
};

}  // namespace baton::router

#endif  // SERVICES_ROUTER_GRPC_CLUSTER_SERVICE_H_
