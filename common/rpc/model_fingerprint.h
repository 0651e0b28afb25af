// A worker's fingerprint as it says it at join. What comes the other way is checked against the
// rest of the worker's description, by the router (services/router/worker_convert.h).
#ifndef COMMON_RPC_MODEL_FINGERPRINT_H_
#define COMMON_RPC_MODEL_FINGERPRINT_H_

#include "common/types/model_fingerprint.h"
#include "proto/baton/v1/cluster.pb.h"

namespace baton::rpc {

v1::ModelFingerprint ToProto(const ModelFingerprint& value);

}  // namespace baton::rpc

#endif  // COMMON_RPC_MODEL_FINGERPRINT_H_
