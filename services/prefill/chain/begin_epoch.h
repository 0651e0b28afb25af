// The begin of an epoch on any stage of a chain.
#ifndef SERVICES_PREFILL_CHAIN_BEGIN_EPOCH_H_
#define SERVICES_PREFILL_CHAIN_BEGIN_EPOCH_H_

#include "absl/status/status.h"
#include "services/prefill/core/hello.h"
#include "services/prefill/stage/stage_shell.h"
#include "services/worker/peers.h"

namespace baton::prefill {

// Has stage `rank` of `hello` begin it. UNAVAILABLE says why it can't yet: its work of the last one
// goes on, or a neighbour is not connected. Loop thread.
absl::Status BeginEpoch(StageShell& stage, const worker::Peers& peers, const Hello& hello,
                        int rank);

}  // namespace baton::prefill

#endif  // SERVICES_PREFILL_CHAIN_BEGIN_EPOCH_H_
