// What common/kv/wire.h promises of the hand-off's headers, by an account of its own: how each lies
// on the wire, byte by byte, what is at the edge of what is allowed, and what is just beyond it.
#ifndef TESTS_SIM_WIRE_WITNESS_H_
#define TESTS_SIM_WIRE_WITNESS_H_

#include <cstddef>
#include <vector>

#include "common/base/random.h"
#include "common/kv/wire.h"

namespace baton::sim {

// Also of what no encoder would make: nothing is checked.
std::vector<std::byte> ImageOf(const KvDataHeader& header);
std::vector<std::byte> ImageOf(const KvCommit& commit);
std::vector<std::byte> ImageOf(const KvHeartbeat& heartbeat);
std::vector<std::byte> ImageOf(const KvReceipt& receipt);

// The message with some of its values as small or as large as they may be.
KvDataHeader AtTheEdge(Random& random, KvDataHeader header);
KvCommit AtTheEdge(Random& random, KvCommit commit);
KvHeartbeat AtTheEdge(Random& random, KvHeartbeat heartbeat);
KvReceipt AtTheEdge(Random& random, KvReceipt receipt);

// The message with one thing wrong, and a checksum that is right.
std::vector<std::byte> Spoiled(Random& random, const KvDataHeader& header);
std::vector<std::byte> Spoiled(Random& random, const KvCommit& commit);
std::vector<std::byte> Spoiled(Random& random, const KvHeartbeat& heartbeat);
std::vector<std::byte> Spoiled(Random& random, const KvReceipt& receipt);

}  // namespace baton::sim

#endif  // TESTS_SIM_WIRE_WITNESS_H_
