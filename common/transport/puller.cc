#include "common/transport/puller.h"

#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

#include "common/transport/offer_ledger.h"

namespace baton {
namespace {

// 0.1 to 0.2 ms of copying, which control and other peers wait for.
constexpr size_t kSliceBytes = 1 << 20;
// Pages of KV may be a few KiB, which are copied as fast as a call is made: so many are one call.
constexpr size_t kSliceRuns = 64;

// What lies at `address` of a process into runs, none of which is empty.
bool ReadRuns(uint64_t process, uint64_t address, std::span<iovec> runs) {
  if (process > uint64_t{std::numeric_limits<pid_t>::max()}) return false;
  while (!runs.empty()) {
    size_t wanted = 0;
    for (const iovec& run : runs) wanted += run.iov_len;
    iovec remote{std::bit_cast<void*>(address), wanted};
    // A part may come where the memory is only partly there; the rest then fails.
    const ssize_t read = process_vm_readv(static_cast<pid_t>(process), runs.data(), runs.size(),
                                          &remote, 1, /*flags=*/0);
    if (read <= 0) return false;
    address += static_cast<uint64_t>(read);
    auto left = static_cast<size_t>(read);
    while (!runs.empty() && left >= runs.front().iov_len) {
      left -= runs.front().iov_len;
      runs = runs.subspan(1);
    }
    if (runs.empty()) break;
    runs.front() = {static_cast<std::byte*>(runs.front().iov_base) + left,
                    runs.front().iov_len - left};
  }
  return true;
}

}  // namespace

bool ReadProcess(uint64_t process, uint64_t address, std::span<std::byte> to) {
  iovec run{to.data(), to.size()};
  return to.empty() || ReadRuns(process, address, {&run, 1});
}

bool Puller::AddSource(uint64_t source, const GreetingSender& greeting) {
  uint64_t cookie = 0;
  // Another pid namespace, another user, a container's or a system's rule (seccomp, Yama): then
  // this fails, or another process answers.
  if (!ReadProcess(greeting.process, greeting.ledger,
                   std::as_writable_bytes(std::span(&cookie, 1))) ||
      cookie != greeting.cookie) {
    return false;
  }
  sources_[source] = greeting;
  return true;
}

void Puller::RemoveSource(uint64_t source) {
  if (sources_.erase(source) == 0) return;
  std::deque<Pending> all = std::exchange(pulls_, {});
  std::vector<Pending> lost;
  for (Pending& pending : all) {
    if (pending.pull.offer.source == source) {
      lost.push_back(std::move(pending));
    } else {
      pulls_.push_back(std::move(pending));
    }
  }
  for (const Pending& pending : lost) {
    on_end_(pending.pull, absl::UnavailableError("data plane: the sender is gone"));
  }
}

bool Puller::Readable(const PullOffer& offer) const {
  const auto source = sources_.find(offer.source);
  if (source == sources_.end()) return false;
  std::byte first;
  return ReadProcess(source->second.process, offer.address, {&first, 1});
}

void Puller::Unregister(const MessageHandler* handler) {
  for (Pending& pending : pulls_) {
    if (pending.pull.handler == handler) pending.pull.handler = nullptr;
  }
}

bool Puller::Advance() {
  if (pulls_.empty()) return false;
  Pending& front = pulls_.front();
  const auto source = sources_.find(front.pull.offer.source);
  if (source == sources_.end() || !ReadSlice(front, source->second.process)) {
    EndFront(absl::UnavailableError("data plane: the sender's memory can't be read any more"));
  } else if (front.run == front.pull.runs.size()) {
    EndFront(StillOffered(front.pull.offer)
                 ? absl::OkStatus()
                 : absl::UnavailableError("data plane: the sender took the payload back"));
  }
  return true;
}

// False: it can't be read.
bool Puller::ReadSlice(Pending& pending, uint64_t process) {
  const std::vector<std::span<std::byte>>& runs = pending.pull.runs;
  std::array<iovec, kSliceRuns> slice;
  size_t parts = 0;
  size_t bytes = 0;
  while (pending.run < runs.size() && parts < slice.size() && bytes < kSliceBytes) {
    const std::span<std::byte> run = runs[pending.run].subspan(pending.offset);
    const std::span<std::byte> part = run.first(std::min(run.size(), kSliceBytes - bytes));
    if (!part.empty()) slice[parts++] = {part.data(), part.size()};
    bytes += part.size();
    pending.offset += part.size();
    if (part.size() < run.size()) break;
    ++pending.run;
    pending.offset = 0;
  }
  if (!ReadRuns(process, pending.pull.offer.address, std::span(slice).first(parts))) return false;
  pending.pull.offer.address += bytes;
  return true;
}

bool Puller::StillOffered(const PullOffer& offer) const {
  const GreetingSender& source = sources_.at(offer.source);
  uint64_t id = 0;
  return ReadProcess(source.process, OfferLedger::SlotAddress(source.ledger, offer.slot),
                     std::as_writable_bytes(std::span(&id, 1))) &&
         id == offer.id;
}

void Puller::EndFront(const absl::Status& status) {
  const Pending ended = std::move(pulls_.front());
  pulls_.pop_front();
  AnswerFor(ended.pull.offer, status.ok() ? PullOutcome::kTaken : PullOutcome::kFailed);
  on_end_(ended.pull, status);
}

void Puller::AnswerFor(const PullOffer& offer, PullOutcome outcome) {
  const auto source = sources_.find(offer.source);
  if (source == sources_.end()) return;  // No peer to answer.
  answers_.push_back({offer.source, {source->second.peer, offer.id, outcome}});
}

void Puller::Abandon(const absl::Status& why) {
  const std::deque<Pending> all = std::exchange(pulls_, {});
  for (const Pending& pending : all) on_end_(pending.pull, why);
}

}  // namespace baton
