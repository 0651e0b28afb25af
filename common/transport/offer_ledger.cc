#include "common/transport/offer_ledger.h"

#include "common/base/check.h"
#include "common/base/random.h"

namespace baton {

OfferLedger::OfferLedger(uint64_t seed) : next_id_(Mix64(seed + 1)) {
  words_[0] = Mix64(seed);
  for (uint64_t slot = kSlots; slot > 0; --slot) free_.push_back(slot - 1);
}

std::optional<OfferLedger::Offer> OfferLedger::Open() {
  if (free_.empty()) return std::nullopt;
  if (next_id_ == 0) ++next_id_;
  const Offer offer{free_.back(), next_id_++};
  free_.pop_back();
  words_[1 + offer.slot].store(offer.id);
  return offer;
}

void OfferLedger::Close(const Offer& offer) {
  // Sequentially consistent: what the owner writes into the payload afterwards comes later.
  const uint64_t was = words_[1 + offer.slot].exchange(0);
  BATON_CHECK(was == offer.id) << "slot " << offer.slot << " has offer " << was << ", not "
                               << offer.id;
  free_.push_back(offer.slot);
}

}  // namespace baton
