#include "common/rpc/model_fingerprint.h"

#include "common/rpc/convert.h"

namespace baton::rpc {

v1::ModelFingerprint ToProto(const ModelFingerprint& value) {
  v1::ModelFingerprint proto;
  proto.set_config_hash(value.config_hash);
  for (const auto& [layer, hash] : value.layer_hashes) {
    (*proto.mutable_layer_hashes())[layer] = hash;
  }
  proto.set_embedding_hash(value.embedding_hash);
  proto.set_head_hash(value.head_hash);
  proto.set_dtype(value.dtype);
  *proto.mutable_kv_layout() = ToProto(value.kv_layout);
  proto.set_protocol_version(value.protocol_version);
  proto.set_oldest_protocol_version(value.oldest_protocol_version);
  return proto;
}

}  // namespace baton::rpc
