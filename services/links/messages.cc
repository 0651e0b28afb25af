#include "services/links/messages.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/collective/bootstrap_store.h"
#include "common/rpc/convert.h"

namespace baton::links {
namespace {

constexpr int kMaxCredits = 64;

}  // namespace

v1::LinkHello ToProto(const Hello& hello, const ChainPlace& receiver, int page_count) {
  v1::LinkHello proto;
  proto.set_chain_id(receiver.chain_id);
  proto.set_epoch(hello.epoch);
  for (const KvWriter& writer : hello.members) *proto.add_stages() = rpc::ToProto(writer);
  proto.set_stage(receiver.stage);
  if (receiver.ranks() > 1) {
    *proto.mutable_tensor_rank() = rpc::ToProto(receiver.self.tensor_rank);
  }
  proto.set_page_count(page_count);
  proto.set_max_plan_tokens(hello.max_plan_tokens);
  proto.set_activation_credits(hello.activation_credits);
  return proto;
}

namespace {

// Whether a hello is meant for this place, and of a chain of as many.
absl::Status CheckReceiver(const v1::LinkHello& proto, const ChainPlace& place) {
  if (proto.chain_id() != place.chain_id) {
    return InvalidField("hello.chain_id",
                        absl::StrCat("'", proto.chain_id(), "', this is '", place.chain_id, "'"));
  }
  if (proto.epoch() < 1 || proto.epoch() > kMaxEpoch) {
    return InvalidField("hello.epoch",
                        absl::StrCat(proto.epoch(), ", not in [1, ", kMaxEpoch, "]"));
  }
  BATON_RETURN_IF_ERROR(InRange(proto.stage(), place.stage, place.stage, "hello.stage"));
  TensorRank rank;
  if (proto.has_tensor_rank()) {
    BATON_ASSIGN_OR_RETURN(rank, rpc::FromProto(proto.tensor_rank(), "hello.tensor_rank"));
  }
  if (rank != place.self.tensor_rank) {
    return InvalidField("hello.tensor_rank",
                        absl::StrCat("rank ", rank.rank, " of ", rank.size, ", this is rank ",
                                     place.rank(), " of ", place.ranks()));
  }
  return InRange(proto.stages_size(), place.members(), place.members(), "hello.stages");
}

// The members in order: their layers follow one another, and a stage's ranks have the same.
absl::StatusOr<std::vector<KvWriter>> MembersFromProto(const v1::LinkHello& proto,
                                                       const ChainPlace& place) {
  std::vector<KvWriter> members;
  int layer = 0;
  for (int i = 0; i < proto.stages_size(); ++i) {
    const std::string field = absl::StrCat("hello.stages[", i, "]");
    BATON_ASSIGN_OR_RETURN(KvWriter writer, rpc::FromProto(proto.stages(i), field));
    if (writer.tensor_rank != TensorRank{place.RankOf(i), place.ranks()}) {
      return InvalidField(
          field, absl::StrCat("is rank ", writer.tensor_rank.rank, " of ", writer.tensor_rank.size,
                              " in the place of rank ", place.RankOf(i), " of ", place.ranks()));
    }
    if (writer.tensor_rank.rank == 0 && writer.layers.begin != layer) {
      return InvalidField(field, absl::StrCat("begins at layer ", writer.layers.begin,
                                              ", the one before ends at ", layer));
    }
    if (writer.tensor_rank.rank > 0 && writer.layers != members.back().layers) {
      return InvalidField(field, "has other layers than its stage's rank before");
    }
    layer = writer.layers.end;
    members.push_back(std::move(writer));
  }
  if (layer == place.layers) return members;
  return InvalidField("hello.stages", absl::StrCat("end at layer ", layer, " of ", place.layers));
}

}  // namespace

absl::StatusOr<Hello> FromProto(const v1::LinkHello& proto, const ChainPlace& place,
                                int max_plan_tokens) {
  BATON_RETURN_IF_ERROR(CheckReceiver(proto, place));
  Hello hello;
  hello.epoch = proto.epoch();
  BATON_ASSIGN_OR_RETURN(hello.members, MembersFromProto(proto, place));
  if (hello.members[static_cast<size_t>(place.member())] != place.self) {
    return InvalidField(absl::StrCat("hello.stages[", place.member(), "]"),
                        "is another incarnation or has other layers than this stage");
  }
  // Buffers are allocated by it.
  BATON_RETURN_IF_ERROR(
      InRange(proto.max_plan_tokens(), 1, max_plan_tokens, "hello.max_plan_tokens"));
  BATON_RETURN_IF_ERROR(
      InRange(proto.activation_credits(), 1, kMaxCredits, "hello.activation_credits"));
  hello.max_plan_tokens = proto.max_plan_tokens();
  hello.activation_credits = proto.activation_credits();
  return hello;
}

v1::GroupEntry ToProto(const Rendezvous::Entry& entry) {
  v1::GroupEntry proto;
  proto.set_key(entry.key);
  proto.set_value(entry.value);
  return proto;
}

absl::StatusOr<Rendezvous::Entry> FromProto(const v1::GroupEntry& proto) {
  BATON_RETURN_IF_ERROR(ValidateBootstrapEntry(proto.key(), proto.value()));
  return Rendezvous::Entry{proto.key(), proto.value()};
}

v1::GroupVerdict VerdictToProto(const absl::Status& verdict) {
  v1::GroupVerdict proto;
  proto.set_code(verdict.raw_code());
  proto.set_message(std::string(verdict.message()));
  return proto;
}

absl::StatusOr<absl::Status> VerdictFromProto(const v1::GroupVerdict& proto) {
  BATON_RETURN_IF_ERROR(InRange(proto.code(), 0, 16, "group_verdict.code"));
  return absl::Status(static_cast<absl::StatusCode>(proto.code()), proto.message());
}

}  // namespace baton::links
