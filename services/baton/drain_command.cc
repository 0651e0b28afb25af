// `baton drain`: tells one worker to drain, by way of a router, and waits until it has left.
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/config/router_list.h"
#include "common/rpc/channel.h"
#include "common/rpc/grpc_status.h"
#include "proto/baton/v1/cluster.grpc.pb.h"
#include "services/baton/commands.h"
#include "services/baton/process.h"

namespace baton {
namespace {

constexpr int64_t kAnswerMs = 5'000;
constexpr int64_t kBeyondDrainMs = 10'000;
constexpr auto kLookAgain = std::chrono::milliseconds(200);

void SetDeadline(grpc::ClientContext& context) {
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(kAnswerMs));
}

absl::StatusOr<bool> IsListed(v1::Cluster::Stub& stub, const v1::InstanceRef& instance,
                              v1::InstanceRef* found, int* running) {
  grpc::ClientContext context;
  SetDeadline(context);
  v1::ListResponse response;
  BATON_RETURN_IF_ERROR(rpc::FromRouter(rpc::FromGrpc(stub.List(&context, {}, &response))));
  for (const v1::ListedWorker& listed : response.workers()) {
    const v1::InstanceRef& here = listed.worker().instance();
    if (here.instance_id() != instance.instance_id()) continue;
    // Its successor may be there already.
    if (instance.incarnation() != 0 && here.incarnation() != instance.incarnation()) continue;
    *found = here;
    *running = listed.load().running_requests();
    return true;
  }
  return false;
}

absl::Status Drain(const v1::Options& options) {
  BATON_ASSIGN_OR_RETURN(const auto routers, config::ParseRouters(options.router_address()));
  BATON_ASSIGN_OR_RETURN(auto security, SecureCluster(options, rpc::PeerRole::kOperator));
  // Any will do: the worker tells the others itself.
  const std::unique_ptr<v1::Cluster::Stub> stub = v1::Cluster::NewStub(rpc::OpenChannel(
      routers.front(), {.security = std::move(security), .peers = {{rpc::PeerRole::kRouter, ""}}}));
  v1::InstanceRef instance;
  instance.set_instance_id(options.instance_id());
  int running = 0;
  BATON_ASSIGN_OR_RETURN(const bool here, IsListed(*stub, instance, &instance, &running));
  if (!here) {
    return absl::NotFoundError(absl::StrCat("no worker ", options.instance_id(),
                                            " is registered with ", options.router_address()));
  }
  {
    grpc::ClientContext context;
    SetDeadline(context);
    v1::DrainRequest request;
    request.set_instance_id(options.instance_id());
    v1::DrainResponse response;
    BATON_RETURN_IF_ERROR(
        rpc::FromRouter(rpc::FromGrpc(stub->Drain(&context, request, &response))));
  }
  std::printf("%s drains, %d requests run there\n", options.instance_id().c_str(), running);
  std::fflush(stdout);
  const int64_t begun_us = NowUs();
  const int64_t until_us = begun_us + (options.drain_timeout_ms() + kBeyondDrainMs) * 1000;
  while (true) {
    BATON_ASSIGN_OR_RETURN(const bool listed, IsListed(*stub, instance, &instance, &running));
    if (!listed) break;
    if (NowUs() >= until_us) {
      return absl::DeadlineExceededError(absl::StrCat(options.instance_id(), " has not left after ",
                                                      (NowUs() - begun_us) / 1'000'000, " s, ",
                                                      running, " requests run there"));
    }
    std::this_thread::sleep_for(kLookAgain);
  }
  std::printf("%s has left after %s\n", options.instance_id().c_str(),
              SecondsSince(begun_us).c_str());
  return absl::OkStatus();
}

}  // namespace

absl::Status RunDrainCommand(const config::ParsedOptions& options) { return Drain(options.values); }

}  // namespace baton
