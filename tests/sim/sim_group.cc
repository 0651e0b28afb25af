#include "tests/sim/sim_group.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/collective/collective_core.h"
#include "common/device/memory.h"
#include "tests/sim/scenario.h"

namespace baton::sim {
namespace {

using collective::CollectiveCore;
using Frame = std::vector<std::byte>;

constexpr int64_t kQuickConnectUs = 2000;
constexpr int64_t kLatestStepUs = 800'000;
constexpr size_t kFloatsOfNumber = sizeof(uint64_t) / sizeof(float);

// A number as a tensor; it is not computed with.
TensorView View(std::span<float> floats) {
  return HostTensor(floats, static_cast<int64_t>(floats.size()));
}

struct Numbers {
  std::array<float, kFloatsOfNumber> own{};
  std::vector<float> all;
};

}  // namespace

struct SimGroup::Attempt {
  GroupDescription group;
  Callbacks callbacks;
  bool over = false;    // `formed` has been called.
  bool formed = false;  // The executor sums over it.
  bool said = false;
  bool connected = false;
  std::set<int> entries;          // Ranks that have said where they are.
  std::map<int, uint64_t> calls;  // By rank.
  std::unique_ptr<CollectiveCore> core;
  std::map<int, std::deque<Frame>> kept;  // By rank: what the core reads, or will.
  Frame room;
  bool pumping = false;
  int64_t watched_us = kNeverUs;

  int size() const { return group.size(); }
  std::optional<int> RankOfCall(uint64_t call) const {
    for (const auto& [rank, connection] : calls) {
      if (connection == call) return rank;
    }
    return std::nullopt;
  }
};

SimGroup::SimGroup(World& world, const Topology& topology, StageGroups& witness, int node)
    : world_(world), topology_(topology), witness_(witness), node_(node) {}
SimGroup::~SimGroup() = default;

StageGroups::Key SimGroup::KeyOf(const Attempt& attempt) const {
  return StageGroups::KeyOf(topology_, node_, attempt.group.epoch);
}

int SimGroup::NodeOfRank(int rank) const {
  if (topology_.IsDecode(node_)) {
    return topology_.DecodeNode(topology_.DecodeOf(node_),
                                topology_.DecodeStageOf(node_) * topology_.decode_ranks + rank);
  }
  return topology_.MemberNode(topology_.ChainOf(node_),
                              topology_.StageOf(node_) * topology_.ranks + rank);
}

// ---- Its way in ----

void SimGroup::Join(const GroupDescription& group, Callbacks callbacks) {
  Leave(absl::CancelledError("the next epoch's group replaces it"));
  members_ = group.members;
  const auto attempt = std::make_shared<Attempt>();
  attempt->group = group;
  attempt->callbacks = std::move(callbacks);
  attempt_ = attempt;
  const int64_t timeout_us = topology_.times.group_connect_us;
  world_.After(node_, timeout_us, "group connects too late", [this, attempt, timeout_us] {
    if (attempt->connected) return;
    End(attempt, absl::DeadlineExceededError(
                     absl::StrCat(attempt->group.Describe(attempt->group.rank),
                                  " is not connected within ", timeout_us / 1000, " ms")));
  });
  if (world_.Strikes(&NetworkFaults::group_fails)) {
    return world_.After(
        node_, world_.random().Between(1, kQuickConnectUs), "group fails",
        [this, attempt] { End(attempt, absl::UnavailableError("no way to the other ranks")); });
  }
  // What never ends trying has to be over before the cluster is healed.
  const bool may_hang = world_.now_us() + timeout_us < kFaultsEndUs;
  if (may_hang && world_.Strikes(&NetworkFaults::group_hangs)) return;
  const bool slow = world_.Strikes(&NetworkFaults::group_slow);
  const int64_t longest_us = slow ? kSlowestConnectUs : kQuickConnectUs;
  world_.After(node_, world_.random().Between(50, longest_us), "group entry",
               [this, attempt] { Say(attempt); });
}

void SimGroup::Say(const AttemptPtr& attempt) {
  if (attempt != attempt_) return;
  attempt->said = true;
  attempt->callbacks.say({absl::StrCat(attempt->group.rank), world_.name(node_)});
  OpenCalls(attempt);
}

void SimGroup::OnMessage(const Rendezvous::Message& message) {
  const AttemptPtr attempt = attempt_;
  if (attempt == nullptr) return;
  if (message.entry) {
    int rank = -1;
    if (!absl::SimpleAtoi(message.entry->key, &rank) || rank < 0 || rank >= attempt->size() ||
        rank == attempt->group.rank) {
      return world_.Violate("a rank hears of what none of the others has said");
    }
    attempt->entries.insert(rank);
    OpenCalls(attempt);
  }
  if (!message.verdict) return;
  if (!message.verdict->ok()) return End(attempt, *message.verdict);
  if (!attempt->connected) {
    return End(attempt, absl::FailedPreconditionError("its group has formed without this rank"));
  }
  world_.After(node_, 1, "group joined", [this, attempt] {
    if (attempt != attempt_) return;
    attempt->formed = true;
    witness_.Formed(KeyOf(*attempt), attempt->group.rank);
    End(attempt, absl::OkStatus());
  });
}

// The lower of two ranks connects.
void SimGroup::OpenCalls(const AttemptPtr& attempt) {
  const int own = attempt->group.rank;
  if (!attempt->said || static_cast<int>(attempt->entries.size()) + 1 < attempt->size()) return;
  for (int rank = own + 1; rank < attempt->size() && attempt == attempt_; ++rank) {
    if (attempt->calls.contains(rank)) continue;
    const uint64_t call = world_.OpenCall(node_, NodeOfRank(rank));
    if (call == 0) {
      return End(attempt, WithRank(absl::UnavailableError(absl::StrCat(
                                       attempt->group.Describe(rank), " does not listen")),
                                   rank));
    }
    attempt->calls[rank] = call;
    world_.SendFrame<Process>(call, node_, "group call",
                              [call, epoch = attempt->group.epoch, own](Process& process) {
                                process.ranks()->TakeCall(call, epoch, own);
                              });
  }
  BeginIfConnected(attempt);
}

void SimGroup::TakeCall(uint64_t call, uint64_t epoch, int rank) {
  const AttemptPtr attempt = attempt_;
  if (attempt == nullptr || attempt->group.epoch != epoch || attempt->calls.contains(rank)) {
    return world_.BreakCall(call);  // The attempt is over on this rank.
  }
  attempt->calls[rank] = call;
  BeginIfConnected(attempt);
}

void SimGroup::BeginIfConnected(const AttemptPtr& attempt) {
  if (attempt != attempt_ || attempt->core != nullptr ||
      static_cast<int>(attempt->calls.size()) + 1 < attempt->size()) {
    return;
  }
  collective::CoreOptions options;
  options.communicator.operation_timeout_ms = topology_.times.sum_timeout_us / 1000;
  options.block_bytes = 256;
  attempt->core = std::make_unique<CollectiveCore>(attempt->group, options);
  attempt->room.resize(attempt->core->frame_bytes_max());
  for (auto& [rank, frames] : std::exchange(attempt->kept, {})) {
    for (Frame& frame : frames) Offer(*attempt, rank, std::move(frame));
  }
  Pump(attempt);
}

// As GroupJoiner's.
void SimGroup::End(const AttemptPtr& attempt, const absl::Status& status) {
  if (attempt != attempt_ || std::exchange(attempt->over, true)) return;
  if (!status.ok()) Leave(status);
  attempt->callbacks.formed(Blame(status));
}

void SimGroup::Leave(const absl::Status& why) {
  if (attempt_ == nullptr) return;
  const AttemptPtr attempt = std::exchange(attempt_, nullptr);
  if (attempt->core != nullptr) {
    attempt->core->Abort(why);
    Pump(attempt);
  }
  for (const auto& [rank, call] : attempt->calls) world_.BreakCall(call);
}

absl::Status SimGroup::Blame(const absl::Status& status) const {
  const std::optional<int> rank = RankOf(status);
  if (!rank || *rank < 0 || *rank >= static_cast<int>(members_.size())) return status;
  return WithLeg(status, RoleName(topology_.RoleOf(node_)), members_[static_cast<size_t>(*rank)]);
}

// ---- Its sums ----

void SimGroup::Gather(uint64_t own, const Gathered& done) {
  const AttemptPtr attempt = attempt_;
  if (attempt == nullptr || !attempt->formed) {
    return world_.After(node_, 1, "no sums",
                        [done] { done(absl::AbortedError("the group is over")); });
  }
  const auto numbers = std::make_shared<Numbers>();
  numbers->all.resize(kFloatsOfNumber * static_cast<size_t>(attempt->size()));
  std::memcpy(numbers->own.data(), &own, sizeof(own));
  const auto complete = [this, numbers, done, size = attempt->size()](const absl::Status& status) {
    if (!status.ok()) return world_.After(node_, 1, "no sums", [done, status] { done(status); });
    std::vector<uint64_t> all(static_cast<size_t>(size));
    std::memcpy(all.data(), numbers->all.data(), sizeof(uint64_t) * all.size());
    world_.After(node_, 1, "sums", [done, all = std::move(all)] { done(all); });
  };
  attempt->core->Submit({CollectiveKind::kAllGather, View(numbers->own), View(numbers->all)},
                        complete, world_.now_us());
  Pump(attempt);
}

void SimGroup::BeginStep(uint64_t own, const Gathered& done) {
  int64_t late_us = 0;
  if (world_.Strikes(&NetworkFaults::step_late)) {
    late_us = world_.random().Between(1000, kLatestStepUs);
  }
  // So long that the others give up, and over before the cluster is healed.
  const int64_t timeout_us = topology_.times.sum_timeout_us;
  const bool may_hang = world_.now_us() + timeout_us * 3 / 2 < kFaultsEndUs;
  if (may_hang && world_.Strikes(&NetworkFaults::step_hangs)) {
    late_us = world_.random().Between(timeout_us, timeout_us * 3 / 2);
  }
  if (late_us == 0) return Gather(own, done);
  world_.After(node_, late_us, "step begins late", [this, own, done] { Gather(own, done); });
}

void SimGroup::Fail(const absl::Status& why) {
  if (attempt_ == nullptr || attempt_->core == nullptr) return;
  attempt_->core->Abort(why);
  Pump(attempt_);
}

void SimGroup::TakeFrame(uint64_t call, std::vector<std::byte> frame) {
  const AttemptPtr attempt = attempt_;
  if (attempt == nullptr) return;
  const std::optional<int> rank = attempt->RankOfCall(call);
  if (!rank) return;
  if (attempt->core == nullptr) {
    attempt->kept[*rank].push_back(std::move(frame));
    return;
  }
  Offer(*attempt, *rank, std::move(frame));
  Pump(attempt);
}

void SimGroup::Offer(Attempt& attempt, int rank, std::vector<std::byte> frame) {
  std::deque<Frame>& kept = attempt.kept[rank];
  // Moving a vector leaves its bytes where they are.
  kept.push_back(std::move(frame));
  if (!attempt.core->Offer(rank, kept.back(), world_.now_us())) kept.pop_back();
}

void SimGroup::CallBroken(uint64_t call) {
  const AttemptPtr attempt = attempt_;
  if (attempt == nullptr) return;
  const std::optional<int> rank = attempt->RankOfCall(call);
  if (!rank) return;
  const absl::Status why = absl::UnavailableError("connection reset by peer");
  if (attempt->core == nullptr) return End(attempt, WithRank(why, *rank));
  attempt->core->Lost(*rank, why, world_.now_us());
  Pump(attempt);
}

bool SimGroup::SendSome(Attempt& attempt) {
  bool moved = false;
  for (const auto& [rank, call] : attempt.calls) {
    const size_t bytes = attempt.core->NextFrame(rank, attempt.room, world_.now_us());
    if (bytes == 0) continue;
    moved = true;
    Frame frame(attempt.room.begin(), attempt.room.begin() + static_cast<std::ptrdiff_t>(bytes));
    world_.SendFrame<Process>(call, node_, "group frame",
                              [call = call, frame = std::move(frame)](Process& peer) {
                                peer.ranks()->TakeFrame(call, frame);
                              });
  }
  return moved;
}

void SimGroup::Pump(const AttemptPtr& attempt) {
  if (std::exchange(attempt->pumping, true)) return;
  for (bool moved = true; moved;) {
    moved = SendSome(*attempt);
    for (auto& [rank, kept] : attempt->kept) {
      for (size_t count = attempt->core->TakeReleased(rank); count > 0; --count) kept.pop_front();
    }
    for (CollectiveCore::Completion& completion : attempt->core->TakeCompletions()) {
      completion.done(std::move(completion.status));
      moved = true;
    }
  }
  attempt->pumping = false;
  WatchDeadline(attempt);
  if (attempt->connected) return;
  if (!attempt->core->ended().ok()) {
    End(attempt, attempt->core->ended());
  } else if (attempt->core->formed()) {
    attempt->connected = true;
    witness_.Connected(KeyOf(*attempt), attempt->group.rank);
    attempt->callbacks.connected();
  }
}

// One timer at a time: what it is set for moves on with every frame.
void SimGroup::WatchDeadline(const AttemptPtr& attempt) {
  const int64_t deadline_us = attempt->core->deadline_us();
  if (deadline_us >= attempt->watched_us) return;
  attempt->watched_us = deadline_us;
  world_.After(node_, std::max<int64_t>(0, deadline_us - world_.now_us()), "sums watched",
               [this, attempt, deadline_us] {
                 if (attempt->watched_us != deadline_us) return;
                 attempt->watched_us = kNeverUs;
                 attempt->core->Tick(world_.now_us());
                 Pump(attempt);
               });
}

// ---- Joining ----

}  // namespace baton::sim
