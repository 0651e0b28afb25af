#include "common/rpc/convert.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/types/limits.h"

namespace baton::rpc {
namespace {

constexpr size_t kMaxInstanceIdBytes = 128;

bool IsIdCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
         c == '_' || c == '-';
}

std::string Part(std::string_view field, std::string_view part) {
  std::string name(field);
  return name.append(".").append(part);
}

absl::Status Positive(int32_t value, std::string_view field, std::string_view part) {
  if (value > 0) return absl::OkStatus();
  return InvalidField(Part(field, part), absl::StrCat(value, " is not positive"));
}

}  // namespace

absl::StatusOr<InstanceRef> FromProto(const v1::InstanceRef& proto, std::string_view field) {
  const std::string& id = proto.instance_id();
  if (id.empty() || id.size() > kMaxInstanceIdBytes ||
      !std::all_of(id.begin(), id.end(), IsIdCharacter)) {
    return InvalidField(Part(field, "instance_id"),
                        absl::StrCat("must be 1 to ", kMaxInstanceIdBytes,
                                     " characters of [A-Za-z0-9._-], has ", id.size(), " bytes"));
  }
  if (proto.incarnation() == 0) return InvalidField(Part(field, "incarnation"), "must not be 0");
  return InstanceRef{id, proto.incarnation()};
}

absl::StatusOr<LayerRange> FromProto(const v1::LayerRange& proto, std::string_view field) {
  if (proto.begin() < 0 || proto.begin() >= proto.end() || proto.end() > kMaxLayers) {
    return InvalidField(field,
                        absl::StrCat("[", proto.begin(), ", ", proto.end(),
                                     ") is not a range of layers within [0, ", kMaxLayers, ")"));
  }
  return LayerRange{proto.begin(), proto.end()};
}

absl::StatusOr<TensorRank> FromProto(const v1::TensorRank& proto, std::string_view field) {
  if (proto.size() < 1 || proto.size() > kMaxTensorRanks || proto.rank() < 0 ||
      proto.rank() >= proto.size()) {
    return InvalidField(field, absl::StrCat("rank ", proto.rank(), " of ", proto.size(),
                                            "; there can be 1 to ", kMaxTensorRanks));
  }
  return TensorRank{proto.rank(), proto.size()};
}

absl::StatusOr<KvWriter> FromProto(const v1::KvWriter& proto, std::string_view field) {
  KvWriter writer;
  BATON_ASSIGN_OR_RETURN(writer.instance, FromProto(proto.instance(), Part(field, "instance")));
  BATON_ASSIGN_OR_RETURN(writer.layers, FromProto(proto.layers(), Part(field, "layers")));
  if (proto.has_tensor_rank()) {
    BATON_ASSIGN_OR_RETURN(writer.tensor_rank,
                           FromProto(proto.tensor_rank(), Part(field, "tensor_rank")));
  }
  return writer;
}

namespace {

absl::StatusOr<std::vector<InstanceRef>> FollowersOf(const v1::Ticket& proto,
                                                     std::string_view field) {
  const int count = proto.followers_size();
  const int stages = std::max(1, proto.stages_size());
  if (count >= kMaxTensorRanks * stages || (1 + count) % stages != 0) {
    return InvalidField(Part(field, "followers"),
                        absl::StrCat(1 + count, " processes of ", stages,
                                     " stages; each has as many, ", kMaxTensorRanks, " at most"));
  }
  std::set<std::string> ids = {proto.decode().instance_id()};
  std::vector<InstanceRef> followers;
  for (int i = 0; i < count; ++i) {
    const std::string name = Part(field, absl::StrCat("followers[", i, "]"));
    BATON_ASSIGN_OR_RETURN(InstanceRef follower, FromProto(proto.followers(i), name));
    if (!ids.insert(follower.id).second) {
      return InvalidField(name, absl::StrCat(follower.id, " is another rank already"));
    }
    followers.push_back(std::move(follower));
  }
  return followers;
}

absl::StatusOr<std::vector<LayerRange>> StagesOf(const v1::Ticket& proto, std::string_view field) {
  const std::string name = Part(field, "stages");
  if (proto.stages_size() > kMaxStages) {
    return InvalidField(name, absl::StrCat(proto.stages_size(), ", at most ", kMaxStages));
  }
  std::vector<LayerRange> stages;
  int layer = 0;
  for (const v1::LayerRange& range : proto.stages()) {
    BATON_ASSIGN_OR_RETURN(const LayerRange layers, FromProto(range, name));
    if (layers.begin != layer || layers.end <= layers.begin) {
      return InvalidField(name, absl::StrCat("layers [", layers.begin, ", ", layers.end,
                                             ") follow those up to ", layer));
    }
    layer = layers.end;
    stages.push_back(layers);
  }
  return stages;
}

}  // namespace

absl::StatusOr<Ticket> FromProto(const v1::Ticket& proto, std::string_view field) {
  Ticket ticket;
  BATON_ASSIGN_OR_RETURN(ticket.decode, FromProto(proto.decode(), Part(field, "decode")));
  if (proto.generation() == 0) return InvalidField(Part(field, "generation"), "must not be 0");
  BATON_RETURN_IF_ERROR(Positive(proto.prompt_tokens(), field, "prompt_tokens"));
  if (proto.prompt_pages() < 1 || proto.prompt_pages() > proto.prompt_tokens()) {
    return InvalidField(Part(field, "prompt_pages"),
                        absl::StrCat(proto.prompt_pages(), " is not in [1, prompt_tokens = ",
                                     proto.prompt_tokens(), "]"));
  }
  if (proto.first_page() < 0 || proto.first_page() >= proto.prompt_pages()) {
    return InvalidField(
        Part(field, "first_page"),
        absl::StrCat(proto.first_page(), " is not in [0, ", proto.prompt_pages(), ")"));
  }
  ticket.slot = proto.slot();
  ticket.generation = proto.generation();
  ticket.prompt_tokens = proto.prompt_tokens();
  ticket.prompt_pages = proto.prompt_pages();
  ticket.first_page = proto.first_page();
  BATON_ASSIGN_OR_RETURN(ticket.stages, StagesOf(proto, field));
  BATON_ASSIGN_OR_RETURN(ticket.followers, FollowersOf(proto, field));
  return ticket;
}

absl::StatusOr<KvLayout> FromProto(const v1::KvLayout& proto, std::string_view field) {
  BATON_RETURN_IF_ERROR(Positive(proto.layers(), field, "layers"));
  BATON_RETURN_IF_ERROR(Positive(proto.kv_heads(), field, "kv_heads"));
  BATON_RETURN_IF_ERROR(Positive(proto.head_dim(), field, "head_dim"));
  BATON_RETURN_IF_ERROR(Positive(proto.page_size(), field, "page_size"));
  BATON_RETURN_IF_ERROR(Positive(proto.bytes_per_element(), field, "bytes_per_element"));
  constexpr int kKeysAndValues = 2;
  if (proto.planes() < 0 || proto.planes() > kKeysAndValues) {
    return InvalidField(Part(field, "planes"), absl::StrCat("must be 1 or 2, is ", proto.planes()));
  }
  const KvLayout layout{proto.layers(),
                        proto.kv_heads(),
                        proto.head_dim(),
                        proto.page_size(),
                        proto.bytes_per_element(),
                        proto.planes() == 0 ? kKeysAndValues : proto.planes()};
  if (!layout.CheckedPageBytes(kMaxPageBytes).has_value()) {
    return InvalidField(field, absl::StrCat("a page exceeds ", kMaxPageBytes, " bytes"));
  }
  return layout;
}

v1::InstanceRef ToProto(const InstanceRef& value) {
  v1::InstanceRef proto;
  proto.set_instance_id(value.id);
  proto.set_incarnation(value.incarnation);
  return proto;
}

v1::LayerRange ToProto(const LayerRange& value) {
  v1::LayerRange proto;
  proto.set_begin(value.begin);
  proto.set_end(value.end);
  return proto;
}

v1::TensorRank ToProto(TensorRank value) {
  v1::TensorRank proto;
  proto.set_rank(value.rank);
  proto.set_size(value.size);
  return proto;
}

v1::KvWriter ToProto(const KvWriter& value) {
  v1::KvWriter proto;
  *proto.mutable_instance() = ToProto(value.instance);
  *proto.mutable_layers() = ToProto(value.layers);
  if (!value.tensor_rank.alone()) *proto.mutable_tensor_rank() = ToProto(value.tensor_rank);
  return proto;
}

v1::Ticket ToProto(const Ticket& value) {
  v1::Ticket proto;
  *proto.mutable_decode() = ToProto(value.decode);
  proto.set_slot(value.slot);
  proto.set_generation(value.generation);
  proto.set_prompt_tokens(value.prompt_tokens);
  proto.set_prompt_pages(value.prompt_pages);
  proto.set_first_page(value.first_page);
  for (const InstanceRef& follower : value.followers) *proto.add_followers() = ToProto(follower);
  for (const LayerRange& layers : value.stages) *proto.add_stages() = ToProto(layers);
  return proto;
}

v1::KvLayout ToProto(const KvLayout& value) {
  v1::KvLayout proto;
  proto.set_layers(value.layers);
  proto.set_kv_heads(value.kv_heads);
  proto.set_head_dim(value.head_dim);
  proto.set_page_size(value.page_size);
  proto.set_bytes_per_element(value.bytes_per_element);
  if (value.planes != 2) proto.set_planes(value.planes);
  return proto;
}

v1::TokenLogprobs LogprobsToProto(const SampledToken& value) {
  v1::TokenLogprobs proto;
  proto.set_logprob(value.logprob);
  for (const TokenLogprob& top : value.top) {
    v1::TokenLogprob* entry = proto.add_top();
    entry->set_token_id(top.token);
    entry->set_logprob(top.logprob);
  }
  return proto;
}

SampledToken SampledFromProto(int32_t token_id, const v1::TokenLogprobs& logprobs) {
  SampledToken token;
  token.token = token_id;
  token.logprob = logprobs.logprob();
  token.top.reserve(static_cast<size_t>(logprobs.top_size()));
  for (const v1::TokenLogprob& top : logprobs.top()) {
    token.top.push_back({top.token_id(), top.logprob()});
  }
  return token;
}

v1::ModelFingerprint ToProto(const ModelFingerprint& value) {
  v1::ModelFingerprint proto;
  proto.set_config_hash(value.config_hash);
  for (const auto& [layer, hash] : value.layer_hashes) {
    (*proto.mutable_layer_hashes())[layer] = hash;
  }
  proto.set_embedding_hash(value.embedding_hash);
  proto.set_head_hash(value.head_hash);
  proto.set_dtype(value.dtype);
  proto.set_numerics(value.numerics);
  *proto.mutable_kv_layout() = ToProto(value.kv_layout);
  proto.set_protocol_version(value.protocol_version);
  proto.set_oldest_protocol_version(value.oldest_protocol_version);
  return proto;
}

}  // namespace baton::rpc
