#include "tests/sim/link_witness.h"

#include <algorithm>
#include <type_traits>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace baton::sim {
namespace {

std::string NameOf(const links::Hello& hello) {
  return absl::StrCat(
      hello.epoch, " of ", hello.max_plan_tokens, " tokens, ", hello.activation_credits,
      " credits and ",
      absl::StrJoin(hello.members, ",", [](std::string* text, const KvWriter& member) {
        absl::StrAppend(text, member.instance.id, "/", member.instance.incarnation, "[",
                        member.layers.begin, "-", member.layers.end, ").", member.tensor_rank.rank);
      }));
}

// What an action says, so that two can be compared. How a status is worded is the core's matter.
std::string Text(const links::LinkAction& action) {
  return std::visit(
      [](const auto& a) -> std::string {
        using T = std::decay_t<decltype(a)>;
        if constexpr (std::is_same_v<T, links::TryEpoch>) {
          return absl::StrCat("try ", NameOf(a.hello));
        } else if constexpr (std::is_same_v<T, links::FormGroup>) {
          return absl::StrCat("form a group over ", a.link, ": ", NameOf(a.hello));
        } else if constexpr (std::is_same_v<T, links::SendReady>) {
          return absl::StrCat("ready on ", a.link, " for ", a.epoch);
        } else if constexpr (std::is_same_v<T, links::SendPong>) {
          return absl::StrCat("pong on ", a.link, ": ", a.sequence);
        } else if constexpr (std::is_same_v<T, links::TakeWork>) {
          return "take work";
        } else if constexpr (std::is_same_v<T, links::PassNextStageDone>) {
          return absl::StrCat("the next stage has done ", a.number, " of ", a.epoch);
        } else if constexpr (std::is_same_v<T, links::DropEpoch>) {
          return absl::StrCat("drop the epoch: ", absl::StatusCodeToString(a.why.code()));
        } else if constexpr (std::is_same_v<T, links::RefuseLink>) {
          return absl::StrCat("refuse ", a.link, " of ", a.epoch, ", newest is ", a.newest_epoch,
                              ": ", absl::StatusCodeToString(a.status.code()));
        } else {
          return absl::StrCat("end ", a.link, " of ", a.epoch, ": ",
                              absl::StatusCodeToString(a.status.code()));
        }
      },
      action);
}

}  // namespace

LinkWitness::LinkWitness(World& world, links::ChainPlace place, const links::ChainTimes& times)
    : world_(world), place_(std::move(place)), times_(times) {}

void LinkWitness::Complain(const std::string& what) {
  world_.Violate(absl::StrCat("link of ", place_.self.instance.id, ": ", what));
}

void LinkWitness::Expect(const links::LinkAction& action) { expected_.push_back(Text(action)); }

void LinkWitness::Saw(const links::LinkEvent& event, const std::vector<links::LinkAction>& actions,
                      const links::Link& core) {
  expected_.clear();
  end_.reset();
  std::visit([this](const auto& e) { Hear(e); }, event);
  std::vector<std::string> done;
  done.reserve(actions.size());
  for (const links::LinkAction& action : actions) done.push_back(Text(action));
  if (done != expected_) {
    return Complain(absl::StrCat("does [", absl::StrJoin(done, "; "), "], expected [",
                                 absl::StrJoin(expected_, "; "), "]"));
  }
  for (const links::LinkAction& action : actions) {
    const auto* end = std::get_if<links::EndLink>(&action);
    if (end != nullptr && end_.has_value() && end->status != *end_) {
      Complain("ends for another reason than it was told: " + end->status.ToString());
    }
  }
  if (core.standing() != link_ || core.begun() != begun() || core.Stands(0) ||
      (link_ != 0 && (!core.Stands(link_) || core.hello().epoch != hello_.epoch))) {
    Complain("says of itself what is not so");
  }
  if (core.NextDeadlineUs() != DueUs()) Complain("wakes at another time than what is due");
}

int64_t LinkWitness::DueUs() const {
  if (phase_ == Phase::kNone) return kNeverUs;
  const int64_t silent_us = heard_us_ + times_.silence_us;
  return phase_ == Phase::kBeginning ? std::min(silent_us, try_us_) : silent_us;
}

void LinkWitness::End(absl::StatusCode code, const std::optional<absl::Status>& status) {
  if (link_ == 0) return;
  const absl::Status why(code, "");
  if (begun()) Expect(links::DropEpoch{absl::CancelledError()});
  Expect(links::EndLink{link_, hello_.epoch, why});
  end_ = status;
  link_ = 0;
  phase_ = Phase::kNone;
}

void LinkWitness::Refuse(const links::HelloArrived& event, uint64_t newest_epoch) {
  Expect(links::RefuseLink{event.link, event.hello.epoch, newest_epoch,
                           absl::FailedPreconditionError("")});
}

// ---- Events ----

// One link says hello once; a stage 0 gives way to its own next life alone; epochs grow.
void LinkWitness::Hear(const links::HelloArrived& event) {
  if (event.link == link_) return End(absl::StatusCode::kFailedPrecondition);
  const std::string& leader = event.hello.members.front().instance.id;
  if (link_ != 0 && leader != hello_.members.front().instance.id) return Refuse(event, 0);
  if (event.hello.epoch <= newest_epoch_) return Refuse(event, newest_epoch_);
  End(absl::StatusCode::kAborted);
  link_ = event.link;
  hello_ = event.hello;
  newest_epoch_ = hello_.epoch;
  phase_ = Phase::kBeginning;
  heard_us_ = world_.now_us();
  begin_by_us_ = world_.now_us() + times_.begin_limit_us;
  Expect(links::TryEpoch{hello_});
}

void LinkWitness::Hear(const links::EpochTried& event) {
  if (phase_ != Phase::kBeginning) return Complain("an epoch has begun unasked");
  if (event.status.ok()) {
    const bool alone = place_.self.tensor_rank.size == 1;
    phase_ = alone ? Phase::kReady : Phase::kForming;
    if (alone) return Expect(links::SendReady{link_, hello_.epoch});
    return Expect(links::FormGroup{link_, hello_});
  }
  if (world_.now_us() >= begin_by_us_) return End(event.status.code(), event.status);
  try_us_ = world_.now_us() + times_.begin_again_us;
}

void LinkWitness::Hear(const links::GroupFormed& event) {
  if (phase_ != Phase::kForming || event.epoch != hello_.epoch) return;
  if (!event.status.ok()) return End(event.status.code(), event.status);
  phase_ = Phase::kReady;
  Expect(links::SendReady{link_, hello_.epoch});
}

void LinkWitness::Hear(const links::PingHeard& event) {
  if (link_ == 0 || event.link != link_) return;
  heard_us_ = world_.now_us();
  Expect(links::SendPong{link_, event.sequence});
  if (begun()) Expect(links::PassNextStageDone{hello_.epoch, event.next_stage_done});
}

// What makes no sense, of which epoch it may be, ends the one that stands.
void LinkWitness::Hear(const links::WorkHeard& event) {
  if (link_ == 0 || event.link != link_) return;
  heard_us_ = world_.now_us();
  if (phase_ != Phase::kReady) return End(absl::StatusCode::kFailedPrecondition);
  if (!event.status.ok()) return End(event.status.code(), event.status);
  if (event.epoch != hello_.epoch) return End(absl::StatusCode::kInvalidArgument);
  Expect(links::TakeWork{});
}

void LinkWitness::Hear(const links::LinkGone& event) {
  if (event.link == link_) End(absl::StatusCode::kCancelled);
}

void LinkWitness::Hear(const links::LinkTick& /*event*/) {
  if (link_ == 0) return;
  if (world_.now_us() - heard_us_ >= times_.silence_us) {
    return End(absl::StatusCode::kUnavailable);
  }
  if (phase_ == Phase::kBeginning && world_.now_us() >= try_us_) Expect(links::TryEpoch{hello_});
}

}  // namespace baton::sim
