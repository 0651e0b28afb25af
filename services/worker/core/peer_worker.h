// What a worker needs to know of another one, as a router tells it.
#ifndef SERVICES_WORKER_CORE_PEER_WORKER_H_
#define SERVICES_WORKER_CORE_PEER_WORKER_H_

#include <cstdint>
#include <string>

#include "common/types/instance.h"
#include "common/types/kv_layout.h"

namespace baton::worker {

struct PeerWorker {
  InstanceRef instance;
  Role role = Role::kPrefill;
  std::string grpc_address;
  std::string data_address;
  LayerRange layers;
  std::string chain_id;  // Prefill only.
  int pp_rank = 0;       // Its stage.
  int pp_size = 1;
  bool decodes = false;    // Prefill only: its chain is colocated.
  std::string decode_id;   // Decode services of several processes only: which one it is of.
  TensorRank tensor_rank;  // Within its stage or decode service.

  // What the members of its chain or decode service have in common.
  const std::string& group_id() const { return role == Role::kPrefill ? chain_id : decode_id; }
  bool operator==(const PeerWorker&) const = default;
};

}  // namespace baton::worker

#endif  // SERVICES_WORKER_CORE_PEER_WORKER_H_
