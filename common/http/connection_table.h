// Which connections a server keeps: a limit for all, one for each address, and a reserve for
// probes. A full house makes room by closing the connection that has waited longest for its client,
// among those of the address that has the most of them: one client that opens thousands loses its
// own, and other addresses lose none. Refusing new ones instead would let idle ones block all.
//
// No socket, no clock, no lock: ids go in, decisions come out.
#ifndef COMMON_HTTP_CONNECTION_TABLE_H_
#define COMMON_HTTP_CONNECTION_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

namespace baton {

class ConnectionTable {
 public:
  struct Limits {
    size_t total = 0;
    size_t per_address = 0;  // 0: as many as in all.
    size_t reserved = 0;     // Beyond the other limits, for probes alone.
  };
  enum class Verdict {
    kAdmitted,
    kReserved,  // No room, but a probe would still be answered.
    kRefused,
  };
  struct Admission {
    Verdict verdict = Verdict::kRefused;
    std::optional<uint64_t> evicted;  // Has left the table; its connection is to be closed.
  };

  explicit ConnectionTable(Limits limits) : limits_(limits) {}

  // A new connection, waiting for its first request. `id` was never used before.
  Admission Add(uint64_t id, const std::string& address);
  // From a complete request to the end of its answer a connection is not evicted. False if it has
  // been already: then the request must not be served.
  [[nodiscard]] bool BeginServing(uint64_t id);
  // It waits for its client again, as the youngest; also called when a body makes progress.
  void Waiting(uint64_t id);
  // The longest waiting one, out of the table; nullopt if none waits.
  std::optional<uint64_t> EvictOne();
  // It has closed. False, and nothing, for one that was evicted.
  bool Remove(uint64_t id);

  size_t size() const { return entries_.size(); }

 private:
  using Ids = std::list<uint64_t>;  // In the order of their waiting, longest first.
  struct Address {
    size_t open = 0;  // Without reserved ones.
    Ids waiting;
  };
  struct Entry {
    std::string address;
    bool reserved = false;
    bool waiting = true;
    Ids::iterator place;  // In its address's list or the reserve's, while waiting.
  };

  void BeginWaiting(uint64_t id, Entry& entry);
  void EndWaiting(Entry& entry);
  std::optional<uint64_t> EvictOldest(Ids& waiting);
  void Reorder(const std::string& name, size_t before, size_t after);

  const Limits limits_;
  std::unordered_map<uint64_t, Entry> entries_;
  std::unordered_map<std::string, Address> addresses_;
  std::set<std::pair<size_t, std::string>> by_waiting_;  // (waiting, address), waiting > 0.
  Ids reserve_waiting_;
  size_t reserve_open_ = 0;
};

}  // namespace baton

#endif  // COMMON_HTTP_CONNECTION_TABLE_H_
