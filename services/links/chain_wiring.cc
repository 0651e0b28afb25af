#include "services/links/chain_wiring.h"

#include <chrono>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/base/stop_signal.h"
#include "services/links/core/group_rendezvous.h"
#include "services/links/messages.h"

namespace baton::links {
namespace {

constexpr auto kEndOfCalls = std::chrono::seconds(2);

uint64_t WallClockUs() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(
                                   std::chrono::system_clock::now().time_since_epoch())
                                   .count());
}

WiringOptions CoreOptions(const ChainWiring::Options& options) {
  return {options.place, options.page_count, options.max_plan_tokens, options.activation_credits};
}

}  // namespace

ChainWiring::ChainWiring(Options options, Callbacks callbacks)
    : options_(std::move(options)),
      callbacks_(std::move(callbacks)),
      wiring_(CoreOptions(options_)) {}

ChainWiring::~ChainWiring() {
  calls_.CancelAll();
  links_.clear();
  calls_.WaitIdle();
}

void ChainWiring::EndCalls() {
  calls_.CancelAll();
  if (!calls_.WaitIdle(kEndOfCalls)) {
    LOG(kWarning) << "links of " << Name() << " don't end";
  }
}

std::string ChainWiring::Name() const {
  return absl::StrCat(options_.place.GroupName(), " ", options_.place.chain_id);
}

void ChainWiring::Handle(const WiringEvent& event) {
  std::vector<WiringAction> actions;
  wiring_.Handle(event, NowUs(), actions);
  for (const WiringAction& action : actions) {
    std::visit([this](const auto& a) { Perform(a); }, action);
  }
}

int64_t ChainWiring::Wake(int64_t now_us) {
  channels_.Sweep();
  if (wiring_.NextDeadlineUs() <= now_us) events_.Raise(WiringTick{WallClockUs()});
  return wiring_.NextDeadlineUs();
}

// ---- What the wiring decides ----

void ChainWiring::Perform(const TryOwnEpoch& action) {
  events_.Raise(OwnEpochTried{callbacks_.begin_own(action.hello)});
}

void ChainWiring::Perform(const OpenLinks& action) {
  ChainPlace receiver = options_.place;
  for (const worker::PeerWorker& member : action.members) {
    receiver.stage = member.pp_rank;
    receiver.self.tensor_rank = member.tensor_rank;
    v1::LinkRequest request;
    *request.mutable_hello() = ToProto(action.hello, receiver, options_.page_count);
    links_.push_back(OpenLink(member, receiver.member()));
    links_.back()->Write(std::move(request));
  }
}

std::shared_ptr<LinkCall> ChainWiring::OpenLink(const worker::PeerWorker& worker, int member) {
  const uint64_t epoch = wiring_.epoch();
  LinkCall::Callbacks callbacks;
  callbacks.on_response = [this, loop = options_.loop, member,
                           epoch](const v1::LinkResponse& response) {
    return loop->Post([this, member, epoch, response] { OnResponse(member, epoch, response); });
  };
  callbacks.on_done = [this, loop = options_.loop, member, epoch](const absl::Status& status) {
    const absl::Status cause =
        status.ok() ? absl::UnavailableError("it has ended the link") : status;
    const bool posted = loop->PostCompletion([this, member, epoch, cause] {
      events_.Raise(StageLinkEnded{member, epoch, cause});
    });
    if (!posted) {
      LOG(kInfo) << "the link to member " << member << " of the chain has ended";
    }
  };
  const rpc::PeerRole role =
      worker.role == Role::kPrefill ? rpc::PeerRole::kPrefill : rpc::PeerRole::kDecode;
  return LinkCall::Open(
      worker.role,
      channels_.Open(worker.grpc_address, {.max_receive_bytes = -1,
                                           .security = options_.security,
                                           .peers = {{role, worker.instance.id}}}),
      calls_, std::move(callbacks));
}

void ChainWiring::Perform(const FormOwnGroup& action) {
  const uint64_t epoch = action.hello.epoch;
  GroupJoiner::Callbacks callbacks;
  callbacks.say = [this, epoch](const Rendezvous::Entry& entry) {
    events_.Raise(GroupEntryHeard{0, epoch, entry});
  };
  callbacks.connected = [this, epoch] { events_.Raise(GroupConnectedHeard{0, epoch}); };
  callbacks.formed = [this, epoch](const absl::Status& status) {
    events_.Raise(OwnGroupFormed{epoch, status});
  };
  events_.Raise(GroupJoinHeard{0, epoch});
  options_.joiner->Join(GroupOf(options_.place, action.hello), std::move(callbacks));
}

void ChainWiring::Perform(const TellGroup& action) {
  if (action.member == 0) return options_.joiner->OnMessage(action.message);
  v1::LinkRequest request;
  if (action.message.entry) *request.mutable_group_entry() = ToProto(*action.message.entry);
  if (action.message.verdict) {
    *request.mutable_group_verdict() = VerdictToProto(*action.message.verdict);
  }
  links_[static_cast<size_t>(action.member - 1)]->Write(std::move(request));
}

void ChainWiring::Perform(const PingStages& action) {
  for (size_t i = 0; i < links_.size(); ++i) {
    const int next_stage = options_.place.StageOf(static_cast<int>(i) + 1) + 1;
    v1::LinkRequest request;
    request.mutable_ping()->set_sequence(action.sequence);
    if (callbacks_.plans_done) {
      request.mutable_ping()->set_next_stage_done(callbacks_.plans_done(next_stage));
    }
    links_[i]->Write(std::move(request));
  }
}

void ChainWiring::Perform(const CloseLinks&) {
  for (const auto& link : links_) link->Cancel();
  links_.clear();
}

void ChainWiring::Perform(const ReportChainUp& action) {
  const int ranks = options_.place.ranks();
  const int stages = options_.place.stages;
  const bool staged = HasStages(options_.place.role, stages);
  LOG(kInfo) << Name() << " is up: " << (staged ? absl::StrCat(stages, " stages of ") : "") << ranks
             << (ranks == 1 ? " rank, " : " ranks, ") << action.page_count << " pages";
  callbacks_.on_up(action.epoch, action.page_count);
}

void ChainWiring::Perform(const PassReport& action) {
  const absl::Status status = callbacks_.on_report(action, *arriving_);
  if (!status.ok()) BreakAt(action.stage, action.rank, status);
}

void ChainWiring::Perform(const ReportChainDown& action) {
  if (!StopRequested()) {
    LOG(kWarning) << Name() << " breaks: " << action.status.message();
  }
  callbacks_.on_down(action.status);
}

// ---- What comes over the links ----

// What a message says; an error: it makes no sense.
absl::StatusOr<WiringEvent> ChainWiring::EventOf(int member, uint64_t epoch,
                                                 const v1::LinkResponse& response) {
  switch (response.message_case()) {
    case v1::LinkResponse::kReady:
      if (response.ready().epoch() != epoch) {
        return absl::FailedPreconditionError(
            absl::StrCat("ready for epoch ", response.ready().epoch()));
      }
      if (epoch == wiring_.epoch() && callbacks_.on_ready) {
        BATON_RETURN_IF_ERROR(callbacks_.on_ready(member, response.ready()));
      }
      return StageReady{member, epoch, response.ready().page_count()};
    case v1::LinkResponse::kRefused:
      return StageRefused{member, epoch, response.refused().newest_epoch()};
    case v1::LinkResponse::kPlanDone:
    case v1::LinkResponse::kRequestClosed:
    case v1::LinkResponse::kReport:
    case v1::LinkResponse::kCompiled:
      return ReportHeard{member, epoch};
    case v1::LinkResponse::kPong:
      return StageHeard{member, epoch};
    case v1::LinkResponse::kGroupJoin:
      if (response.group_join().epoch() != epoch) {
        return absl::FailedPreconditionError(
            absl::StrCat("joins a group of epoch ", response.group_join().epoch()));
      }
      return GroupJoinHeard{member, epoch};
    case v1::LinkResponse::kGroupEntry: {
      BATON_ASSIGN_OR_RETURN(Rendezvous::Entry entry, FromProto(response.group_entry()));
      return GroupEntryHeard{member, epoch, std::move(entry)};
    }
    case v1::LinkResponse::kGroupConnected:
      return GroupConnectedHeard{member, epoch};
    case v1::LinkResponse::MESSAGE_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("a message on the link that is empty");
}

void ChainWiring::OnResponse(int member, uint64_t epoch, const v1::LinkResponse& response) {
  absl::StatusOr<WiringEvent> event = EventOf(member, epoch, response);
  if (absl::Status status = Failpoint(options_.failpoint); !status.ok()) event = status;
  arriving_ = &response;
  if (event.ok()) {
    events_.Raise(*std::move(event));
  } else {
    events_.Raise(StageLinkEnded{member, epoch, event.status()});
  }
  arriving_ = nullptr;
}

void ChainWiring::Send(int member, v1::LinkRequest request) {
  if (!links_.empty()) links_[static_cast<size_t>(member - 1)]->Write(std::move(request));
}

}  // namespace baton::links
