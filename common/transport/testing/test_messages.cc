#include "common/transport/testing/test_messages.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

#include "absl/strings/escaping.h"
#include "common/base/check.h"
#include "common/base/random.h"
#include "common/base/sync.h"

namespace baton::testing {

constexpr size_t kMaxPayloadBytes = 64 << 20;

std::vector<std::byte> Pattern(uint64_t id, size_t bytes) {
  std::vector<std::byte> content(bytes);
  for (size_t offset = 0; offset < bytes; offset += sizeof(uint64_t)) {
    const uint64_t word = Mix64(id * 0x10000000 + offset);
    std::memcpy(content.data() + offset, &word, std::min(sizeof(word), bytes - offset));
  }
  return content;
}

std::vector<std::span<std::byte>> Cut(std::span<std::byte> bytes, uint32_t count, uint64_t seed) {
  Random random(seed);
  std::vector<size_t> places{0, bytes.size()};
  for (uint32_t i = 1; i < count; ++i) places.push_back(random.Below(bytes.size() + 1));
  std::sort(places.begin(), places.end());
  std::vector<std::span<std::byte>> runs;
  for (size_t i = 0; i + 1 < places.size(); ++i) {
    runs.push_back(bytes.subspan(places[i], places[i + 1] - places[i]));
  }
  return runs;
}

TestMessage::TestMessage(const TestHeader& header, uint32_t send_runs)
    : header(header), send_runs(send_runs), content(Pattern(header.id, header.payload_bytes)) {}

Outgoing TestMessage::ToOutgoing(std::function<void(const absl::Status&)> on_sent) const {
  Outgoing message;
  message.kind = MessageKind::kKvPages;
  message.header.resize(sizeof(header));
  std::memcpy(message.header.data(), &header, sizeof(header));
  for (std::span<std::byte> run : Cut(content, send_runs, header.id)) message.runs.push_back(run);
  message.on_sent = std::move(on_sent);
  return message;
}

std::optional<Placement> Inbox::OnHeader(std::span<const std::byte> header, size_t payload_bytes) {
  TestHeader parsed;
  BATON_CHECK(header.size() == sizeof(parsed)) << header.size();
  std::memcpy(&parsed, header.data(), sizeof(parsed));
  BATON_CHECK(payload_bytes <= kMaxPayloadBytes) << payload_bytes;
  if (parsed.refuse != 0) {
    MutexLock lock(&mutex_);
    ++refused_;
  }
  if (parsed.refuse == 1) return std::nullopt;
  Pending pending{parsed, std::vector<std::byte>(payload_bytes)};
  Placement placement;
  placement.receipt = ++last_receipt_;
  placement.runs = Cut(pending.buffer, parsed.receive_runs, parsed.id + 1);
  if (parsed.refuse == 2) {
    placement.runs.push_back(placement.runs.front());
    return placement;
  }
  pending_.emplace(placement.receipt, std::move(pending));
  if (hook_) hook_(parsed);
  return placement;
}

void Inbox::OnPlaced(uint64_t receipt, const absl::Status& status) {
  const auto found = pending_.find(receipt);
  BATON_CHECK(found != pending_.end()) << "receipt " << receipt << " unknown or placed twice";
  const TestHeader& header = found->second.header;
  const Arrival arrival{header, status,
                        found->second.buffer == Pattern(header.id, header.payload_bytes)};
  pending_.erase(found);
  {
    MutexLock lock(&mutex_);
    arrivals_.push_back(arrival);
  }
  if (arrival_hook_) arrival_hook_(arrival);
}

std::vector<Inbox::Arrival> Inbox::WaitFor(size_t count) {
  MutexLock lock(&mutex_);
  const auto enough = [this, count]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return arrivals_.size() >= count;
  };
  mutex_.Await(enough);
  return arrivals_;
}

Inbox::Arrival Inbox::WaitForId(uint64_t id) {
  MutexLock lock(&mutex_);
  const Arrival* found = nullptr;
  const auto arrived = [this, id, &found]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (const Arrival& arrival : arrivals_) {
      if (arrival.header.id == id) found = &arrival;
    }
    return found != nullptr;
  };
  mutex_.Await(arrived);
  return *found;
}

size_t Inbox::refused() const {
  MutexLock lock(&mutex_);
  return refused_;
}

std::function<void(const absl::Status&)> Outbox::Expect() {
  MutexLock lock(&mutex_);
  const size_t index = calls_.size();
  calls_.push_back(0);
  statuses_.push_back(absl::UnknownError("on_sent has not been called"));
  return [this, index](const absl::Status& status) {
    MutexLock lock(&mutex_);
    if (calls_[index]++ == 0) ++done_;
    statuses_[index] = status;
  };
}

std::vector<absl::Status> Outbox::WaitForAll() {
  MutexLock lock(&mutex_);
  const auto all = [this]()
                       ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return done_ == calls_.size(); };
  mutex_.Await(all);
  return statuses_;
}

size_t Outbox::duplicates() const {
  MutexLock lock(&mutex_);
  return static_cast<size_t>(
      std::count_if(calls_.begin(), calls_.end(), [](int calls) { return calls > 1; }));
}

DataPlaneOptions TestOptions() {
  const char* pull = getenv("BATON_TEST_PULL");
  DataPlaneOptions options;
  options.pull = pull != nullptr && std::string_view(pull) == "1";
  return options;
}

std::string ToHex(std::string_view bytes) { return absl::BytesToHexString(std::string(bytes)); }
std::string FromHex(std::string_view hex) { return absl::HexStringToBytes(std::string(hex)); }

}  // namespace baton::testing
