// A worker's end of Cluster.Lease, one message after the other.
#ifndef SERVICES_ROUTER_TESTING_LEASE_CLIENT_H_
#define SERVICES_ROUTER_TESTING_LEASE_CLIENT_H_

#include <grpcpp/client_context.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "proto/baton/v1/cluster.grpc.pb.h"

namespace baton::router {

class LeaseClient {
 public:
  LeaseClient() = default;
  ~LeaseClient() { Break(); }
  LeaseClient(const LeaseClient&) = delete;
  LeaseClient& operator=(const LeaseClient&) = delete;

  // By a new call, in place of one that stands. Not OK: how the call has ended, as of Beat.
  grpc::Status Register(v1::Cluster::Stub& cluster, const v1::RegisterRequest& request,
                        v1::RegisterResponse* registered = nullptr) {
    Break();
    context_ = std::make_unique<grpc::ClientContext>();
    context_->set_wait_for_ready(true);
    stream_ = cluster.Lease(context_.get());
    v1::LeaseRequest message;
    *message.mutable_registration() = request;
    static std::atomic<uint64_t> calls{0};
    message.mutable_registration()->set_call_number(++calls);
    v1::LeaseResponse response;
    if (!stream_->Write(message) || !stream_->Read(&response)) return End();
    if (registered != nullptr) *registered = response.registered();
    return grpc::Status::OK;
  }

  // Sends a heartbeat and waits for its answer.
  grpc::Status Beat(const v1::HeartbeatRequest& beat, v1::HeartbeatResponse* answer) {
    if (stream_ == nullptr) return {grpc::StatusCode::FAILED_PRECONDITION, "there is no call"};
    if (!Send(beat)) return End();
    v1::LeaseResponse response;
    do {  // The router may have asked for a heartbeat.
      if (!stream_->Read(&response)) return End();
    } while (!response.has_heartbeat());
    *answer = std::move(*response.mutable_heartbeat());
    return grpc::Status::OK;
  }

  // Each message by itself; false: the call is over, and End says how.
  bool Send(const v1::HeartbeatRequest& beat) {
    v1::LeaseRequest message;
    *message.mutable_heartbeat() = beat;
    return stream_->Write(message);
  }
  bool Read(v1::LeaseResponse* response) { return stream_->Read(response); }
  grpc::Status End() {
    v1::LeaseResponse response;
    while (stream_->Read(&response)) continue;
    grpc::Status status = stream_->Finish();
    stream_.reset();
    return status;
  }

  void Break() {
    if (stream_ == nullptr) return;
    context_->TryCancel();
    End();
  }

 private:
  std::unique_ptr<grpc::ClientContext> context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::LeaseRequest, v1::LeaseResponse>> stream_;
};

}  // namespace baton::router

#endif  // SERVICES_ROUTER_TESTING_LEASE_CLIENT_H_
