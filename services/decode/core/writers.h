// Whether the writers that a reservation names can hand a prompt over.
#ifndef SERVICES_DECODE_CORE_WRITERS_H_
#define SERVICES_DECODE_CORE_WRITERS_H_

#include <vector>

#include "absl/status/status.h"
#include "common/types/ticket.h"

namespace baton::decode {

// Together they write each of the model's KV heads of each of its layers once, to a decode service
// of so many ranks. INVALID_ARGUMENT names the field "writers" and what is wrong.
absl::Status CheckWriters(const std::vector<KvWriter>& writers, int layers, int kv_heads,
                          int ranks);

}  // namespace baton::decode

#endif  // SERVICES_DECODE_CORE_WRITERS_H_
