// The prompt of a Start, in either of the two forms that it travels in: who reads takes both, who
// writes the one that its reader knows.
#ifndef COMMON_RPC_PROMPT_IDS_H_
#define COMMON_RPC_PROMPT_IDS_H_

#include <google/protobuf/repeated_field.h>

#include <cstdint>
#include <vector>

#include "common/types/instance.h"
#include "proto/baton/v1/prefill.pb.h"

namespace baton::rpc {

inline const google::protobuf::RepeatedField<int32_t>& PromptIds(const v1::StartRequest& request) {
  return request.fixed_prompt_token_ids().empty() ? request.prompt_token_ids()
                                                  : request.fixed_prompt_token_ids();
}

// `protocol_version`: the newest that the reader speaks.
inline void SetPromptIds(const std::vector<int32_t>& ids, uint32_t protocol_version,
                         v1::StartRequest& request) {
  auto& field = protocol_version >= kFixedPromptIdsVersion
                    ? *request.mutable_fixed_prompt_token_ids()
                    : *request.mutable_prompt_token_ids();
  field.Assign(ids.begin(), ids.end());
}

}  // namespace baton::rpc

#endif  // COMMON_RPC_PROMPT_IDS_H_
