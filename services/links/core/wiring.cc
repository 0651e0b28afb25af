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

namespace baton::links {

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

void Wiring::On(const MembersSeen& event) {
  std::vector<worker::PeerWorker> found = FindMembers(options_.place, event.members);
  if (found == members_) return;
  members_ = std::move(found);
  if (members_.empty()) return;
  if (wired() && members_ != tried_) {
    std::string lost;
    for (const worker::PeerWorker& member : tried_) {
      if (std::find(members_.begin(), members_.end(), member) == members_.end()) {
        lost = member.instance.id;
      }
    }
    const absl::Status reason = absl::UnavailableError(absl::StrCat(
        "another process has taken the place of ", lost, " in the ", options_.place.GroupName()));
    Covered<"wiring: a member of a wired chain is replaced">();
    Break(WithLeg(reason, RoleName(options_.place.role), lost));
  }
  // A member that comes back, or takes another's place, has not failed yet: the backoff was for
  // the former one.
  if (!wired() && members_ != tried_) {
    backoff_us_ = 0;
    retry_at_us_ = now_us_;
  }
}

void Wiring::TryToWire(uint64_t wall_clock_us) {
  if (phase_ != Phase::kDown || !whole() || now_us_ < retry_at_us_) return;
  Hello hello;
  hello.epoch = std::max({epoch_ + 1, newest_elsewhere_ + 1, wall_clock_us});
  hello.max_plan_tokens = options_.max_plan_tokens;
  hello.activation_credits = options_.activation_credits;
  hello.members.push_back(options_.place.self);
  for (const auto& member : members_) {
    hello.members.push_back({member.instance, member.layers, member.tensor_rank});
  }
  trying_ = hello;
  Emit(TryOwnEpoch{std::move(hello)});
}

void Wiring::On(const OwnEpochTried& event) {
  BATON_CHECK(trying_.has_value()) << "stage 0 has begun an epoch unasked";
  Hello hello = *std::exchange(trying_, std::nullopt);
  if (!event.status.ok()) {
    Covered<"wiring: stage 0 cannot begin yet">();
    retry_at_us_ = now_us_ + times_.first_backoff_us;
    return;
  }
  epoch_ = hello.epoch;
  tried_ = members_;
  phase_ = Phase::kLinking;
  linking_since_us_ = now_us_;
  next_ping_us_ = now_us_ + times_.ping_us;
  for (const worker::PeerWorker& member : members_) links_.push_back({.member = member});
  own_ready_ = options_.place.ranks() == 1;
  if (!own_ready_) groups_.Begin(hello, times_.linking_limit_us / 1000);
  if (!links_.empty()) Emit(OpenLinks{hello, members_});
  if (!own_ready_) Emit(FormOwnGroup{std::move(hello)});
  BecomeUpIfReady();
}

Wiring::Link* Wiring::Find(int member, uint64_t of_epoch) {
  if (!wired() || of_epoch != epoch_) return nullptr;
  BATON_CHECK(member >= 1 && static_cast<size_t>(member) <= links_.size()) << "member " << member;
  return &links_[static_cast<size_t>(member - 1)];
}

// Whatever a stage says, it lives.
Wiring::Link* Wiring::Hear(int member, uint64_t of_epoch) {
  Link* link = Find(member, of_epoch);
  if (link != nullptr) link->last_heard_us = now_us_;
  return link;
}

void Wiring::On(const StageHeard& event) { Hear(event.member, event.epoch); }

// ---- Groups ----

// Whether a group message is of this epoch.
bool Wiring::HearGroup(int member, uint64_t of_epoch) {
  if (member == 0) return wired() && of_epoch == epoch_;
  return Hear(member, of_epoch) != nullptr;
}

void Wiring::On(const GroupJoinHeard& event) {
  if (!HearGroup(event.member, event.epoch)) return;
  groups_.OnJoin(event.member, now_us_);
  TellGroups();
}

void Wiring::On(const GroupEntryHeard& event) {
  if (!HearGroup(event.member, event.epoch)) return;
  groups_.OnEntry(event.member, event.entry);
  TellGroups();
}

void Wiring::On(const GroupConnectedHeard& event) {
  if (!HearGroup(event.member, event.epoch)) return;
  groups_.OnConnected(event.member);
  TellGroups();
}

void Wiring::TellGroups() {
  for (GroupRendezvous::ToMember& word : groups_.TakeMessages()) {
    Emit(TellGroup{word.member, std::move(word.message)});
  }
}

void Wiring::On(const OwnGroupFormed& event) {
  if (!wired() || event.epoch != epoch_ || own_ready_) return;
  if (!event.status.ok()) return On(ChainFailed{event.status});
  own_ready_ = true;
  BecomeUpIfReady();
}

// ---- Members ----

void Wiring::On(const StageReady& event) {
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

void Wiring::BecomeUpIfReady() {
  const bool all = std::all_of(links_.begin(), links_.end(), [](const Link& l) { return l.ready; });
  if (all && own_ready_ && phase_ == Phase::kLinking) BecomeUp();
}

void Wiring::On(const StageRefused& event) {
  const Link* link = Hear(event.member, event.epoch);
  if (link == nullptr) return;
  const absl::Status status = absl::FailedPreconditionError(
      absl::StrCat("its epoch ", event.newest_epoch, " is newer than ", epoch_));
  const bool sane = event.newest_epoch >= epoch_ && event.newest_epoch < kMaxEpoch;
  Break(Blame(status, link->member));
  if (!sane) return;
  Covered<"wiring: a stage knows a newer epoch">();
  newest_elsewhere_ = event.newest_epoch;
  retry_at_us_ = now_us_;  // It has not failed: it has told how to go on.
}

void Wiring::On(const StageLinkEnded& event) {
  const Link* link = Find(event.member, event.epoch);
  if (link != nullptr) Break(Blame(event.status, link->member));
}

void Wiring::BecomeUp() {
  Covered<"wiring: a chain is up">();
  phase_ = Phase::kUp;
  up_since_us_ = now_us_;
  worked_ = false;
  int page_count = options_.page_count;
  for (Link& link : links_) {
    page_count = std::min(page_count, link.page_count);
    link.last_heard_us = now_us_;  // Silence counts from here.
  }
  Emit(ReportChainUp{epoch_, page_count});
}

void Wiring::On(const ReportHeard& event) {
  const Link* link = Hear(event.member, event.epoch);
  if (link == nullptr) return;
  if (phase_ != Phase::kUp) {
    return Break(
        Blame(absl::FailedPreconditionError("a report before there is work"), link->member));
  }
  const ChainPlace& place = options_.place;
  const int stage = place.StageOf(event.member);
  if (stage + 1 == place.stages) worked_ = true;  // Work has come through the chain.
  Emit(PassReport{stage, place.RankOf(event.member), event.epoch});
  if (stage == 1) Emit(TellOwnStage{event.epoch});
}

// Whatever it was, the requests of the chain can be sent again.
void Wiring::On(const ChainFailed& event) {
  const std::string& self = options_.place.self.instance.id;
  const absl::Status reason = absl::UnavailableError(absl::StrCat(
      NameOfPlace(options_.place.role, 0, options_.place.stages, options_.place.self.tensor_rank),
      " (", self, "): ", event.status.message()));
  Break(WithLeg(reason, RoleName(options_.place.role), InstanceOf(event.status).value_or(self)));
}

// The wait grows for a chain that links and then does nothing: its links stand, and something that
// they don't show is broken. One that has worked meets a new fault.
void Wiring::Break(const absl::Status& reason) {
  if (!wired()) return;
  const bool stable =
      phase_ == Phase::kUp && (worked_ || now_us_ - up_since_us_ >= times_.stable_us);
  backoff_us_ = stable || backoff_us_ == 0 ? times_.first_backoff_us
                                           : std::min(2 * backoff_us_, times_.longest_backoff_us);
  retry_at_us_ = now_us_ + backoff_us_;
  phase_ = Phase::kDown;
  links_.clear();
  Emit(CloseLinks{});
  Emit(ReportChainDown{reason});
}

void Wiring::On(const WiringStopped&) {
  Break(absl::UnavailableError(absl::StrCat(options_.place.LeaderName(), " is stopping")));
  phase_ = Phase::kStopped;
}

// A stopped process shows only by silence: gRPC and UCX don't report it. Stages are pinged while
// they link too, since one that is ready receives nothing else until the last one is.
void Wiring::Watch() {
  groups_.Tick(now_us_);
  TellGroups();
  const bool late =
      now_us_ - linking_since_us_ >= times_.linking_limit_us;  // Unless all are ready.
  if (late && !own_ready_) {
    return On(ChainFailed{absl::DeadlineExceededError(absl::StrCat(
        "its ranks have not formed a group within ", times_.linking_limit_us / 1000, " ms"))});
  }
  for (const Link& link : links_) {
    if (late && !link.ready) {
      Covered<"wiring: a stage is not ready in time">();
      return Break(Blame(absl::DeadlineExceededError(absl::StrCat(
                             "not ready within ", times_.linking_limit_us / 1000, " ms")),
                         link.member));
    }
    if (phase_ == Phase::kUp && now_us_ - link.last_heard_us >= times_.silence_us) {
      Covered<"wiring: a stage is silent">();
      return Break(Blame(absl::UnavailableError(
                             absl::StrCat("no sign of life for ", times_.silence_us / 1000, " ms")),
                         link.member));
    }
  }
  if (links_.empty() || now_us_ < next_ping_us_) return;
  next_ping_us_ = now_us_ + times_.ping_us;
  Emit(PingStages{++ping_sequence_});
}

void Wiring::On(const WiringTick& event) {
  TryToWire(event.wall_clock_us);
  if (wired()) Watch();
}

Wiring::Wiring(WiringOptions options) : options_(std::move(options)) {
  BATON_CHECK(options_.place.member() == 0)
      << "member " << options_.place.member() << " wires nothing";
}

void Wiring::Handle(const WiringEvent& event, int64_t now_us, std::vector<WiringAction>& actions) {
  now_us_ = now_us;
  actions_ = &actions;
  std::visit([this](const auto& e) { On(e); }, event);
  actions_ = nullptr;
}

int64_t Wiring::NextDeadlineUs() const {
  switch (phase_) {
    case Phase::kDown:
      return whole() && !trying_.has_value() ? retry_at_us_ : kNeverUs;
    case Phase::kLinking:
      // A group that does not form has as long, from its first rank on.
      return std::min(linking_since_us_ + times_.linking_limit_us, next_ping_us_);
    case Phase::kUp:
      return links_.empty() ? kNeverUs : next_ping_us_;
    case Phase::kStopped:
      break;
  }
  return kNeverUs;
}

}  // namespace baton::links
