#include "common/rpc/grpc_status.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "common/base/status.h"
#include "proto/baton/v1/common.pb.h"
#include "proto/baton/v1/rpc_status.pb.h"

namespace baton::rpc {
namespace {

constexpr int64_t kMaxRetrySeconds = 86'400;
constexpr char kRetryInfoType[] = "type.googleapis.com/google.rpc.RetryInfo";

// The delay in a serialized RetryInfo, which drains and full queues send; 0 if it is invalid.
int64_t MillisecondsOf(const std::string& bytes) {
  v1::RetryInfo retry;
  if (!retry.ParseFromString(bytes)) return 0;
  const int64_t seconds = std::clamp<int64_t>(retry.retry_delay().seconds(), 0, kMaxRetrySeconds);
  return seconds * 1000 + std::clamp(retry.retry_delay().nanos() / 1'000'000, 0, 999);
}

}  // namespace

std::string Shortened(absl::string_view message) {
  if (message.size() <= kMaxStatusMessageBytes) return std::string(message);
  size_t end = kMaxStatusMessageBytes;
  while (end > 0 && (static_cast<unsigned char>(message[end]) & 0xC0) == 0x80) --end;
  return std::string(message.substr(0, end)) + "...";
}

bool IsRetryable(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsResourceExhausted(status) ||
         absl::IsAborted(status);
}

v1::RpcStatus ToMessage(const absl::Status& status) {
  v1::ErrorDetail detail;
  detail.set_field(FieldOf(status).value_or(""));
  detail.set_leg(LegOf(status).value_or(""));
  detail.set_instance_id(InstanceOf(status).value_or(""));
  detail.set_retryable(IsRetryable(status));
  detail.set_unconnected(IsUnconnected(status));
  const int64_t retry_after_ms = RetryHintMsOf(status);
  // absl's codes are gRPC's by definition.
  v1::RpcStatus wire;
  wire.set_code(status.raw_code());
  wire.set_message(Shortened(status.message()));
  wire.add_details()->PackFrom(detail);
  if (retry_after_ms > 0) {
    v1::RetryInfo retry;
    retry.mutable_retry_delay()->set_seconds(retry_after_ms / 1000);
    retry.mutable_retry_delay()->set_nanos(static_cast<int32_t>(retry_after_ms % 1000) * 1'000'000);
    google::protobuf::Any& any = *wire.add_details();
    any.set_type_url(kRetryInfoType);
    any.set_value(retry.SerializeAsString());
  }
  return wire;
}

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const v1::RpcStatus wire = ToMessage(status);
  return {static_cast<grpc::StatusCode>(wire.code()), wire.message(), wire.SerializeAsString()};
}

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  v1::RpcStatus wire;
  if (!wire.ParseFromString(status.error_details())) wire.clear_details();
  wire.set_code(status.error_code());
  wire.set_message(status.error_message());
  return FromMessage(wire);
}

absl::Status FromRouter(const absl::Status& status) {
  if (!absl::IsUnimplemented(status)) return status;
  return absl::UnimplementedError(
      "no service baton.v1.Cluster there: --router-address takes the router's "
      "--cluster-port (30002 by default), not its --grpc-port for clients");
}

absl::Status FromMessage(const v1::RpcStatus& wire) {
  if (wire.code() == 0) return absl::InternalError("a failure whose code is OK");
  const auto code = static_cast<absl::StatusCode>(wire.code());
  v1::ErrorDetail detail;
  int64_t retry_after_ms = 0;
  for (const auto& any : wire.details()) {
    if (any.type_url() == kRetryInfoType) {
      retry_after_ms = MillisecondsOf(any.value());
    } else {
      any.UnpackTo(&detail);
    }
  }
  absl::Status result;
  if (detail.field().empty()) {
    result = absl::Status(code, wire.message());
  } else {
    // InvalidField writes "field: message"; the message has the prefix already.
    const absl::Status named = InvalidField(detail.field(), "");
    result = absl::Status(code, wire.message());
    named.ForEachPayload([&result](absl::string_view url, const absl::Cord& payload) {
      result.SetPayload(url, payload);
    });
  }
  if (retry_after_ms > 0) {
    result = code == absl::StatusCode::kResourceExhausted
                 ? Overloaded(std::move(result), retry_after_ms)
                 : EndedByDrain(std::move(result), retry_after_ms);
  }
  if (detail.unconnected()) result = Unconnected(std::move(result));
  if (!detail.leg().empty()) result = WithLeg(result, detail.leg(), detail.instance_id());
  return result;
}

}  // namespace baton::rpc
