#include "services/worker/announce_service.h"

#include <grpcpp/support/server_callback.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "common/base/status.h"
#include "common/net/host.h"
#include "common/rpc/grpc_status.h"

namespace baton::worker {
namespace {

constexpr int kMaxPort = 65535;
constexpr size_t kMaxHostBytes = 253;  // Limit of a DNS name.

}  // namespace

absl::StatusOr<std::string> AnnouncedAddress(const std::string& peer,
                                             const v1::AnnounceRequest& request) {
  if (request.grpc_port() < 1 || request.grpc_port() > kMaxPort) {
    return InvalidField("grpc_port",
                        absl::StrCat("must be from 1 to ", kMaxPort, ", is ", request.grpc_port()));
  }
  if (request.host().size() > kMaxHostBytes) return InvalidField("host", "is too long");
  std::string host = request.host();
  if (host.empty()) {
    // "ipv4:10.0.0.1:5000" or "ipv6:%5Bfd00::1%5D:5000".
    absl::string_view from = peer;
    const bool internet =
        absl::ConsumePrefix(&from, "ipv4:") || absl::ConsumePrefix(&from, "ipv6:");
    const auto split =
        net::SplitHostPort(absl::StrReplaceAll(from, {{"%5B", "["}, {"%5D", "]"}, {"%25", "%"}}));
    if (!internet || !split.ok()) {
      return InvalidField("host", absl::StrCat("required: the call comes from ", peer));
    }
    host = split->first;
  }
  std::string address = net::JoinHostPort(host, request.grpc_port());
  if (!net::IsNumericHostPort(address)) {
    return InvalidField("host", absl::StrCat("must be an address, is ", host));
  }
  return address;
}

void AnnounceService::Attach(const ClusterClient* client) {
  MutexLock lock(&mutex_);
  client_ = client;
}

absl::Status AnnounceService::Take(const std::string& peer, const v1::AnnounceRequest& request) {
  if (!welcome_) {
    return absl::FailedPreconditionError(
        "this worker was given --router-address and joins no other router");
  }
  BATON_ASSIGN_OR_RETURN(const std::string address, AnnouncedAddress(peer, request));
  MutexLock lock(&mutex_);
  if (client_ == nullptr) return absl::UnavailableError("the worker is starting or stopping");
  client_->Announce(address);
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* AnnounceService::Announce(grpc::CallbackServerContext* context,
                                                    const v1::AnnounceRequest* request,
                                                    v1::AnnounceResponse*) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(rpc::ToGrpc(Take(context->peer(), *request)));
  return reactor;
}

}  // namespace baton::worker
