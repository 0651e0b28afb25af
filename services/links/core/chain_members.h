// Finds a chain's members among the workers that routers list, and words the error for the end of
// one. For the wiring; values in, values out.
#ifndef SERVICES_LINKS_CORE_CHAIN_MEMBERS_H_
#define SERVICES_LINKS_CORE_CHAIN_MEMBERS_H_

#include <vector>

#include "absl/status/status.h"
#include "services/links/core/hello.h"
#include "services/worker/core/peer_worker.h"

namespace baton::links {

// The chain's members from member 1 on, in order, for stage 0 at `place`; empty unless `listed` has
// each of them, and their layers follow one another to the model's end.
std::vector<worker::PeerWorker> FindMembers(const ChainPlace& place,
                                            const std::vector<worker::PeerWorker>& listed);

// Why requests of the chain end, when `member` is lost or says that another one is. UNAVAILABLE
// whatever it was, since they can be sent again, with the leg and the instance to blame.
absl::Status Blame(const absl::Status& cause, const worker::PeerWorker& member);

}  // namespace baton::links

#endif  // SERVICES_LINKS_CORE_CHAIN_MEMBERS_H_
