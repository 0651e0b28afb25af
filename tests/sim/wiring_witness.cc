#include "tests/sim/wiring_witness.h"

#include <algorithm>
#include <type_traits>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/types/instance.h"
#include "tests/sim/link_intruders.h"

namespace baton::sim {
namespace {

std::string NameOf(const KvWriter& member) {
  return absl::StrCat(member.instance.id, "/", member.instance.incarnation, "[",
                      member.layers.begin, "-", member.layers.end, ").", member.tensor_rank.rank,
                      "/", member.tensor_rank.size);
}

std::string NameOf(const links::Hello& hello) {
  return absl::StrCat(hello.epoch, " of ", hello.max_plan_tokens, " tokens, ",
                      hello.activation_credits, " credits and ",
                      absl::StrJoin(hello.members, ",", [](std::string* text, const KvWriter& w) {
                        absl::StrAppend(text, NameOf(w));
                      }));
}

// What an action says, so that two can be compared; "": it is looked at by itself. How a status is
// worded is the core's matter.
std::string Text(const links::WiringAction& action) {
  return std::visit(
      [](const auto& a) -> std::string {
        using T = std::decay_t<decltype(a)>;
        if constexpr (std::is_same_v<T, links::OpenLinks>) {
          return absl::StrCat(
              "link ", NameOf(a.hello), " to ",
              absl::StrJoin(a.members, ",", [](std::string* text, const worker::PeerWorker& peer) {
                absl::StrAppend(text, peer.instance.id, " at ", peer.grpc_address);
              }));
        } else if constexpr (std::is_same_v<T, links::FormOwnGroup>) {
          return absl::StrCat("form a group: ", NameOf(a.hello));
        } else if constexpr (std::is_same_v<T, links::CloseLinks>) {
          return "close the links";
        } else if constexpr (std::is_same_v<T, links::ReportChainUp>) {
          return absl::StrCat("up in ", a.epoch, " with ", a.page_count, " pages");
        } else if constexpr (std::is_same_v<T, links::ReportChainDown>) {
          return absl::StrCat("down: ", absl::StatusCodeToString(a.status.code()));
        } else if constexpr (std::is_same_v<T, links::PassReport>) {
          return absl::StrCat("pass a report of ", a.stage, ".", a.rank, " in ", a.epoch);
        } else if constexpr (std::is_same_v<T, links::TellOwnStage>) {
          return absl::StrCat("tell the own stage of ", a.epoch);
        } else {
          return "";
        }
      },
      action);
}

}  // namespace

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
  expected_.clear();
  to_blame_.clear();
  std::visit([this](const auto& e) { Hear(e); }, event);
  for (const links::WiringAction& action : actions) {
    std::visit([this](const auto& a) { See(a); }, action);
  }
  std::visit([this](const auto& e) { HearAfter(e); }, event);
  CheckDone(actions);
  if (std::holds_alternative<links::WiringTick>(event)) {
    CheckTick(before, over);
  } else if (pings_ > 0 || tries_) {
    Complain("pings, or tries to wire, though no time has passed");
  }
  CheckSleep(core);
  if (core.epoch() != epoch_ || core.up() != (phase_ == Phase::kUp)) {
    Complain("says of itself what is not so");
  }
}

void WiringWitness::CheckDone(const std::vector<links::WiringAction>& actions) {
  std::vector<std::string> done;
  for (const links::WiringAction& action : actions) {
    std::string text = Text(action);
    if (!text.empty()) done.push_back(std::move(text));
    const auto* down = std::get_if<links::ReportChainDown>(&action);
    if (down == nullptr || to_blame_.empty()) continue;
    const std::string blamed = InstanceOf(down->status).value_or("");
    if (to_blame_.contains(blamed) && LegOf(down->status) == RoleName(options_.place.role)) {
      continue;
    }
    Complain(absl::StrCat("blames '", blamed, "', not ", absl::StrJoin(to_blame_, " or ")));
  }
  if (done == expected_) return;
  Complain(absl::StrCat("does [", absl::StrJoin(done, "; "), "], expected [",
                        absl::StrJoin(expected_, "; "), "]"));
}

// ---- Actions due after events ----

const std::string& WiringWitness::NameOf(int member) const {
  return tried_[static_cast<size_t>(member - 1)].instance.id;
}

void WiringWitness::Lives(int member, uint64_t epoch) {
  if (Counts(epoch)) heard_us_[static_cast<size_t>(member)] = world_.now_us();
}

// Whatever it was, the chain's requests can be sent again.
void WiringWitness::MustBreak(const std::set<std::string>& to_blame) {
  expected_.push_back(Text(links::CloseLinks{}));
  expected_.push_back(Text(links::ReportChainDown{absl::UnavailableError("")}));
  to_blame_ = to_blame;
}

void WiringWitness::MustBeUpIfReady() {
  if (phase_ != Phase::kLinking || static_cast<int>(ready_.size()) < options_.place.members()) {
    return;
  }
  expected_.push_back(Text(links::ReportChainUp{epoch_, pages_}));
}

void WiringWitness::Hear(const links::OwnEpochTried& event) {
  const std::optional<links::Hello> hello = std::exchange(trying_, std::nullopt);
  if (!hello.has_value()) return Complain("has begun an epoch unasked");
  if (!event.status.ok()) {
    phase_ = Phase::kDown;
    retry_us_ = world_.now_us() + times_.first_backoff_us;
    return;
  }
  phase_ = Phase::kLinking;
  epoch_ = hello->epoch;
  since_us_ = world_.now_us();
  ping_us_ = world_.now_us() + times_.ping_us;
  tried_ = members_;
  ready_.clear();
  pages_ = options_.page_count;
  const bool alone = options_.place.ranks() == 1;
  if (alone) ready_.insert(0);
  if (!members_.empty()) expected_.push_back(Text(links::OpenLinks{*hello, members_}));
  if (!alone) expected_.push_back(Text(links::FormOwnGroup{*hello}));
  MustBeUpIfReady();
}

void WiringWitness::Hear(const links::OwnGroupFormed& event) {
  if (!Counts(event.epoch) || ready_.contains(0)) return;
  const std::string& self = options_.place.self.instance.id;
  if (!event.status.ok()) return MustBreak({InstanceOf(event.status).value_or(self)});
  ready_.insert(0);
  MustBeUpIfReady();
}

void WiringWitness::Hear(const links::StageReady& event) {
  Lives(event.member, event.epoch);
  if (!Counts(event.epoch)) return;
  if (event.page_count < 1 || !ready_.insert(event.member).second) {
    return MustBreak({NameOf(event.member)});
  }
  pages_ = std::min(pages_, event.page_count);
  MustBeUpIfReady();
}

void WiringWitness::Hear(const links::StageRefused& event) {
  if (Counts(event.epoch)) MustBreak({NameOf(event.member)});
}

// A stage that knows a newer epoch has told how to go on.
void WiringWitness::HearAfter(const links::StageRefused& event) {
  if (!broken_ || event.newest_epoch < epoch_ || event.newest_epoch >= links::kMaxEpoch) return;
  elsewhere_ = event.newest_epoch;
  retry_us_ = world_.now_us();
}

// Stage 0 needs to know of the next one how far it is, as all others do.
void WiringWitness::Hear(const links::ReportHeard& event) {
  Lives(event.member, event.epoch);
  if (!Counts(event.epoch)) return;
  if (phase_ != Phase::kUp) return MustBreak({NameOf(event.member)});
  const int stage = event.member / options_.place.ranks();
  const int rank = event.member % options_.place.ranks();
  expected_.push_back(Text(links::PassReport{stage, rank, event.epoch}));
  if (stage == 1) expected_.push_back(Text(links::TellOwnStage{event.epoch}));
}

void WiringWitness::Hear(const links::StageLinkEnded& event) {
  if (!Counts(event.epoch)) return;
  MustBreak({InstanceOf(event.status).value_or(NameOf(event.member))});
}

void WiringWitness::Hear(const links::ChainFailed& event) {
  if (!wired()) return;
  MustBreak({InstanceOf(event.status).value_or(options_.place.self.instance.id)});
}

void WiringWitness::Hear(const links::WiringStopped& /*event*/) {
  if (wired()) MustBreak({});
}

void WiringWitness::Hear(const links::WiringTick& event) {
  clock_us_ = event.wall_clock_us;
  if (TimeIsOver()) MustEndWhoIsLate();
}

void WiringWitness::MustEndWhoIsLate() {
  std::set<std::string> late;
  for (int member = 1; member < options_.place.members(); ++member) {
    const int64_t heard_us = heard_us_[static_cast<size_t>(member)];
    const bool silent = world_.now_us() - heard_us >= times_.silence_us;
    if (phase_ == Phase::kUp ? silent : !ready_.contains(member)) late.insert(NameOf(member));
  }
  if (phase_ == Phase::kLinking && !ready_.contains(0)) late = {options_.place.self.instance.id};
  MustBreak(late);
}

// If two claim one place, the first counts; impostors have none.
WiringWitness::Members WiringWitness::Find(const std::vector<worker::PeerWorker>& view) const {
  const links::ChainPlace& place = options_.place;
  Members found;
  for (int member = 1; member < place.members(); ++member) {
    const auto worker = std::find_if(view.begin(), view.end(), [&](const auto& candidate) {
      return candidate.instance.id != kImpostor && candidate.role == place.role &&
             candidate.group_id() == place.chain_id &&
             candidate.tensor_rank.rank == place.RankOf(member) &&
             candidate.pp_rank == place.StageOf(member);
    });
    if (worker == view.end()) return {};
    found.push_back(*worker);
  }
  return found;
}

// Who is not listed may live all the same; another one in a place ends the epoch.
void WiringWitness::Hear(const links::MembersSeen& event) {
  const Members found = Find(event.members);
  if (!wired() || found.empty() || found == members_ || found == tried_) return;
  std::set<std::string> gone;
  for (const worker::PeerWorker& member : tried_) {
    if (std::find(found.begin(), found.end(), member) == found.end())
      gone.insert(member.instance.id);
  }
  MustBreak(gone);
}

void WiringWitness::HearAfter(const links::MembersSeen& event) {
  Members found = Find(event.members);
  if (found == members_) return;
  members_ = std::move(found);
  if (members_.empty() || members_ == tried_ || wired()) return;
  backoff_us_ = 0;
  retry_us_ = world_.now_us();
}

// ---- What it does ----

// The epoch is newer than all that is known of, and every member is told the same.
void WiringWitness::See(const links::TryOwnEpoch& action) {
  tries_ = true;
  if (phase_ != Phase::kDown || !whole()) Complain("tries to wire what it can't");
  phase_ = Phase::kTrying;
  links::Hello hello;
  hello.epoch = std::max({epoch_ + 1, elsewhere_ + 1, clock_us_});
  hello.max_plan_tokens = options_.max_plan_tokens;
  hello.activation_credits = options_.activation_credits;
  hello.members.push_back(options_.place.self);
  for (const worker::PeerWorker& member : members_) {
    hello.members.push_back({member.instance, member.layers, member.tensor_rank});
  }
  if (sim::NameOf(action.hello) != sim::NameOf(hello)) {
    Complain(absl::StrCat("begins ", sim::NameOf(action.hello), ", not ", sim::NameOf(hello)));
  }
  trying_ = std::move(hello);
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

void WiringWitness::See(const links::PingStages& action) {
  ++pings_;
  if (action.sequence != ++pings_sent_) Complain("counts its pings wrongly");
}

void WiringWitness::See(const links::ReportChainDown& /*action*/) {
  broken_ = true;
  const bool stable =
      phase_ == Phase::kUp && (worked_ || world_.now_us() - since_us_ >= times_.stable_us);
  backoff_us_ = stable || backoff_us_ == 0 ? times_.first_backoff_us
                                           : std::min(times_.longest_backoff_us, backoff_us_ * 2);
  retry_us_ = world_.now_us() + backoff_us_;
  phase_ = Phase::kDown;
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
