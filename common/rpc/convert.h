// Protobuf messages of proto/baton/v1/common.proto to and from the plain values of common/types.
// What comes from the wire is checked; errors are INVALID_ARGUMENT that name `field` or a part of
// it.
#ifndef COMMON_RPC_CONVERT_H_
#define COMMON_RPC_CONVERT_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/types/instance.h"
#include "common/types/kv_layout.h"
#include "common/types/sampled_token.h"
#include "common/types/ticket.h"
#include "proto/baton/v1/cluster.pb.h"
#include "proto/baton/v1/common.pb.h"

namespace baton::rpc {

// More layers than this are refused wherever a layer range comes from a peer.
inline constexpr int kMaxLayers = 1 << 16;

// id: 1 to 128 characters of [A-Za-z0-9._-]; incarnation: not 0.
absl::StatusOr<InstanceRef> FromProto(const v1::InstanceRef& proto, std::string_view field);
// 0 <= begin < end <= kMaxLayers.
absl::StatusOr<LayerRange> FromProto(const v1::LayerRange& proto, std::string_view field);
// 0 <= rank < size <= kMaxTensorRanks.
absl::StatusOr<TensorRank> FromProto(const v1::TensorRank& proto, std::string_view field);
absl::StatusOr<KvWriter> FromProto(const v1::KvWriter& proto, std::string_view field);
// Generation not 0, prompt_tokens >= 1, prompt_pages in [1, prompt_tokens], first_page in
// [0, prompt_pages); kMaxTensorRanks ranks of decode at most, no instance twice.
absl::StatusOr<Ticket> FromProto(const v1::Ticket& proto, std::string_view field);
// All sizes positive; the bytes of a page fit into 2^40.
absl::StatusOr<KvLayout> FromProto(const v1::KvLayout& proto, std::string_view field);

v1::InstanceRef ToProto(const InstanceRef& value);
v1::LayerRange ToProto(const LayerRange& value);
v1::TensorRank ToProto(TensorRank value);
v1::KvWriter ToProto(const KvWriter& value);
v1::Ticket ToProto(const Ticket& value);
v1::KvLayout ToProto(const KvLayout& value);
v1::TokenLogprobs LogprobsToProto(const SampledToken& value);
// The other way. The id is not checked against a vocabulary.
SampledToken SampledFromProto(int32_t token_id, const v1::TokenLogprobs& logprobs);

// A worker's fingerprint as it says it at join. What comes the other way is checked against the
// rest of the worker's description, by the router (services/router/worker_convert.h).

v1::ModelFingerprint ToProto(const ModelFingerprint& value);

}  // namespace baton::rpc

#endif  // COMMON_RPC_CONVERT_H_
