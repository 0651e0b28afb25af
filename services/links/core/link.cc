#include "services/links/core/link.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/coverage.h"
#include "common/base/status.h"

namespace baton::links {

struct Link::State {
  State(ChainPlace chain_place, const ChainTimes& chain_times)
      : place(std::move(chain_place)), times(chain_times) {}

  const ChainPlace place;
  const ChainTimes times;
  uint64_t link = 0;  // 0: none stands.
  Hello hello;
  bool begun = false;
  bool forming = false;  // Begun, and its group has not formed.
  bool trying = false;
  uint64_t newest_epoch = 0;
  int64_t begin_by_us = 0;
  int64_t retry_at_us = 0;
  int64_t last_heard_us = 0;

  // For the event that is being handled.
  int64_t now_us = 0;
  std::vector<LinkAction>* actions = nullptr;

  void Emit(LinkAction action) { actions->push_back(std::move(action)); }

  void On(const HelloArrived& event);
  void On(const PingHeard& event);
  void On(const WorkHeard& event);
  void On(const LinkGone& event);
  void On(const EpochTried& event);
  void On(const GroupFormed& event);
  void On(const StageFailed& event) { End(event.status); }
  void On(const LinkTick& event);

  absl::Status CheckStage0(const InstanceRef& claimant) const;
  void Try();
  void End(const absl::Status& status);
};

// A restarted stage 0 takes its link over: its former incarnation may not have timed out yet.
// Another process that claims its place, known to another router, does not while this one lives:
// each would break the other's chain again and again.
absl::Status Link::State::CheckStage0(const InstanceRef& claimant) const {
  if (link == 0 || claimant.id == hello.members[0].instance.id) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(place.LeaderName(), " of ", place.GroupName(), " ", place.chain_id, " is ",
                   hello.members[0].instance.id, ", which is alive; ", claimant.id,
                   " must have an id of its own"));
}

void Link::State::On(const HelloArrived& event) {
  const auto refuse = [&](uint64_t newest, const absl::Status& status) {
    Emit(RefuseLink{event.link, event.hello.epoch, newest, status});
  };
  if (event.link == link) return End(absl::FailedPreconditionError("a second hello"));
  if (absl::Status status = CheckStage0(event.hello.members[0].instance); !status.ok()) {
    Covered<"link: another stage 0 claims the chain">();
    return refuse(0, status);
  }
  if (event.hello.epoch <= newest_epoch) {
    Covered<"link: an epoch is not newer">();
    return refuse(newest_epoch, absl::FailedPreconditionError(
                                    absl::StrCat("epoch ", event.hello.epoch, " is not newer than ",
                                                 newest_epoch, ", the last one of this stage")));
  }
  End(absl::AbortedError(absl::StrCat("epoch ", event.hello.epoch, " replaces it")));
  link = event.link;
  hello = event.hello;
  newest_epoch = hello.epoch;
  last_heard_us = now_us;
  begin_by_us = now_us + times.begin_limit_us;
  Try();
}

void Link::State::Try() {
  trying = true;
  Emit(TryEpoch{hello});
}

void Link::State::On(const EpochTried& event) {
  BATON_CHECK(std::exchange(trying, false)) << "an epoch has begun unasked";
  if (event.status.ok()) {
    begun = true;
    forming = place.ranks() > 1;
    if (forming) return Emit(FormGroup{link, hello});
    Emit(SendReady{link, hello.epoch});
  } else if (now_us >= begin_by_us) {
    Covered<"link: an epoch never begins">();
    End(event.status);
  } else {
    Covered<"link: an epoch is tried again">();
    retry_at_us = now_us + times.begin_again_us;
  }
}

void Link::State::On(const GroupFormed& event) {
  if (!forming || event.epoch != hello.epoch) return;
  if (!event.status.ok()) {
    Covered<"link: a group does not form">();
    return End(event.status);
  }
  Covered<"link: a group has formed">();
  forming = false;
  Emit(SendReady{link, hello.epoch});
}

// What comes on a link that stands no more is of an epoch that is over.

void Link::State::On(const PingHeard& event) {
  if (event.link != link) return;
  last_heard_us = now_us;
  Emit(SendPong{link, event.sequence});
  if (begun) Emit(PassNextStageDone{hello.epoch, event.next_stage_done});
}

void Link::State::On(const WorkHeard& event) {
  if (event.link != link) return;
  last_heard_us = now_us;
  if (!begun || forming)
    return End(absl::FailedPreconditionError("a plan before the stage was ready"));
  if (!event.status.ok()) return End(event.status);
  if (event.epoch != hello.epoch) {
    return End(
        InvalidField("plan.epoch", absl::StrCat(event.epoch, ", this link's is ", hello.epoch)));
  }
  Emit(TakeWork{});
}

void Link::State::On(const LinkGone& event) {
  if (event.link == link)
    End(absl::CancelledError(absl::StrCat(place.LeaderName(), " has ended it")));
}

// Stage 0 pings; if it has stopped, its plans will not come and its requests are over.
void Link::State::On(const LinkTick&) {
  if (link == 0) return;
  if (now_us - last_heard_us >= times.silence_us) {
    Covered<"link: stage 0 is silent">();
    End(absl::UnavailableError(absl::StrCat("no sign of life from ", place.LeaderName(), " for ",
                                            times.silence_us / 1000, " ms")));
  } else if (!begun && now_us >= retry_at_us) {
    Try();
  }
}

void Link::State::End(const absl::Status& status) {
  forming = false;
  if (std::exchange(begun, false)) {
    Emit(DropEpoch{absl::CancelledError(absl::StrCat("the epoch is over: ", status.message()))});
  }
  if (link != 0) Emit(EndLink{std::exchange(link, 0), hello.epoch, status});
}

Link::Link(ChainPlace place, const ChainTimes& times)
    : state_(std::make_unique<State>(std::move(place), times)) {}
Link::~Link() = default;

void Link::Handle(const LinkEvent& event, int64_t now_us, std::vector<LinkAction>& actions) {
  state_->now_us = now_us;
  state_->actions = &actions;
  std::visit([this](const auto& e) { state_->On(e); }, event);
  state_->actions = nullptr;
}

int64_t Link::NextDeadlineUs() const {
  const State& state = *state_;
  if (state.link == 0) return kNeverUs;
  const int64_t silent_us = state.last_heard_us + state.times.silence_us;
  return state.begun ? silent_us : std::min(silent_us, state.retry_at_us);
}

uint64_t Link::standing() const { return state_->link; }

bool Link::begun() const { return state_->begun; }

const Hello& Link::hello() const { return state_->hello; }

}  // namespace baton::links
