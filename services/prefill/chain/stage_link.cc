#include "services/prefill/chain/stage_link.h"

#include <algorithm>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "services/links/core/group_rendezvous.h"
#include "services/links/messages.h"

namespace baton::prefill {
namespace {

constexpr size_t kMostStructures = 256;
constexpr int64_t kLookAgainUs = 2'000;

}  // namespace

absl::Status BeginEpoch(const links::Hello& hello, const MemberGrants* grants,
                        const worker::Peers& peers, StageShell& stage) {
  if (grants != nullptr && !grants->AtRest()) {
    return absl::UnavailableError("pages of the last epoch are still in use");
  }
  return stage.TryEpoch(hello, [&peers](const InstanceRef& peer) {
    const std::optional<PeerId> endpoint = peers.Find(peer);
    if (!endpoint.has_value()) (void)peers.Want({peer});  // For the next try.
    return endpoint;
  });
}

StageLink::StageLink(const Options& options) : options_(options), link_(options.place) {
  StageShell::Reports reports;
  reports.plan_done = [this](uint64_t epoch, const PlanDone& done) {
    v1::LinkResponse response;
    *response.mutable_plan_done() = ToProto(done);
    Report(epoch, std::move(response));
  };
  reports.request_closed = [this](uint64_t epoch, const RequestClosed& closed) {
    v1::LinkResponse response;
    *response.mutable_request_closed() = ToProto(closed);
    Report(epoch, std::move(response));
  };
  reports.end_epoch = [this](const absl::Status& status) { Fail(status); };
  options_.stage->SetReports(std::move(reports));
}

void StageLink::Report(uint64_t epoch, v1::LinkResponse response) {
  const auto standing = streams_.find(link_.standing());
  if (standing != streams_.end() && epoch == link_.hello().epoch) {
    standing->second->Write(std::move(response));
  }
}

void StageLink::Handle(const links::LinkEvent& event) {
  std::vector<links::LinkAction> actions;
  link_.Handle(event, NowUs(), actions);
  for (const links::LinkAction& action : actions) {
    std::visit([this](const auto& a) { Perform(a); }, action);
  }
}

int64_t StageLink::Wake(int64_t now_us) {
  const int64_t compiled_us = TellCompiled(now_us);
  if (link_.NextDeadlineUs() <= now_us) events_.Raise(links::LinkTick{});
  return std::min(compiled_us, link_.NextDeadlineUs());
}

// ---- What the link decides ----

void StageLink::Perform(const links::TryEpoch& action) {
  events_.Raise(links::EpochTried{
      BeginEpoch(action.hello, options_.grants, *options_.peers, *options_.stage)});
}

void StageLink::Perform(const links::FormGroup& action) {
  const uint64_t epoch = action.hello.epoch;
  links::GroupJoiner::Callbacks callbacks;
  callbacks.say = [this, epoch](const Rendezvous::Entry& entry) {
    v1::LinkResponse response;
    *response.mutable_group_entry() = links::ToProto(entry);
    Report(epoch, std::move(response));
  };
  callbacks.connected = [this, epoch] {
    v1::LinkResponse response;
    response.mutable_group_connected();
    Report(epoch, std::move(response));
  };
  callbacks.formed = [this, epoch](const absl::Status& status) {
    events_.Raise(links::GroupFormed{epoch, status});
  };
  v1::LinkResponse response;
  response.mutable_group_join()->set_epoch(epoch);
  streams_.at(action.link)->Write(std::move(response));
  options_.joiner->Join(links::GroupOf(options_.place, action.hello), std::move(callbacks));
}

void StageLink::Perform(const links::SendReady& action) {
  v1::LinkResponse response;
  response.mutable_ready()->set_epoch(action.epoch);
  response.mutable_ready()->set_page_count(options_.bounds.page_count);
  const std::optional<KnownCost> measured = options_.measured();
  if (measured) *response.mutable_ready()->mutable_measured_cost() = ToProto(*measured);
  if (options_.grants != nullptr) {
    response.mutable_ready()->set_newest_generation(options_.grants->newest_generation());
  }
  streams_.at(action.link)->Write(std::move(response));
}

void StageLink::Perform(const links::SendPong& action) {
  v1::LinkResponse response;
  response.mutable_pong()->set_sequence(action.sequence);
  streams_.at(action.link)->Write(std::move(response));
}

void StageLink::Perform(const links::PassNextStageDone& action) {
  options_.stage->Handle(NextStageDone{action.epoch, action.number});
}

void StageLink::Perform(const links::TakeWork&) {
  if (const auto* asked = std::get_if<v1::CompileStructure>(&arriving_)) return Compile(*asked);
  if (const auto* order = std::get_if<GrantOrder>(&arriving_)) return OnGrant(*order);
  OnPlan(std::exchange(std::get<PlanWithContexts>(arriving_), {}));
}

void StageLink::Perform(const links::DropEpoch& action) {
  structures_.clear();
  options_.stage->EndEpoch(action.why);
  if (options_.grants != nullptr) options_.grants->EndEpoch();
}

absl::Status StageLink::Named(const absl::Status& status) const {
  const std::string& self = options_.place.self.instance.id;
  return LegOf(status).has_value() ? status : WithLeg(status, RoleName(options_.place.role), self);
}

void StageLink::Perform(const links::RefuseLink& action) {
  LOG(kWarning) << "a link is refused: " << action.status.message();
  const auto stream = std::move(streams_.extract(action.link).mapped());
  if (action.newest_epoch > 0) {
    v1::LinkResponse response;
    response.mutable_refused()->set_newest_epoch(action.newest_epoch);
    stream->Write(std::move(response));
  }
  stream->Finish(Named(action.status));
}

void StageLink::Perform(const links::EndLink& action) {
  LOG(kInfo) << "the link of epoch " << action.epoch << " ends: " << action.status.message();
  streams_.extract(action.link).mapped()->Finish(Named(action.status));
}

// ---- What comes over it ----

uint64_t StageLink::NumberOf(const Stream& stream) const {
  const auto found = std::find_if(streams_.begin(), streams_.end(),
                                  [&](const auto& entry) { return entry.second == stream; });
  return found == streams_.end() ? 0 : found->first;
}

void StageLink::OnEnd(const Stream& stream) {
  const uint64_t number = NumberOf(stream);
  if (number == 0) return stream->Finish(absl::CancelledError("the link has ended"));
  events_.Raise(links::LinkGone{number});
}

void StageLink::OnRequest(const Stream& stream, const v1::LinkRequest& request) {
  if (request.has_hello()) return OnHello(stream, request.hello());
  const uint64_t number = NumberOf(stream);
  if (number == 0) {
    return stream->Finish(absl::FailedPreconditionError("a link begins with hello"));
  }
  if (absl::Status status = Failpoint(options_.failpoint); !status.ok()) {
    events_.Raise(links::StageFailed{status});
  } else if (request.has_group_entry() || request.has_group_verdict()) {
    OnGroupMessage(number, request);
  } else if (request.has_ping()) {
    events_.Raise(
        links::PingHeard{number, request.ping().sequence(), request.ping().next_stage_done()});
  } else {
    const absl::StatusOr<uint64_t> epoch = Read(request);
    events_.Raise(links::WorkHeard{number, epoch.value_or(0), epoch.status()});
  }
}

void StageLink::OnHello(const Stream& stream, const v1::LinkHello& proto) {
  absl::StatusOr<links::Hello> hello =
      links::FromProto(proto, options_.place, options_.bounds.max_plan_tokens);
  uint64_t number = NumberOf(stream);
  if (!hello.ok()) {
    if (number != 0) return events_.Raise(links::StageFailed{hello.status()});
    LOG(kWarning) << "a link is refused: " << hello.status().message();
    return stream->Finish(Named(hello.status()));
  }
  if (number == 0) {
    number = ++streams_opened_;
    streams_[number] = stream;
  }
  events_.Raise(links::HelloArrived{number, *std::move(hello)});
}

void StageLink::OnGroupMessage(uint64_t number, const v1::LinkRequest& request) {
  if (!link_.Stands(number) || options_.joiner == nullptr) return;
  Rendezvous::Message message;
  absl::Status status;
  if (request.has_group_entry()) {
    absl::StatusOr<Rendezvous::Entry> entry = links::FromProto(request.group_entry());
    status = entry.status();
    if (entry.ok()) message.entry = *std::move(entry);
  } else {
    absl::StatusOr<absl::Status> verdict = links::VerdictFromProto(request.group_verdict());
    status = verdict.status();
    if (verdict.ok()) message.verdict = *std::move(verdict);
  }
  if (!status.ok()) return events_.Raise(links::StageFailed{status});
  options_.joiner->OnMessage(message);
}

absl::StatusOr<uint64_t> StageLink::Read(const v1::LinkRequest& request) {
  if (request.has_compile()) {
    arriving_ = request.compile();
    return link_.hello().epoch;
  }
  if (request.has_order() && options_.grants != nullptr) {
    BATON_ASSIGN_OR_RETURN(arriving_, FromProto(request.order()));
    return link_.hello().epoch;
  }
  if (!request.has_plan()) {
    return absl::InvalidArgumentError("a message on the link that is no plan");
  }
  PlanBounds bounds = options_.bounds;
  bounds.max_plan_tokens = link_.hello().max_plan_tokens;
  BATON_ASSIGN_OR_RETURN(arriving_, FromProto(request.plan(), bounds));
  return request.plan().epoch();
}

// ---- What the stage is to do ----

void StageLink::OnPlan(PlanWithContexts plan) {
  std::erase_if(structures_, [&](const Structure& structure) {
    return plan.opens.contains(structure.attempt_id);
  });
  options_.stage->OnPlan(std::move(plan));
}

void StageLink::OnGrant(const GrantOrder& order) {
  if (const auto* revoke = std::get_if<RevokeKv>(&order)) {
    const absl::Status status = options_.grants->Revoke(revoke->slot, revoke->generation);
    if (!status.ok()) Fail(status);
    return;
  }
  const auto& grant = std::get<KvGrant>(order);
  if (const absl::Status status = options_.grants->Grant(grant); !status.ok()) {
    return Fail(status);
  }
  // Through the data thread, where the grant must be in force before a writer learns of it.
  options_.grants->inlet().After([this, loop = options_.loop, epoch = link_.hello().epoch,
                                  slot = grant.slot, generation = grant.generation] {
    const bool told = loop->PostCompletion([this, epoch, slot, generation] {
      v1::LinkResponse response;
      *response.mutable_report() = GrantedToProto(slot, generation);
      Report(epoch, std::move(response));
    });
    if (!told) {
      LOG(kDebug) << "a grant stands after the end";
    }
  });
}

void StageLink::OnLease(const LeaseEvent& event) {
  options_.grants->Heard(event);
  v1::LinkResponse response;
  *response.mutable_report() = ToProto(event);
  Report(std::move(response));
}

void StageLink::Compile(const v1::CompileStructure& asked) {
  const absl::StatusOr<TokenSampler> sampler = options_.bounds.SamplerOf(asked.sampling());
  if (!sampler.ok()) return TellCompiled(asked.attempt_id(), sampler.status());
  const auto& constraint = sampler->params().constraint;
  if (constraint == nullptr) return TellCompiled(asked.attempt_id(), absl::OkStatus());
  if (structures_.size() >= kMostStructures) {
    const Structure& oldest = structures_.front();
    if (!oldest.told) TellCompiled(oldest.attempt_id, absl::OkStatus());
    structures_.pop_front();
  }
  structures_.push_back({asked.attempt_id(), constraint});
}

void StageLink::TellCompiled(uint64_t attempt_id, const absl::Status& status) {
  v1::LinkResponse response;
  *response.mutable_compiled() = ToProto(attempt_id, status);
  Report(std::move(response));
}

int64_t StageLink::TellCompiled(int64_t now_us) {
  int64_t next_us = kNeverUs;
  for (Structure& structure : structures_) {
    if (structure.told) continue;
    structure.told = structure.constraint->ready();
    if (structure.told) {
      TellCompiled(structure.attempt_id, structure.constraint->Await().status());
    } else {
      next_us = now_us + kLookAgainUs;
    }
  }
  return next_us;
}

void StageLink::Stop() { Fail(absl::UnavailableError("the stage is stopping")); }

LinkStream* OpenLinkStream(StageLink* link, const std::shared_ptr<EventLoop>& loop) {
  LinkStream::Callbacks callbacks;
  callbacks.on_request = [link, loop](std::shared_ptr<LinkStream> stream, v1::LinkRequest request) {
    return link != nullptr &&
           loop->Post([link, stream = std::move(stream), request = std::move(request)] {
             link->OnRequest(stream, request);
           });
  };
  callbacks.on_end = [link, loop](const std::shared_ptr<LinkStream>& stream) {
    const bool posted =
        link != nullptr && loop->PostCompletion([link, stream] { link->OnEnd(stream); });
    if (!posted) stream->Finish(absl::UnavailableError("the stage takes no links"));
  };
  return LinkStream::Open(std::move(callbacks));
}

}  // namespace baton::prefill
