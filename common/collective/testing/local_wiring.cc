#include "common/collective/testing/local_wiring.h"

#include <utility>

#include "common/base/clock.h"

namespace baton::testing {

void LocalWiring::Join(Rendezvous::Caller caller, const Rendezvous::Join& join, Hear hear) {
  MutexLock lock(&mutex_);
  hearers_[caller] = std::move(hear);
  rendezvous_.OnJoin(caller, join, NowUs());
  Deliver();
}

void LocalWiring::Set(Rendezvous::Caller caller, const std::string& key, const std::string& value) {
  MutexLock lock(&mutex_);
  rendezvous_.OnEntry(caller, {key, value});
  Deliver();
}

void LocalWiring::Connected(Rendezvous::Caller caller) {
  MutexLock lock(&mutex_);
  rendezvous_.OnConnected(caller);
  Deliver();
}

void LocalWiring::Deliver() {
  for (const Rendezvous::Message& message : rendezvous_.TakeMessages()) {
    hearers_[message.to](message);
  }
}

}  // namespace baton::testing
