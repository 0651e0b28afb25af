// A stage that computes when the test says so.
#ifndef SERVICES_PREFILL_TESTING_GATE_H_
#define SERVICES_PREFILL_TESTING_GATE_H_

#include <functional>

#include "common/base/sync.h"

namespace baton::prefill {

// Holds a stage's executor until Open.
class Gate {
 public:
  std::function<void()> Hook() {
    return [this] {
      entered_.Notify();
      open_.WaitForNotification();
    };
  }
  void WaitEntered() { entered_.WaitForNotification(); }
  void Open() { open_.Notify(); }

 private:
  Notification entered_;
  Notification open_;
};

}  // namespace baton::prefill

#endif  // SERVICES_PREFILL_TESTING_GATE_H_
