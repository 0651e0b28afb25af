// A transport between threads of one process, without a network: for the threaded communicator's
// tests under sanitizers, which don't see into Gloo.
#ifndef COMMON_COLLECTIVE_TESTING_MEMORY_TRANSPORT_H_
#define COMMON_COLLECTIVE_TESTING_MEMORY_TRANSPORT_H_

#include <memory>
#include <vector>

#include "common/collective/message_transport.h"

namespace baton::testing {

// One for each of `size` ranks. They hold together what lies between them.
std::vector<std::unique_ptr<MessageTransport>> MakeMemoryTransports(int size);

}  // namespace baton::testing

#endif  // COMMON_COLLECTIVE_TESTING_MEMORY_TRANSPORT_H_
