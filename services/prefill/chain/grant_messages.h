// Grants on their way to the other members of a decode service, and what their tables report
// (proto/baton/v1/decode.proto), to and from the cores' plain values. What comes from the wire is
// checked here for form; what came before it is core/member_grants.h's matter. Errors are
// INVALID_ARGUMENT that name the field.
#ifndef SERVICES_PREFILL_CHAIN_GRANT_MESSAGES_H_
#define SERVICES_PREFILL_CHAIN_GRANT_MESSAGES_H_

#include <variant>

#include "absl/status/statusor.h"
#include "common/kv/lease_table.h"
#include "proto/baton/v1/decode.pb.h"
#include "services/prefill/core/chain_planner.h"

namespace baton::prefill {

v1::DecodeOrder ToProto(const GrantKv& grant);
v1::DecodeOrder ToProto(const RevokeKv& revoke);
using GrantOrder = std::variant<KvGrant, RevokeKv>;
absl::StatusOr<GrantOrder> FromProto(const v1::DecodeOrder& proto);

v1::DecodeReport GrantedToProto(uint32_t slot, uint64_t generation);
v1::DecodeReport ToProto(const LeaseEvent& event);
// A member's report, for the planner.
absl::StatusOr<PlannerEvent> FromProto(int member, const v1::DecodeReport& proto);

}  // namespace baton::prefill

#endif  // SERVICES_PREFILL_CHAIN_GRANT_MESSAGES_H_
