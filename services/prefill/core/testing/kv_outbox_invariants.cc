// What must be true of an outbox after every event, for tests.
#include <map>

#include "absl/strings/str_cat.h"
#include "services/prefill/core/kv_outbox.h"

namespace baton::prefill {

absl::Status KvOutbox::CheckInvariants() const {
  std::map<InstanceRef, size_t> bytes;
  std::map<ShareId, int> under_way;
  size_t gathered = 0;
  for (const auto& [message_id, message] : messages_) {
    bytes[message.decode] += message.bytes;
    ++under_way[message.share];
    if (message.gathered) gathered += message.bytes;
  }
  if (gathered != gathered_bytes_) {
    return absl::InternalError(absl::StrCat("I5: ", gathered, " gathered bytes are under way, ",
                                            gathered_bytes_, " counted"));
  }
  for (const auto& [decode, lane] : lanes_) {
    if (lane.bytes != bytes[decode]) {
      return absl::InternalError(absl::StrCat("I5: ", bytes[decode], " bytes are under way to ",
                                              decode.id, ", counted ", lane.bytes));
    }
    if (lane.messages == 0 && lane.waiting.empty()) {
      return absl::InternalError(absl::StrCat("nothing goes to ", decode.id, ", which is kept"));
    }
    for (const ShareId& id : lane.waiting) {
      if (sends_.contains(id.first)) continue;
      return absl::InternalError(absl::StrCat("send ", id.first, " waits and is gone"));
    }
  }
  for (const auto& [grant, id] : commits_) {
    const auto send = sends_.find(id.first);
    if (send != sends_.end() && send->second.is_commit) continue;
    return absl::InternalError(absl::StrCat("send ", id.first, " awaits a receipt and is gone"));
  }
  for (const auto& [send_id, send] : sends_) {
    for (size_t i = 0; i < send.shares.size(); ++i) {
      const int counted = send.shares[i].under_way;
      const int messages = under_way[{send_id, i}];
      if (counted == messages) continue;
      return absl::InternalError(absl::StrCat("I5: send ", send_id, " counts ", counted,
                                              " messages to ", send.shares[i].decode.id, ", ",
                                              messages, " are under way"));
    }
  }
  return absl::OkStatus();
}

}  // namespace baton::prefill
