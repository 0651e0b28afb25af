// The sender's side of pulls: which payloads other processes may read out of this one's memory, in
// words that they read as well. A reader that finds an offer's id in its slot *after* it has read
// the payload knows that the memory was held all the time; one that doesn't has read something
// else. So the owner of a payload may have it back at any moment, whatever the reader is doing.
#ifndef COMMON_TRANSPORT_OFFER_LEDGER_H_
#define COMMON_TRANSPORT_OFFER_LEDGER_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace baton {

// One per data plane; its thread only, but for the readers in other processes.
class OfferLedger {
 public:
  // More than a window of messages to each of a dozen peers.
  static constexpr size_t kSlots = 1024;

  // `seed` makes the cookie and where ids begin: a process that comes to have the number and the
  // addresses of another one has not its ids.
  explicit OfferLedger(uint64_t seed);
  OfferLedger(const OfferLedger&) = delete;
  OfferLedger& operator=(const OfferLedger&) = delete;

  struct Offer {
    uint64_t slot = 0;
    uint64_t id = 0;
  };
  // nullopt: all slots are taken.
  std::optional<Offer> Open();
  // From here on no reader takes for the payload what it reads.
  void Close(const Offer& offer);

  // Where readers find the words: the cookie, then the slots.
  uint64_t address() const { return reinterpret_cast<uint64_t>(words_.data()); }
  uint64_t cookie() const { return words_[0].load(std::memory_order_relaxed); }
  static uint64_t SlotAddress(uint64_t ledger, uint64_t slot) {
    return ledger + sizeof(uint64_t) * (1 + slot);
  }

 private:
  static_assert(sizeof(std::atomic<uint64_t>) == sizeof(uint64_t), "read as plain words");
  std::array<std::atomic<uint64_t>, 1 + kSlots> words_{};
  std::vector<uint64_t> free_;
  uint64_t next_id_;
};

}  // namespace baton

#endif  // COMMON_TRANSPORT_OFFER_LEDGER_H_
