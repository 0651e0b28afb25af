// proto/baton/v1/decode.proto's orders and reports to and from the cores' plain values. What comes
// from the wire is checked here for form; what came before it is the cores' matter. Errors are
// INVALID_ARGUMENT that name the field.
#ifndef SERVICES_DECODE_RANKS_MESSAGES_H_
#define SERVICES_DECODE_RANKS_MESSAGES_H_

#include <variant>

#include "absl/status/statusor.h"
#include "proto/baton/v1/decode.pb.h"
#include "services/decode/core/decode_core.h"
#include "services/decode/core/follower.h"

namespace baton::decode {

v1::DecodeOrder ToProto(const GrantKv& grant);
v1::DecodeOrder ToProto(const RevokeKv& revoke);
v1::DecodeOrder ToProto(const RunStep& step);
absl::StatusOr<Order> FromProto(const v1::DecodeOrder& proto);

v1::DecodeReport ToProto(const TellGranted& word);
v1::DecodeReport ToProto(const TellLease& word);
// Follower `rank`'s report, for rank 0's core.
absl::StatusOr<std::variant<FollowerGranted, FollowerHeard>> FromProto(
    int rank, const v1::DecodeReport& proto);

}  // namespace baton::decode

#endif  // SERVICES_DECODE_RANKS_MESSAGES_H_
