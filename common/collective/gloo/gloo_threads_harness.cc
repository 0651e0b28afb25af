// Ranks over Gloo as communicators of one process.
#include <memory>

#include "common/collective/gloo/gloo_transport.h"
#include "common/collective/testing/local_wiring.h"
#include "common/collective/testing/threaded_harness.h"

namespace baton::testing {

std::unique_ptr<GroupHarness> MakeGroup(int size, int64_t timeout_ms) {
  LocalWiring wiring("stage 1", /*timeout_ms=*/60'000);
  return MakeThreadedGroup(size, timeout_ms, [&](int rank) {
    const auto caller = static_cast<Rendezvous::Caller>(rank);
    const auto store = std::make_shared<BootstrapStore>(
        [&wiring, caller](const std::string& key, const std::string& value) {
          wiring.Set(caller, key, value);
        });
    const Rendezvous::Join join = {
        .epoch = 7, .rank = rank, .size = size, .member = "m", .incarnation = caller};
    wiring.Join(caller, join, [store](const Rendezvous::Message& message) {
      if (message.entry) store->Put(message.entry->key, message.entry->value);
      if (message.verdict) store->End(*message.verdict);
    });
    return ConnectGloo({.rank = rank, .size = size}, store);
  });
}

}  // namespace baton::testing
