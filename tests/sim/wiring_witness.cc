#include "tests/sim/wiring_witness.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"

namespace baton::sim {

WiringWitness::WiringWitness(World& world, links::WiringOptions options)
    : world_(world),
      options_(std::move(options)),
      times_(options_.times),
      heard_us_(static_cast<size_t>(options_.place.members())) {}

void WiringWitness::Complain(const std::string& what) {
  world_.Violate(absl::StrCat("wiring of ", options_.place.self.instance.id, ": ", what));
}

void WiringWitness::Saw(const links::WiringEvent& event,
                        const std::vector<links::WiringAction>& actions,
                        const links::Wiring& core) {
  const Phase before = phase_;
  const bool over = TimeIsOver();
  pings_ = 0;
  tries_ = broken_ = false;
  epoch_ = core.epoch();
  if (!std::holds_alternative<links::ViewSeen>(event) &&
      !std::holds_alternative<links::StageRefused>(event)) {
    std::visit([this](const auto& e) { Hear(e); }, event);
  }
  for (const links::WiringAction& action : actions) {
    std::visit([this](const auto& a) { See(a); }, action);
  }
  // What these say of the next try counts more than the break that they cause.
  if (const auto* view = std::get_if<links::ViewSeen>(&event)) Hear(*view);
  if (const auto* refused = std::get_if<links::StageRefused>(&event)) Hear(*refused);
  if (std::holds_alternative<links::WiringTick>(event)) {
    CheckTick(before, over);
  } else if (pings_ > 0 || tries_) {
    Complain("pings, or tries to wire, though no time has passed");
  }
  CheckSleep(core);
}

// ---- What it hears ----

void WiringWitness::Lives(int member, uint64_t epoch) {
  if (wired() && epoch == epoch_) heard_us_[static_cast<size_t>(member)] = world_.now_us();
}

void WiringWitness::Hear(const links::OwnEpochTried& event) {
  if (!event.status.ok()) {
    phase_ = Phase::kDown;
    retry_us_ = world_.now_us() + times_.first_backoff_us;
    return;
  }
  phase_ = Phase::kLinking;
  since_us_ = world_.now_us();
  ping_us_ = world_.now_us() + times_.ping_us;
  tried_ = members_;
}

void WiringWitness::Hear(const links::StageRefused& event) {
  // A stage that knows a newer epoch has told how to go on.
  if (broken_ && event.newest_epoch >= epoch_ && event.newest_epoch < links::kMaxEpoch) {
    retry_us_ = world_.now_us();
  }
}

WiringWitness::Members WiringWitness::Find(const std::vector<worker::PeerWorker>& view) const {
  const links::ChainPlace& place = options_.place;
  Members found;
  for (int member = 1; member < place.members(); ++member) {
    const auto worker = std::find_if(view.begin(), view.end(), [&](const auto& candidate) {
      return candidate.role == place.role && candidate.group_id() == place.chain_id &&
             candidate.tensor_rank.rank == place.RankOf(member) &&
             (place.role == Role::kDecode || candidate.pp_rank == place.StageOf(member));
    });
    if (worker == view.end()) return {};
    found.push_back(worker->instance);
  }
  return found;
}

void WiringWitness::Hear(const links::ViewSeen& event) {
  Members found = Find(event.workers);
  if (found == members_) return;
  if (wired()) Complain("goes on though a member has left, or another one has come");
  if (!found.empty() && found != tried_) {
    backoff_us_ = 0;
    retry_us_ = world_.now_us();
  }
  members_ = std::move(found);
}

// ---- What it does ----

void WiringWitness::See(const links::TryOwnEpoch& /*action*/) {
  tries_ = true;
  if (phase_ != Phase::kDown || !whole()) Complain("tries to wire what it can't");
  phase_ = Phase::kTrying;
}

void WiringWitness::See(const links::ReportChainUp& /*action*/) {
  if (phase_ != Phase::kLinking) Complain("is up and was not linking");
  phase_ = Phase::kUp;
  since_us_ = world_.now_us();
  worked_ = false;
  std::fill(heard_us_.begin(), heard_us_.end(), world_.now_us());
}

void WiringWitness::See(const links::PassReport& action) {
  if (action.stage + 1 == options_.place.stages) worked_ = true;
}

void WiringWitness::See(const links::ReportChainDown& /*action*/) {
  broken_ = true;
  const bool stable =
      phase_ == Phase::kUp && (worked_ || world_.now_us() - since_us_ >= times_.stable_us);
  backoff_us_ = stable || backoff_us_ == 0 ? times_.first_backoff_us
                                           : std::min(times_.longest_backoff_us, backoff_us_ * 2);
  retry_us_ = world_.now_us() + backoff_us_;
  if (phase_ != Phase::kStopped) phase_ = Phase::kDown;
}

// ---- Time ----

bool WiringWitness::TimeIsOver() const {
  const int64_t now_us = world_.now_us();
  if (phase_ == Phase::kLinking) return now_us - since_us_ >= times_.linking_limit_us;
  return phase_ == Phase::kUp &&
         std::any_of(heard_us_.begin() + 1, heard_us_.end(),
                     [&](int64_t us) { return now_us - us >= times_.silence_us; });
}

void WiringWitness::CheckTick(Phase before, bool over) {
  const int64_t now_us = world_.now_us();
  if (before == Phase::kDown) {
    const bool due = whole() && now_us >= retry_us_;
    if (tries_ != due) Complain(due ? "does not wire what is whole" : "wires again too early");
  }
  const bool was_wired = before == Phase::kLinking || before == Phase::kUp;
  if (was_wired && broken_ != over) {
    Complain(over ? "goes on with a stage that is silent, or not ready in time"
                  : "breaks for a time that is not over");
  }
  const bool ping = was_wired && !broken_ && options_.place.members() > 1 && now_us >= ping_us_;
  if (pings_ != (ping ? 1 : 0)) Complain(ping ? "does not ping" : "pings too early");
  if (ping) ping_us_ = now_us + times_.ping_us;
}

void WiringWitness::CheckSleep(const links::Wiring& core) {
  int64_t due_us = kNeverUs;
  if (phase_ == Phase::kDown && whole()) due_us = retry_us_;
  if (wired() && options_.place.members() > 1) due_us = ping_us_;
  if (phase_ == Phase::kLinking) due_us = std::min(due_us, since_us_ + times_.linking_limit_us);
  if (core.NextDeadlineUs() > due_us) Complain("sleeps beyond what is due");
}

}  // namespace baton::sim
