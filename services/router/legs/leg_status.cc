#include "services/router/legs/leg_status.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/rpc/grpc_status.h"

namespace baton::router {

absl::Status LegStatus(const grpc::Status& status, const std::string& leg, const std::string& call,
                       const WorkerStubs& worker) {
  if (status.ok()) return absl::OkStatus();
  absl::Status converted = rpc::FromGrpc(status);
  if (LegOf(converted).has_value()) return converted;  // The worker's own words.
  const std::string where = absl::StrCat(leg, " ", worker.instance.id);
  switch (status.error_code()) {
    case grpc::StatusCode::UNAVAILABLE:
      converted = absl::UnavailableError(
          absl::StrCat(where, " (", worker.address, ") could not be reached or went away during ",
                       call, ": ", converted.message(), "; send the request again"));
      break;
    case grpc::StatusCode::CANCELLED:
      // Not the client's wish: calls that the router cancels are over for the core.
      converted =
          absl::UnavailableError(absl::StrCat(where, " gave ", call, " up: ", converted.message()));
      break;
    default:
      converted = Annotate(std::move(converted), where);
  }
  return WithLeg(std::move(converted), leg, worker.instance.id);
}

absl::Status LegProtocolError(const std::string& message, const std::string& leg,
                              const WorkerStubs& worker) {
  return WithLeg(absl::InternalError(absl::StrCat(leg, " ", worker.instance.id, " ", message)), leg,
                 worker.instance.id);
}

}  // namespace baton::router
