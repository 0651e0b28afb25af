// ChainShell's links: opens and closes those that the wiring decides on, and brings to it what
// comes over them.
#include <algorithm>
#include <chrono>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/base/stop_signal.h"
#include "proto/baton/v1/decode_ranks.grpc.pb.h"
#include "proto/baton/v1/prefill.grpc.pb.h"
#include "services/links/core/group_rendezvous.h"
#include "services/links/messages.h"
#include "services/prefill/chain/chain_shell.h"

namespace baton::prefill {
namespace {

constexpr auto kEndOfCalls = std::chrono::seconds(2);

uint64_t WallClockUs() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(
                                   std::chrono::system_clock::now().time_since_epoch())
                                   .count());
}

}  // namespace

ChainShell::~ChainShell() {
  link_calls_.CancelAll();
  links_.clear();
  link_calls_.WaitIdle();
}

void ChainShell::EndCalls() {
  link_calls_.CancelAll();
  if (!link_calls_.WaitIdle(kEndOfCalls)) {
    LOG(kWarning) << "links of " << Name() << " don't end";
  }
}

std::string ChainShell::Name() const {
  return absl::StrCat(options_.place.GroupName(), " ", options_.place.chain_id);
}

void ChainShell::HandleWiring(const links::WiringEvent& event) {
  std::vector<links::WiringAction> actions;
  wiring_.Handle(event, NowUs(), actions);
  for (const links::WiringAction& action : actions) {
    std::visit([this](const auto& a) { Perform(a); }, action);
  }
}

int64_t ChainShell::WakeWiring(int64_t now_us) {
  channels_.Sweep();
  if (wiring_.NextDeadlineUs() <= now_us) wiring_events_.Raise(links::WiringTick{WallClockUs()});
  return wiring_.NextDeadlineUs();
}

// ---- What the wiring decides ----

void ChainShell::Perform(const links::TryOwnEpoch& action) {
  wiring_events_.Raise(links::OwnEpochTried{BeginOwn(action.hello)});
}

void ChainShell::Perform(const links::OpenLinks& action) {
  links::ChainPlace receiver = options_.place;
  for (const worker::PeerWorker& member : action.members) {
    receiver.stage = member.pp_rank;
    receiver.self.tensor_rank = member.tensor_rank;
    v1::LinkRequest request;
    *request.mutable_hello() = links::ToProto(action.hello, receiver, options_.page_count);
    links_.push_back(OpenLink(member, receiver.member()));
    links_.back()->Write(std::move(request));
  }
}

std::shared_ptr<ChainShell::LinkCall> ChainShell::OpenLink(const worker::PeerWorker& worker,
                                                           int member) {
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
      wiring_events_.Raise(links::StageLinkEnded{member, epoch, cause});
    });
    if (!posted) {
      LOG(kInfo) << "the link to member " << member << " of the chain has ended";
    }
  };
  const bool prefill = worker.role == Role::kPrefill;
  const rpc::PeerRole role = prefill ? rpc::PeerRole::kPrefill : rpc::PeerRole::kDecode;
  const auto channel = channels_.Open(worker.grpc_address, {.max_receive_bytes = -1,
                                                            .security = options_.security,
                                                            .peers = {{role, worker.instance.id}}});
  LinkCall::Start start;
  const auto link_by = [&start](auto stub) {
    start = [stub](grpc::ClientContext* context, LinkCall::Reactor* reactor) {
      stub->async()->Link(context, reactor);
    };
  };
  if (prefill) {
    link_by(std::make_shared<v1::Prefill::Stub>(channel));
  } else {
    link_by(std::make_shared<v1::DecodeRanks::Stub>(channel));
  }
  return LinkCall::Open(std::move(start), link_calls_, std::move(callbacks));
}

void ChainShell::Perform(const links::FormOwnGroup& action) {
  const uint64_t epoch = action.hello.epoch;
  links::GroupJoiner::Callbacks callbacks;
  callbacks.say = [this, epoch](const Rendezvous::Entry& entry) {
    wiring_events_.Raise(links::GroupEntryHeard{0, epoch, entry});
  };
  callbacks.connected = [this, epoch] {
    wiring_events_.Raise(links::GroupConnectedHeard{0, epoch});
  };
  callbacks.formed = [this, epoch](const absl::Status& status) {
    wiring_events_.Raise(links::OwnGroupFormed{epoch, status});
  };
  wiring_events_.Raise(links::GroupJoinHeard{0, epoch});
  options_.joiner->Join(links::GroupOf(options_.place, action.hello), std::move(callbacks));
}

void ChainShell::Perform(const links::TellGroup& action) {
  if (action.member == 0) return options_.joiner->OnMessage(action.message);
  v1::LinkRequest request;
  if (action.message.entry) *request.mutable_group_entry() = links::ToProto(*action.message.entry);
  if (action.message.verdict) {
    *request.mutable_group_verdict() = links::VerdictToProto(*action.message.verdict);
  }
  links_[static_cast<size_t>(action.member - 1)]->Write(std::move(request));
}

void ChainShell::Perform(const links::PingStages& action) {
  for (size_t i = 0; i < links_.size(); ++i) {
    const int next_stage = options_.place.StageOf(static_cast<int>(i) + 1) + 1;
    v1::LinkRequest request;
    request.mutable_ping()->set_sequence(action.sequence);
    request.mutable_ping()->set_next_stage_done(planner_.plans_done(next_stage));
    links_[i]->Write(std::move(request));
  }
}

void ChainShell::Perform(const links::CloseLinks&) {
  for (const auto& link : links_) link->Cancel();
  links_.clear();
}

void ChainShell::Perform(const links::ReportChainUp& action) {
  const int ranks = options_.place.ranks();
  const int stages = options_.place.stages;
  const bool staged = links::HasStages(options_.place.role, stages);
  LOG(kInfo) << Name() << " is up: " << (staged ? absl::StrCat(stages, " stages of ") : "") << ranks
             << (ranks == 1 ? " rank, " : " ranks, ") << action.page_count << " pages";
  measured_[0] = options_.measured();
  Handle(UpOf(action.epoch, action.page_count));
}

void ChainShell::Perform(const links::PassReport& action) {
  const absl::Status status = OnReport(action, *arriving_);
  if (!status.ok()) BreakAt(action.stage, action.rank, status);
}

void ChainShell::Perform(const links::ReportChainDown& action) {
  if (!StopRequested()) {
    LOG(kWarning) << Name() << " breaks: " << action.status.message();
  }
  options_.stage->EndEpoch(action.status);
  Handle(ChainDown{action.status});
  BeginCompiled(kNeverUs);  // No answers come; they are refused, as all requests now.
}

void ChainShell::Perform(const links::TellOwnStage& action) {
  options_.stage->Handle(NextStageDone{action.epoch, planner_.plans_done(1)});
}

void ChainShell::BreakAt(int stage, int rank, const absl::Status& reason) {
  const int member = stage * options_.place.ranks() + rank;
  wiring_events_.Raise(links::StageLinkEnded{member, wiring_.epoch(), reason});
}

// ---- What comes over the links ----

// What a member says of itself, which may make no sense.
absl::Status ChainShell::OnReady(int member, const v1::LinkReady& ready) {
  newest_generation_ = std::max(newest_generation_, ready.newest_generation());
  if (!ready.has_measured_cost()) return absl::OkStatus();
  BATON_ASSIGN_OR_RETURN(const KnownCost cost, FromProto(ready.measured_cost()));
  measured_.at(static_cast<size_t>(options_.place.StageOf(member))) = cost;
  return absl::OkStatus();
}

// What a message says; an error: it makes no sense.
absl::StatusOr<links::WiringEvent> ChainShell::EventOf(int member, uint64_t epoch,
                                                       const v1::LinkResponse& response) {
  switch (response.message_case()) {
    case v1::LinkResponse::kReady:
      if (response.ready().epoch() != epoch) {
        return absl::FailedPreconditionError(
            absl::StrCat("ready for epoch ", response.ready().epoch()));
      }
      if (epoch == wiring_.epoch()) {
        BATON_RETURN_IF_ERROR(OnReady(member, response.ready()));
      }
      return links::StageReady{member, epoch, response.ready().page_count()};
    case v1::LinkResponse::kRefused:
      return links::StageRefused{member, epoch, response.refused().newest_epoch()};
    case v1::LinkResponse::kPlanDone:
    case v1::LinkResponse::kRequestClosed:
    case v1::LinkResponse::kReport:
    case v1::LinkResponse::kCompiled:
      return links::ReportHeard{member, epoch};
    case v1::LinkResponse::kPong:
      return links::StageHeard{member, epoch};
    case v1::LinkResponse::kGroupJoin:
      if (response.group_join().epoch() != epoch) {
        return absl::FailedPreconditionError(
            absl::StrCat("joins a group of epoch ", response.group_join().epoch()));
      }
      return links::GroupJoinHeard{member, epoch};
    case v1::LinkResponse::kGroupEntry: {
      BATON_ASSIGN_OR_RETURN(Rendezvous::Entry entry, links::FromProto(response.group_entry()));
      return links::GroupEntryHeard{member, epoch, std::move(entry)};
    }
    case v1::LinkResponse::kGroupConnected:
      return links::GroupConnectedHeard{member, epoch};
    case v1::LinkResponse::MESSAGE_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("a message on the link that is empty");
}

void ChainShell::OnResponse(int member, uint64_t epoch, const v1::LinkResponse& response) {
  absl::StatusOr<links::WiringEvent> event = EventOf(member, epoch, response);
  if (absl::Status status = Failpoint(options_.failpoint); !status.ok()) event = status;
  arriving_ = &response;
  if (event.ok()) {
    wiring_events_.Raise(*std::move(event));
  } else {
    wiring_events_.Raise(links::StageLinkEnded{member, epoch, event.status()});
  }
  arriving_ = nullptr;
}

void ChainShell::Send(int member, v1::LinkRequest request) {
  if (!links_.empty()) links_[static_cast<size_t>(member - 1)]->Write(std::move(request));
}

}  // namespace baton::prefill
