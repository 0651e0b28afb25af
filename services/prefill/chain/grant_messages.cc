#include "services/prefill/chain/grant_messages.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/rpc/convert.h"
#include "common/rpc/grpc_status.h"

namespace baton::prefill {
namespace {

constexpr int kMaxWriters = 4096;

// No valid name or leg is longer.
constexpr size_t kMaxNameBytes = 128;

KvFailed FailedFromProto(const v1::DecodeReport& proto) {
  absl::Status status(static_cast<absl::StatusCode>(proto.code()),
                      proto.message().substr(0, rpc::kMaxStatusMessageBytes));
  if (!proto.leg().empty() && proto.leg().size() <= kMaxNameBytes &&
      proto.instance_id().size() <= kMaxNameBytes) {
    status = WithLeg(std::move(status), proto.leg(), proto.instance_id());
  }
  return {proto.slot(), proto.generation(), std::move(status)};
}

}  // namespace

v1::DecodeOrder ToProto(const GrantKv& grant) {
  v1::DecodeOrder order;
  v1::RankGrant& proto = *order.mutable_grant();
  proto.set_slot(grant.grant.slot);
  proto.set_generation(grant.grant.generation);
  proto.set_first_page(grant.grant.first_page);
  proto.mutable_pages()->Add(grant.grant.pages.begin(), grant.grant.pages.end());
  for (const KvWriter& writer : grant.grant.writers) *proto.add_writers() = rpc::ToProto(writer);
  return order;
}

v1::DecodeOrder ToProto(const RevokeKv& revoke) {
  v1::DecodeOrder order;
  order.mutable_revoke()->set_slot(revoke.slot);
  order.mutable_revoke()->set_generation(revoke.generation);
  return order;
}

absl::StatusOr<GrantOrder> FromProto(const v1::DecodeOrder& proto) {
  switch (proto.order_case()) {
    case v1::DecodeOrder::kGrant: {
      const v1::RankGrant& grant = proto.grant();
      if (grant.writers_size() > kMaxWriters) {
        return InvalidField("grant.writers", absl::StrCat(grant.writers_size(), " are too many"));
      }
      KvGrant order;
      order.slot = grant.slot();
      order.generation = grant.generation();
      order.first_page = grant.first_page();
      order.pages.assign(grant.pages().begin(), grant.pages().end());
      for (int i = 0; i < grant.writers_size(); ++i) {
        BATON_ASSIGN_OR_RETURN(
            KvWriter writer,
            rpc::FromProto(grant.writers(i), absl::StrCat("grant.writers[", i, "]")));
        order.writers.push_back(std::move(writer));
      }
      return order;
    }
    case v1::DecodeOrder::kRevoke:
      return RevokeKv{proto.revoke().slot(), proto.revoke().generation()};
    case v1::DecodeOrder::ORDER_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("an order that is empty");
}

v1::DecodeReport GrantedToProto(uint32_t slot, uint64_t generation) {
  v1::DecodeReport proto;
  proto.set_kind(v1::DecodeReport::GRANTED);
  proto.set_slot(slot);
  proto.set_generation(generation);
  return proto;
}

v1::DecodeReport ToProto(const LeaseEvent& event) {
  v1::DecodeReport proto;
  std::visit(
      [&proto](const auto& e) {
        proto.set_slot(e.slot);
        proto.set_generation(e.generation);
      },
      event);
  if (const auto* committed = std::get_if<KvCommitted>(&event)) {
    proto.set_kind(v1::DecodeReport::COMMITTED);
    proto.set_bytes(committed->bytes);
    if (committed->first_token.has_value()) {
      proto.mutable_first_token()->set_token_id(committed->first_token->token);
      *proto.mutable_first_token()->mutable_logprobs() =
          rpc::LogprobsToProto(*committed->first_token);
    }
  } else if (const auto* failed = std::get_if<KvFailed>(&event)) {
    proto.set_kind(v1::DecodeReport::FAILED);
    proto.set_code(failed->status.raw_code());
    proto.set_message(std::string(failed->status.message()).substr(0, rpc::kMaxStatusMessageBytes));
    proto.set_leg(LegOf(failed->status).value_or(""));
    proto.set_instance_id(InstanceOf(failed->status).value_or(""));
  } else {
    proto.set_kind(v1::DecodeReport::DRAINED);
  }
  return proto;
}

absl::StatusOr<PlannerEvent> FromProto(int member, const v1::DecodeReport& proto) {
  const uint32_t slot = proto.slot();
  const uint64_t generation = proto.generation();
  switch (proto.kind()) {
    case v1::DecodeReport::GRANTED:
      return MemberGranted{member, slot, generation};
    case v1::DecodeReport::COMMITTED: {
      KvCommitted committed{slot, generation, {}, proto.bytes()};
      if (proto.has_first_token()) {
        committed.first_token =
            rpc::SampledFromProto(proto.first_token().token_id(), proto.first_token().logprobs());
      }
      return KvHeard{member, std::move(committed)};
    }
    case v1::DecodeReport::FAILED:
      if (proto.code() < 1 || proto.code() > 16) {
        return InvalidField("report.code", absl::StrCat(proto.code(), " is no error"));
      }
      return KvHeard{member, FailedFromProto(proto)};
    case v1::DecodeReport::DRAINED:
      return KvHeard{member, KvDrained{slot, generation}};
    default:
      break;
  }
  return InvalidField("report.kind", absl::StrCat(static_cast<int>(proto.kind())));
}

}  // namespace baton::prefill
