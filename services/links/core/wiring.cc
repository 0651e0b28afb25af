#include "services/links/core/wiring.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/coverage.h"
#include "common/base/status.h"
#include "services/links/core/wiring_state.h"

namespace baton::links {
using wiring_internal::Link;
using wiring_internal::Phase;

namespace {

// The chain's members from member 1 on, in order, for stage 0 at `place`; empty unless `listed` has
// each of them, and their layers follow one another to the model's end.
std::vector<worker::PeerWorker> FindMembers(const ChainPlace& place,
                                            const std::vector<worker::PeerWorker>& listed) {
  std::vector<worker::PeerWorker> found;
  LayerRange layers = place.self.layers;  // The previous member's.
  for (int member = 1; member < place.members(); ++member) {
    const int stage = place.StageOf(member);
    const TensorRank rank{place.RankOf(member), place.ranks()};
    const auto worker = std::find_if(listed.begin(), listed.end(), [&](const auto& candidate) {
      return candidate.role == place.role && candidate.group_id() == place.chain_id &&
             candidate.pp_size == place.stages && candidate.pp_rank == stage &&
             candidate.tensor_rank == rank &&
             (rank.rank == 0 ? candidate.layers.begin == layers.end : candidate.layers == layers);
    });
    if (worker == listed.end()) return {};
    layers = worker->layers;
    found.push_back(*worker);
  }
  if (layers.end != place.layers) return {};
  return found;
}

// Why requests of the chain end, when `member` is lost or says that another one is. UNAVAILABLE
// whatever it was, since they can be sent again, with the leg and the instance to blame.
absl::Status Blame(const absl::Status& cause, const worker::PeerWorker& member) {
  const std::string& name = member.instance.id;
  const std::string blamed = InstanceOf(cause).value_or(name);
  const std::string place =
      NameOfPlace(member.role, member.pp_rank, member.pp_size, member.tensor_rank);
  // A member that reports the loss of another is not lost itself.
  const absl::Status status = absl::UnavailableError(
      absl::StrCat(place, " (", name, ")", blamed == name ? " is lost: " : ": ", cause.message()));
  return WithLeg(status, RoleName(member.role), blamed);
}

}  // namespace

void Wiring::State::On(const MembersSeen& event) {
  std::vector<worker::PeerWorker> found = FindMembers(options.place, event.members);
  if (found == members) return;
  members = std::move(found);
  if (members.empty()) return;
  if (wired() && members != tried) {
    std::string lost;
    for (const worker::PeerWorker& member : tried) {
      if (std::find(members.begin(), members.end(), member) == members.end()) {
        lost = member.instance.id;
      }
    }
    const absl::Status reason = absl::UnavailableError(absl::StrCat(
        "another process has taken the place of ", lost, " in the ", options.place.GroupName()));
    Covered<"wiring: a member of a wired chain is replaced">();
    Break(WithLeg(reason, RoleName(options.place.role), lost));
  }
  // A member that comes back, or takes another's place, has not failed yet: the backoff was for
  // the former one.
  if (!wired() && members != tried) {
    backoff_us = 0;
    retry_at_us = now_us;
  }
}

void Wiring::State::TryToWire(uint64_t wall_clock_us) {
  if (phase != Phase::kDown || !whole() || now_us < retry_at_us) return;
  Hello hello;
  hello.epoch = std::max({epoch + 1, newest_elsewhere + 1, wall_clock_us});
  hello.max_plan_tokens = options.max_plan_tokens;
  hello.activation_credits = options.activation_credits;
  hello.members.push_back(options.place.self);
  for (const auto& member : members) {
    hello.members.push_back({member.instance, member.layers, member.tensor_rank});
  }
  trying = hello;
  Emit(TryOwnEpoch{std::move(hello)});
}

void Wiring::State::On(const OwnEpochTried& event) {
  BATON_CHECK(trying.has_value()) << "stage 0 has begun an epoch unasked";
  Hello hello = *std::exchange(trying, std::nullopt);
  if (!event.status.ok()) {
    Covered<"wiring: stage 0 cannot begin yet">();
    retry_at_us = now_us + times.first_backoff_us;
    return;
  }
  epoch = hello.epoch;
  tried = members;
  phase = Phase::kLinking;
  linking_since_us = now_us;
  next_ping_us = now_us + times.ping_us;
  for (const worker::PeerWorker& member : members) links.push_back({.member = member});
  own_ready = options.place.ranks() == 1;
  if (!own_ready) groups.Begin(hello, times.linking_limit_us / 1000);
  if (!links.empty()) Emit(OpenLinks{hello, members});
  if (!own_ready) Emit(FormOwnGroup{std::move(hello)});
  BecomeUpIfReady();
}

Link* Wiring::State::Find(int member, uint64_t of_epoch) {
  if (!wired() || of_epoch != epoch) return nullptr;
  BATON_CHECK(member >= 1 && static_cast<size_t>(member) <= links.size()) << "member " << member;
  return &links[static_cast<size_t>(member - 1)];
}

// Whatever a stage says, it lives.
Link* Wiring::State::Hear(int member, uint64_t of_epoch) {
  Link* link = Find(member, of_epoch);
  if (link != nullptr) link->last_heard_us = now_us;
  return link;
}

void Wiring::State::On(const StageHeard& event) { Hear(event.member, event.epoch); }

// ---- Groups ----

// Whether a group message is of this epoch.
bool Wiring::State::HearGroup(int member, uint64_t of_epoch) {
  if (member == 0) return wired() && of_epoch == epoch;
  return Hear(member, of_epoch) != nullptr;
}

void Wiring::State::On(const GroupJoinHeard& event) {
  if (!HearGroup(event.member, event.epoch)) return;
  groups.OnJoin(event.member, now_us);
  TellGroups();
}

void Wiring::State::On(const GroupEntryHeard& event) {
  if (!HearGroup(event.member, event.epoch)) return;
  groups.OnEntry(event.member, event.entry);
  TellGroups();
}

void Wiring::State::On(const GroupConnectedHeard& event) {
  if (!HearGroup(event.member, event.epoch)) return;
  groups.OnConnected(event.member);
  TellGroups();
}

void Wiring::State::TellGroups() {
  for (GroupRendezvous::ToMember& word : groups.TakeMessages()) {
    Emit(TellGroup{word.member, std::move(word.message)});
  }
}

void Wiring::State::On(const OwnGroupFormed& event) {
  if (!wired() || event.epoch != epoch || own_ready) return;
  if (!event.status.ok()) return On(ChainFailed{event.status});
  own_ready = true;
  BecomeUpIfReady();
}

// ---- Members ----

void Wiring::State::On(const StageReady& event) {
  Link* link = Hear(event.member, event.epoch);
  if (link == nullptr) return;
  if (link->ready || event.page_count < 1) {
    const absl::Status status = absl::FailedPreconditionError(
        absl::StrCat("ready ", link->ready ? "twice" : "without a page"));
    return Break(Blame(status, link->member));
  }
  link->ready = true;
  link->page_count = event.page_count;
  BecomeUpIfReady();
}

void Wiring::State::BecomeUpIfReady() {
  const bool all = std::all_of(links.begin(), links.end(), [](const Link& l) { return l.ready; });
  if (all && own_ready && phase == Phase::kLinking) BecomeUp();
}

void Wiring::State::On(const StageRefused& event) {
  const Link* link = Hear(event.member, event.epoch);
  if (link == nullptr) return;
  const absl::Status status = absl::FailedPreconditionError(
      absl::StrCat("its epoch ", event.newest_epoch, " is newer than ", epoch));
  const bool sane = event.newest_epoch >= epoch && event.newest_epoch < kMaxEpoch;
  Break(Blame(status, link->member));
  if (!sane) return;
  Covered<"wiring: a stage knows a newer epoch">();
  newest_elsewhere = event.newest_epoch;
  retry_at_us = now_us;  // It has not failed: it has told how to go on.
}

void Wiring::State::On(const StageLinkEnded& event) {
  const Link* link = Find(event.member, event.epoch);
  if (link != nullptr) Break(Blame(event.status, link->member));
}

void Wiring::State::BecomeUp() {
  Covered<"wiring: a chain is up">();
  phase = Phase::kUp;
  up_since_us = now_us;
  worked = false;
  int page_count = options.page_count;
  for (Link& link : links) {
    page_count = std::min(page_count, link.page_count);
    link.last_heard_us = now_us;  // Silence counts from here.
  }
  Emit(ReportChainUp{epoch, page_count});
}

void Wiring::State::On(const ReportHeard& event) {
  const Link* link = Hear(event.member, event.epoch);
  if (link == nullptr) return;
  if (phase != Phase::kUp) {
    return Break(
        Blame(absl::FailedPreconditionError("a report before there is work"), link->member));
  }
  const ChainPlace& place = options.place;
  const int stage = place.StageOf(event.member);
  if (stage + 1 == place.stages) worked = true;  // Work has come through the chain.
  Emit(PassReport{stage, place.RankOf(event.member), event.epoch});
  if (stage == 1) Emit(TellOwnStage{event.epoch});
}

// Whatever it was, the requests of the chain can be sent again.
void Wiring::State::On(const ChainFailed& event) {
  const std::string& self = options.place.self.instance.id;
  const absl::Status reason = absl::UnavailableError(absl::StrCat(
      NameOfPlace(options.place.role, 0, options.place.stages, options.place.self.tensor_rank),
      " (", self, "): ", event.status.message()));
  Break(WithLeg(reason, RoleName(options.place.role), InstanceOf(event.status).value_or(self)));
}

// The wait grows for a chain that links and then does nothing: its links stand, and something that
// they don't show is broken. One that has worked meets a new fault.
void Wiring::State::Break(const absl::Status& reason) {
  if (!wired()) return;
  const bool stable = phase == Phase::kUp && (worked || now_us - up_since_us >= times.stable_us);
  backoff_us = stable || backoff_us == 0 ? times.first_backoff_us
                                         : std::min(2 * backoff_us, times.longest_backoff_us);
  retry_at_us = now_us + backoff_us;
  phase = Phase::kDown;
  links.clear();
  Emit(CloseLinks{});
  Emit(ReportChainDown{reason});
}

void Wiring::State::On(const WiringStopped&) {
  Break(absl::UnavailableError(absl::StrCat(options.place.LeaderName(), " is stopping")));
  phase = Phase::kStopped;
}

// A stopped process shows only by silence: gRPC and UCX don't report it. Stages are pinged while
// they link too, since one that is ready receives nothing else until the last one is.
void Wiring::State::Watch() {
  groups.Tick(now_us);
  TellGroups();
  const bool late = now_us - linking_since_us >= times.linking_limit_us;  // Unless all are ready.
  if (late && !own_ready) {
    return On(ChainFailed{absl::DeadlineExceededError(absl::StrCat(
        "its ranks have not formed a group within ", times.linking_limit_us / 1000, " ms"))});
  }
  for (const Link& link : links) {
    if (late && !link.ready) {
      Covered<"wiring: a stage is not ready in time">();
      return Break(Blame(absl::DeadlineExceededError(absl::StrCat(
                             "not ready within ", times.linking_limit_us / 1000, " ms")),
                         link.member));
    }
    if (phase == Phase::kUp && now_us - link.last_heard_us >= times.silence_us) {
      Covered<"wiring: a stage is silent">();
      return Break(Blame(absl::UnavailableError(
                             absl::StrCat("no sign of life for ", times.silence_us / 1000, " ms")),
                         link.member));
    }
  }
  if (links.empty() || now_us < next_ping_us) return;
  next_ping_us = now_us + times.ping_us;
  Emit(PingStages{++ping_sequence});
}

void Wiring::State::On(const WiringTick& event) {
  TryToWire(event.wall_clock_us);
  if (wired()) Watch();
}

Wiring::Wiring(WiringOptions options) : state_(std::make_unique<State>(std::move(options))) {
  const ChainPlace& place = state_->options.place;
  BATON_CHECK(place.member() == 0) << "member " << place.member() << " wires nothing";
}
Wiring::~Wiring() = default;

void Wiring::Handle(const WiringEvent& event, int64_t now_us, std::vector<WiringAction>& actions) {
  state_->now_us = now_us;
  state_->actions = &actions;
  std::visit([this](const auto& e) { state_->On(e); }, event);
  state_->actions = nullptr;
}

int64_t Wiring::NextDeadlineUs() const {
  const State& state = *state_;
  switch (state.phase) {
    case Phase::kDown:
      return state.whole() && !state.trying.has_value() ? state.retry_at_us : kNeverUs;
    case Phase::kLinking:
      // A group that does not form has as long, from its first rank on.
      return std::min(state.linking_since_us + state.times.linking_limit_us, state.next_ping_us);
    case Phase::kUp:
      return state.links.empty() ? kNeverUs : state.next_ping_us;
    case Phase::kStopped:
      break;
  }
  return kNeverUs;
}

uint64_t Wiring::epoch() const { return state_->epoch; }

bool Wiring::up() const { return state_->phase == Phase::kUp; }

}  // namespace baton::links
