// What a transport does now and then, done at will: a failpoint has one message reported sent that
// never arrives.
#ifndef SERVICES_PREFILL_STAGE_UNRELIABLE_SEND_H_
#define SERVICES_PREFILL_STAGE_UNRELIABLE_SEND_H_

#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "common/base/failpoint.h"
#include "common/transport/data_plane.h"

namespace baton::prefill {

// Sends the message, unless the failpoint `lost` is hit. `on_sent` then runs before this returns.
inline void SendUnlessLost(DataPlane& data_plane, PeerId peer, Outgoing message,
                           std::string_view lost) {
  if (Failpoint(lost).ok()) return data_plane.Send(peer, std::move(message));
  if (message.on_sent) message.on_sent(absl::OkStatus());
}

}  // namespace baton::prefill

#endif  // SERVICES_PREFILL_STAGE_UNRELIABLE_SEND_H_
