#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/coverage.h"
#include "common/base/status.h"
#include "common/kv/head_routes.h"
#include "services/decode/core/decode_state.h"

namespace baton::decode {

void DecodeCore::State::On(const ReserveRequested& event) {
  if (requests.contains(event.attempt_id)) {
    Refuse(event.attempt_id, absl::AlreadyExistsError(
                                 absl::StrCat("attempt ", event.attempt_id, " is held already")));
    return;
  }
  const auto aborted = std::find(early_aborts.begin(), early_aborts.end(), event.attempt_id);
  if (aborted != early_aborts.end()) {
    Covered<"decode: an abort overtakes its reservation">();
    early_aborts.erase(aborted);
    Refuse(event.attempt_id, absl::CancelledError("aborted before it was reserved"));
    return;
  }
  if (absl::Status status = RefuseToBegin(); !status.ok()) {
    Refuse(event.attempt_id, std::move(status));
    return;
  }
  if (absl::Status status = RefuseUntilJoined(); !status.ok()) {
    Refuse(event.attempt_id, std::move(status));
    return;
  }
  if (absl::Status status = CheckReserve(event); !status.ok()) {
    Refuse(event.attempt_id, std::move(status));
    return;
  }
  Request request;
  request.prompt_tokens = event.prompt_tokens;
  request.token_limit =
      std::min(event.stop.max_tokens, limits.max_context_tokens - event.prompt_tokens);
  request.stop = event.stop;
  request.writers = event.writers;
  request.deadline_us = event.deadline_us;
  request.resumes = event.resumes;
  if (tree.has_value() && event.tokens != nullptr) {
    request.tokens = event.tokens;
    // KV of one number of ranks is equal to the last bit, and that of another is not.
    request.cache_salt = absl::StrCat(event.writers[0].tensor_rank.size, ":", event.cache_salt);
  }
  if (PagesFor(request) > page_count) {
    Refuse(event.attempt_id,
           absl::ResourceExhaustedError(absl::StrCat(
               event.prompt_tokens, " prompt tokens and ", request.token_limit, " new ones take ",
               PagesFor(request), " pages, the pool has ", page_count)));
    return;
  }
  const bool waits = !queue.empty() || free_slots.empty() || rows_in_want > 0 ||
                     AvailablePages() < PagesAtFirst(request);
  if (waits && static_cast<int>(queue.size()) >= limits.max_queued_requests) {
    Covered<"decode: the queue is full">();
    Refuse(event.attempt_id, Overloaded(absl::ResourceExhaustedError(absl::StrCat(
                                            "the queue is full (", queue.size(), " requests)")),
                                        kQueueRetryAfterMs));
    return;
  }
  requests.emplace(event.attempt_id, std::move(request));
  Arm(event.attempt_id);
  queue.push_back(event.attempt_id);
}

absl::Status DecodeCore::State::CheckReserve(const ReserveRequested& event) const {
  if (event.attempt_id == 0) return InvalidField("attempt_id", "must not be 0");
  if (event.prompt_tokens < 1) return InvalidField("prompt_tokens", "must be positive");
  if (event.prompt_tokens >= limits.max_context_tokens) {
    return InvalidField("prompt_tokens",
                        absl::StrCat(event.prompt_tokens, " tokens leave no room for a new one in ",
                                     "a context of ", limits.max_context_tokens));
  }
  if (event.stop.max_tokens < 1) {
    return InvalidField("sampling.max_tokens",
                        absl::StrCat(event.stop.max_tokens, " is not positive"));
  }
  if (event.deadline_us <= now_us) {
    return absl::DeadlineExceededError("the deadline had passed on arrival");
  }
  return CheckWriters(event.writers);
}

// Checks that one stage's writers are exactly its ranks with something to write, each once.
absl::Status DecodeCore::State::CheckSources(std::span<const KvWriter> stage) const {
  const int ranks = stage[0].tensor_rank.size;
  const absl::StatusOr<std::vector<int>> sources = SourcesOf(limits.kv_heads, ranks, limits.ranks);
  if (!sources.ok()) {
    return InvalidField("writers", absl::StrCat("of ", stage[0].instance.id,
                                                "'s stage: ", sources.status().message()));
  }
  std::vector<int> named;
  for (const KvWriter& writer : stage) {
    if (writer.tensor_rank.size != ranks) {
      return InvalidField("writers", absl::StrCat(stage[0].instance.id, " is one of ", ranks,
                                                  " ranks, ", writer.instance.id, " of the same ",
                                                  "layers one of ", writer.tensor_rank.size));
    }
    named.push_back(writer.tensor_rank.rank);
  }
  std::sort(named.begin(), named.end());
  if (named == *sources) return absl::OkStatus();
  return InvalidField(
      "writers",
      absl::StrCat("of layers [", stage[0].layers.begin, ", ", stage[0].layers.end, ") are ranks ",
                   absl::StrJoin(named, ", "), " of ", ranks, "; each of ", limits.kv_heads,
                   " KV heads is written once by ranks ", absl::StrJoin(*sources, ", ")));
}

absl::Status DecodeCore::State::CheckWriters(const std::vector<KvWriter>& writers) const {
  for (const KvWriter& writer : writers) {
    if (writer.instance.id.empty() || writer.instance.incarnation == 0) {
      return InvalidField("writers", "an instance without a name or incarnation");
    }
  }
  std::vector<KvWriter> sorted = writers;
  std::ranges::stable_sort(sorted, {}, &KvWriter::layers);
  int covered = 0;
  for (auto begin = sorted.cbegin(); begin != sorted.cend();) {
    const LayerRange layers = begin->layers;
    if (layers.begin != covered || layers.end <= layers.begin) {
      return InvalidField("writers", absl::StrCat("layers [", layers.begin, ", ", layers.end,
                                                  ") follow those up to ", covered,
                                                  ": every layer needs exactly one stage"));
    }
    const auto end = std::find_if(
        begin, sorted.cend(), [layers](const KvWriter& writer) { return writer.layers != layers; });
    BATON_RETURN_IF_ERROR(CheckSources(std::span(begin, end)));
    covered = layers.end;
    begin = end;
  }
  if (covered != limits.layout.layers) {
    return InvalidField("writers",
                        absl::StrCat("cover ", covered, " of ", limits.layout.layers, " layers"));
  }
  return absl::OkStatus();
}

// First come, first served: a small request doesn't overtake a large one that waits for pages, or
// a stream of small ones would starve it. Nor does it take what rows wait for.
void DecodeCore::State::AdmitWaiting() {
  if (rows_in_want > 0) return;
  while (!queue.empty() && !free_slots.empty()) {
    const uint64_t attempt_id = queue.front();
    if (found_too_few == std::pair(attempt_id, page_changes)) return;
    Request& request = requests.at(attempt_id);
    if (!AllocatePages(request)) {
      found_too_few = {attempt_id, page_changes};
      Covered<"decode: the oldest request waits for pages">();
      return;
    }
    queue.pop_front();
    request.phase = Phase::kGranting;
    request.slot = free_slots.front();
    free_slots.pop_front();
    request.generation = ++last_generation;
    granted.emplace(request.generation, attempt_id);
    Grant(attempt_id, request);
  }
}

std::optional<uint64_t> DecodeCore::State::HolderOf(uint32_t slot, uint64_t generation) const {
  const auto found = granted.find(generation);
  if (found == granted.end()) return std::nullopt;
  const Request& request = requests.at(found->second);
  BATON_CHECK(request.slot == slot)
      << "generation " << generation << " is of slot " << request.slot << ", not " << slot;
  return found->second;
}

}  // namespace baton::decode
