#include "services/links/core/link.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/coverage.h"
#include "common/base/status.h"

namespace baton::links {

// A restarted stage 0 takes its link over: its former incarnation may not have timed out yet.
// Another process that claims its place, known to another router, does not while this one lives:
// each would break the other's chain again and again.
absl::Status Link::CheckStage0(const InstanceRef& claimant) const {
  if (link_ == 0 || claimant.id == hello_.members[0].instance.id) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(place_.LeaderName(), " of ", place_.GroupName(), " ", place_.chain_id, " is ",
                   hello_.members[0].instance.id, ", which is alive; ", claimant.id,
                   " must have an id of its own"));
}

void Link::On(const HelloArrived& event) {
  const auto refuse = [&](uint64_t newest, const absl::Status& status) {
    Emit(RefuseLink{event.link, event.hello.epoch, newest, status});
  };
  if (event.link == link_) return End(absl::FailedPreconditionError("a second hello"));
  if (absl::Status status = CheckStage0(event.hello.members[0].instance); !status.ok()) {
    Covered<"link: another stage 0 claims the chain">();
    return refuse(0, status);
  }
  if (event.hello.epoch <= newest_epoch_) {
    Covered<"link: an epoch is not newer">();
    return refuse(newest_epoch_, absl::FailedPreconditionError(absl::StrCat(
                                     "epoch ", event.hello.epoch, " is not newer than ",
                                     newest_epoch_, ", the last one of this stage")));
  }
  End(absl::AbortedError(absl::StrCat("epoch ", event.hello.epoch, " replaces it")));
  link_ = event.link;
  hello_ = event.hello;
  newest_epoch_ = hello_.epoch;
  last_heard_us_ = now_us_;
  begin_by_us_ = now_us_ + times_.begin_limit_us;
  Try();
}

void Link::Try() {
  trying_ = true;
  Emit(TryEpoch{hello_});
}

void Link::On(const EpochTried& event) {
  BATON_CHECK(std::exchange(trying_, false)) << "an epoch has begun unasked";
  if (event.status.ok()) {
    begun_ = true;
    forming_ = place_.ranks() > 1;
    if (forming_) return Emit(FormGroup{link_, hello_});
    Emit(SendReady{link_, hello_.epoch});
  } else if (now_us_ >= begin_by_us_) {
    Covered<"link: an epoch never begins">();
    End(event.status);
  } else {
    Covered<"link: an epoch is tried again">();
    retry_at_us_ = now_us_ + times_.begin_again_us;
  }
}

void Link::On(const GroupFormed& event) {
  if (!forming_ || event.epoch != hello_.epoch) return;
  if (!event.status.ok()) {
    Covered<"link: a group does not form">();
    return End(event.status);
  }
  Covered<"link: a group has formed">();
  forming_ = false;
  Emit(SendReady{link_, hello_.epoch});
}

// What comes on a link that stands no more is of an epoch that is over.

void Link::On(const PingHeard& event) {
  if (event.link != link_) return;
  last_heard_us_ = now_us_;
  Emit(SendPong{link_, event.sequence});
  if (begun_) Emit(PassNextStageDone{hello_.epoch, event.next_stage_done});
}

void Link::On(const WorkHeard& event) {
  if (event.link != link_) return;
  last_heard_us_ = now_us_;
  if (!begun_ || forming_)
    return End(absl::FailedPreconditionError("a plan before the stage was ready"));
  if (!event.status.ok()) return End(event.status);
  if (event.epoch != hello_.epoch) {
    return End(
        InvalidField("plan.epoch", absl::StrCat(event.epoch, ", this link's is ", hello_.epoch)));
  }
  Emit(TakeWork{});
}

void Link::On(const LinkGone& event) {
  if (event.link == link_)
    End(absl::CancelledError(absl::StrCat(place_.LeaderName(), " has ended it")));
}

// Stage 0 pings; if it has stopped, its plans will not come and its requests are over.
void Link::On(const LinkTick&) {
  if (link_ == 0) return;
  if (now_us_ - last_heard_us_ >= times_.silence_us) {
    Covered<"link: stage 0 is silent">();
    End(absl::UnavailableError(absl::StrCat("no sign of life from ", place_.LeaderName(), " for ",
                                            times_.silence_us / 1000, " ms")));
  } else if (!begun_ && now_us_ >= retry_at_us_) {
    Try();
  }
}

void Link::End(const absl::Status& status) {
  forming_ = false;
  if (std::exchange(begun_, false)) {
    Emit(DropEpoch{absl::CancelledError(absl::StrCat("the epoch is over: ", status.message()))});
  }
  if (link_ != 0) Emit(EndLink{std::exchange(link_, 0), hello_.epoch, status});
}

void Link::Handle(const LinkEvent& event, int64_t now_us, std::vector<LinkAction>& actions) {
  now_us_ = now_us;
  actions_ = &actions;
  std::visit([this](const auto& e) { On(e); }, event);
  actions_ = nullptr;
}

int64_t Link::NextDeadlineUs() const {
  if (link_ == 0) return kNeverUs;
  const int64_t silent_us = last_heard_us_ + times_.silence_us;
  return begun_ ? silent_us : std::min(silent_us, retry_at_us_);
}

}  // namespace baton::links
