// Reservations that no router of ours asks for: a decode service refuses each for what is wrong
// with it, and nothing else changes.
#include <iterator>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "tests/sim/decode_process.h"

namespace baton::sim {
namespace {

using decode::ReserveRequested;

constexpr int64_t kAtOnce = -1;                  // Stands for the time of its arrival.
constexpr uint64_t kNobody = uint64_t{1} << 60;  // No attempt's number.

struct BadReserve {
  absl::StatusCode code;
  const char* words;  // In the refusal, which is ToString's.
  void (*spoil)(ReserveRequested&, const Topology&);
};

// Its writers that have the last layers.
template <typename Change>
void ChangeLastStage(ReserveRequested& r, const Topology& t, Change change) {
  for (KvWriter& writer : r.writers) {
    if (writer.layers.end == t.layers) change(writer);
  }
}

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

// In the order in which they are looked at, each right but for its own mistake.
constexpr BadReserve kBadReserves[] = {
    {kInvalid, "attempt_id", [](ReserveRequested& r, const Topology&) { r.attempt_id = 0; }},
    {kInvalid, "prompt_tokens", [](ReserveRequested& r, const Topology&) { r.prompt_tokens = 0; }},
    {kInvalid, "leave no room for a new one",
     [](ReserveRequested& r, const Topology& t) { r.prompt_tokens = t.max_context_tokens; }},
    {kInvalid, "max_tokens", [](ReserveRequested& r, const Topology&) { r.stop.max_tokens = 0; }},
    {absl::StatusCode::kDeadlineExceeded, "on arrival",
     [](ReserveRequested& r, const Topology&) { r.deadline_us = kAtOnce; }},
    {kInvalid, "an instance without a name",
     [](ReserveRequested& r, const Topology&) { r.writers.back().instance.id.clear(); }},
    {kInvalid, "an instance without a name",
     [](ReserveRequested& r, const Topology&) { r.writers[0].instance.incarnation = 0; }},
    {kInvalid, "every layer needs exactly one stage",
     [](ReserveRequested& r, const Topology&) {
       for (KvWriter& writer : r.writers) writer.layers.begin += writer.layers.begin == 0 ? 1 : 0;
     }},
    {kInvalid, "every layer needs exactly one stage",
     [](ReserveRequested& r, const Topology&) {
       for (KvWriter& writer : r.writers) writer.layers.end = writer.layers.begin;
     }},
    {kInvalid, "cover 0 of", [](ReserveRequested& r, const Topology&) { r.writers.clear(); }},
    {kInvalid, "is written once by ranks",
     [](ReserveRequested& r, const Topology&) { r.writers.push_back(r.writers.back()); }},
    {kInvalid, "neither divides the other",
     [](ReserveRequested& r, const Topology& t) {
       ChangeLastStage(r, t, [](KvWriter& writer) { writer.tensor_rank.size = 0; });
     }},
    {kInvalid, "neither divides the other",
     [](ReserveRequested& r, const Topology& t) {
       const int size = t.kv_heads > 1 ? 3 : -1;
       ChangeLastStage(r, t, [size](KvWriter& writer) { writer.tensor_rank.size = size; });
     }},
    {kInvalid, "of the same layers one of",
     [](ReserveRequested& r, const Topology&) {
       r.writers.push_back(r.writers.back());
       r.writers.back().tensor_rank.size += 3;
     }},
    {absl::StatusCode::kResourceExhausted, "pages, the pool has",
     [](ReserveRequested& r, const Topology& t) {
       r.prompt_tokens = t.decode_pages * t.page_size;
       r.stop.max_tokens = 1;
     }},
};

}  // namespace

void DecodeProcess::LetIntrudersReserve(const decode::ReserveRequested& like) {
  HandleCore(decode::Tick{});  // What is due happens before.
  if (core_.draining() || !core_.joined() || sessions_.contains(kNobody)) return;
  const auto last = static_cast<int64_t>(std::size(kBadReserves)) - 1;
  const BadReserve& bad = kBadReserves[static_cast<size_t>(world_.random().Between(0, last))];
  decode::ReserveRequested request = like;
  request.attempt_id = kNobody;
  bad.spoil(request, topology_);
  if (request.deadline_us == kAtOnce) request.deadline_us = world_.now_us();
  // A pool may be larger than a context.
  if (bad.code == absl::StatusCode::kResourceExhausted &&
      request.prompt_tokens >= topology_.max_context_tokens) {
    return;
  }
  ExpectRefused(request, bad.code, bad.words);
}

void DecodeProcess::ExpectRefused(const decode::ReserveRequested& request, absl::StatusCode code,
                                  const char* words) {
  const decode::DecodeLoad before = core_.load();
  std::vector<decode::Action> actions;
  core_.Handle(request, world_.now_us(), actions);
  const decode::DecodeLoad after = core_.load();
  const auto* reply =
      actions.size() == 1 ? std::get_if<decode::ReplyReserve>(&actions[0]) : nullptr;
  const absl::Status status = reply == nullptr ? absl::OkStatus() : reply->ticket.status();
  const bool refused = status.code() == code && absl::StrContains(status.ToString(), words) &&
                       reply->attempt_id == request.attempt_id;
  const bool unchanged = before.waiting == after.waiting && before.reserved == after.reserved &&
                         before.running == after.running && before.free_pages == after.free_pages;
  if (refused && unchanged) return;
  world_.Violate(absl::StrCat(self_.id, ": a reservation that is to be refused for '", words,
                              "' is answered with ", status.ToString()));
}

}  // namespace baton::sim
