#include "services/decode/ranks/messages.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/rpc/convert.h"
#include "common/rpc/grpc_status.h"

namespace baton::decode {
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
  proto.set_prompt_pages(static_cast<int>(grant.grant.pages.size()));
  proto.set_first_page(grant.grant.first_page);
  proto.mutable_pages()->Add(grant.grant.pages.begin(), grant.grant.pages.end());
  proto.mutable_pages()->Add(grant.continuation.begin(), grant.continuation.end());
  for (const KvWriter& writer : grant.grant.writers) *proto.add_writers() = rpc::ToProto(writer);
  return order;
}

v1::DecodeOrder ToProto(const RevokeKv& revoke) {
  v1::DecodeOrder order;
  order.mutable_revoke()->set_slot(revoke.slot);
  order.mutable_revoke()->set_generation(revoke.generation);
  return order;
}

v1::DecodeOrder ToProto(const RunStep& step) {
  v1::DecodeOrder order;
  order.mutable_step()->set_step(step.step);
  for (const RunStep::Sequence& sequence : step.sequences) {
    v1::RankStepRow& row = *order.mutable_step()->add_rows();
    row.set_slot(sequence.slot);
    row.set_generation(sequence.generation);
    row.set_token_id(sequence.token);
    row.set_position(sequence.position);
    if (sequence.new_page >= 0) row.set_new_page(sequence.new_page);
  }
  return order;
}

absl::StatusOr<Order> FromProto(const v1::DecodeOrder& proto) {
  switch (proto.order_case()) {
    case v1::DecodeOrder::kGrant: {
      const v1::RankGrant& grant = proto.grant();
      if (grant.writers_size() > kMaxWriters) {
        return InvalidField("grant.writers", absl::StrCat(grant.writers_size(), " are too many"));
      }
      GrantOrder order{grant.slot(),
                       grant.generation(),
                       grant.prompt_pages(),
                       {grant.pages().begin(), grant.pages().end()},
                       {},
                       grant.first_page()};
      for (int i = 0; i < grant.writers_size(); ++i) {
        BATON_ASSIGN_OR_RETURN(
            KvWriter writer,
            rpc::FromProto(grant.writers(i), absl::StrCat("grant.writers[", i, "]")));
        order.writers.push_back(std::move(writer));
      }
      return order;
    }
    case v1::DecodeOrder::kRevoke:
      return RevokeOrder{proto.revoke().slot(), proto.revoke().generation()};
    case v1::DecodeOrder::kStep: {
      StepOrder order{proto.step().step(), {}};
      for (const v1::RankStepRow& row : proto.step().rows()) {
        if (row.has_new_page() && row.new_page() < 0) {
          return InvalidField("step.rows.new_page", absl::StrCat(row.new_page(), " is no page"));
        }
        order.rows.push_back({row.slot(), row.generation(), row.token_id(), row.position(),
                              row.has_new_page() ? row.new_page() : -1});
      }
      return order;
    }
    case v1::DecodeOrder::ORDER_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("an order that is empty");
}

v1::DecodeReport ToProto(const TellGranted& word) {
  v1::DecodeReport proto;
  proto.set_kind(v1::DecodeReport::GRANTED);
  proto.set_slot(word.slot);
  proto.set_generation(word.generation);
  return proto;
}

v1::DecodeReport ToProto(const TellLease& word) {
  v1::DecodeReport proto;
  std::visit(
      [&proto](const auto& event) {
        proto.set_slot(event.slot);
        proto.set_generation(event.generation);
      },
      word.event);
  if (const auto* committed = std::get_if<KvCommitted>(&word.event)) {
    proto.set_kind(v1::DecodeReport::COMMITTED);
    proto.set_bytes(committed->bytes);
  } else if (const auto* failed = std::get_if<KvFailed>(&word.event)) {
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

absl::StatusOr<std::variant<FollowerGranted, FollowerHeard>> FromProto(
    int rank, const v1::DecodeReport& proto) {
  using Heard = std::variant<FollowerGranted, FollowerHeard>;
  const uint32_t slot = proto.slot();
  const uint64_t generation = proto.generation();
  switch (proto.kind()) {
    case v1::DecodeReport::GRANTED:
      return Heard(FollowerGranted{rank, slot, generation});
    case v1::DecodeReport::COMMITTED:
      return Heard(FollowerHeard{rank, KvCommitted{slot, generation, {}, proto.bytes()}});
    case v1::DecodeReport::FAILED:
      if (proto.code() < 1 || proto.code() > 16) {
        return InvalidField("report.code", absl::StrCat(proto.code(), " is no error"));
      }
      return Heard(FollowerHeard{rank, FailedFromProto(proto)});
    case v1::DecodeReport::DRAINED:
      return Heard(FollowerHeard{rank, KvDrained{slot, generation}});
    default:
      break;
  }
  return InvalidField("report.kind", absl::StrCat(static_cast<int>(proto.kind())));
}

}  // namespace baton::decode
