#include "common/transport/endpoint_life.h"

#include "absl/strings/str_cat.h"
#include "common/base/coverage.h"

namespace baton {
namespace {

// How long this process, which looks every `ping_us`, has not looked: answers don't count
// meanwhile.
int64_t OwnSilenceUs(const EndpointLifeOptions& options, int64_t checked_us, int64_t now_us) {
  const int64_t gap_us = now_us - checked_us;
  return gap_us > 2 * options.ping_us ? gap_us : 0;
}

}  // namespace

EndpointLife::EndpointLife(const EndpointLifeOptions& options, int64_t now_us)
    : options_(options), next_ping_us_(now_us), answered_us_(now_us), checked_us_(now_us) {}

uint64_t EndpointLife::SendBegan(size_t bytes, int64_t now_us) {
  bytes_under_way_ += bytes;
  bytes_began_ += bytes;
  under_way_[++last_send_] = {now_us, bytes, bytes_under_way_};
  return last_send_;
}

void EndpointLife::SendEnded(uint64_t send) {
  const auto found = under_way_.find(send);
  if (found == under_way_.end()) return;
  bytes_under_way_ -= found->second.bytes;
  under_way_.erase(found);
}

void EndpointLife::Answered(uint64_t sequence, int64_t now_us) {
  if (unanswered_.empty() || sequence < unanswered_.front().sequence || sequence > last_sequence_) {
    return;  // Invalid, or overtaken by a later answer.
  }
  answered_us_ = now_us;
  while (!unanswered_.empty() && unanswered_.front().sequence <= sequence) {
    bytes_answered_ = unanswered_.front().bytes_before;
    unanswered_.pop_front();
  }
}

std::optional<uint64_t> EndpointLife::TakePing(int64_t now_us) {
  if (options_.silence_us == 0 || now_us < next_ping_us_) return std::nullopt;
  next_ping_us_ = now_us + options_.ping_us;
  unanswered_.push_back({++last_sequence_, bytes_began_});
  return last_sequence_;
}

int64_t EndpointLife::PatienceUs(uint64_t bytes_ahead) const {
  return options_.silence_us +
         static_cast<int64_t>(static_cast<double>(bytes_ahead) / options_.slowest_bytes_per_us);
}

absl::Status EndpointLife::Check(int64_t now_us) {
  if (options_.silence_us == 0) return absl::OkStatus();
  const int64_t own_us = OwnSilenceUs(options_, checked_us_, now_us);
  answered_us_ += own_us;
  for (auto& [number, send] : under_way_) send.began_us += own_us;
  checked_us_ = now_us;
  if (!unanswered_.empty()) {
    // Nothing is known of what was sent since the last answer.
    const uint64_t ahead = unanswered_.front().bytes_before - bytes_answered_;
    if (now_us - answered_us_ >= PatienceUs(ahead) + options_.ping_us) {
      Covered<"endpoint: pings are not answered">();
      return absl::UnavailableError(
          absl::StrCat("it has answered nothing for ", (now_us - answered_us_) / 1000, " ms"));
    }
  }
  return CheckSends(now_us);
}

absl::Status EndpointLife::CheckSends(int64_t now_us) const {
  for (const auto& [number, send] : under_way_) {
    const int64_t since_us = now_us - send.began_us;
    if (since_us < PatienceUs(send.bytes_ahead)) continue;
    Covered<"endpoint: a send does not end">();
    return absl::UnavailableError(absl::StrCat(
        "a send of ", send.bytes, " bytes has not ended for ", since_us / 1000, " ms"));
  }
  return absl::OkStatus();
}

absl::Status ReturnLife::Check(int64_t now_us) {
  if (options_.silence_us == 0) return absl::OkStatus();
  heard_us_ += OwnSilenceUs(options_, checked_us_, now_us);
  checked_us_ = now_us;
  if (now_us - heard_us_ < 2 * options_.silence_us) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("its opener has said nothing for ", (now_us - heard_us_) / 1000, " ms"));
}

}  // namespace baton
