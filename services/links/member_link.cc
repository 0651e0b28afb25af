#include "services/links/member_link.h"

#include <algorithm>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "services/links/core/group_rendezvous.h"
#include "services/links/messages.h"

namespace baton::links {

MemberLink::MemberLink(Options options, Callbacks callbacks)
    : options_(std::move(options)), callbacks_(std::move(callbacks)), link_(options_.place) {}

void MemberLink::Report(uint64_t epoch, v1::LinkResponse response) {
  const auto standing = streams_.find(link_.standing());
  if (standing != streams_.end() && epoch == link_.hello().epoch) {
    standing->second->Write(std::move(response));
  }
}

void MemberLink::Handle(const LinkEvent& event) {
  std::vector<LinkAction> actions;
  link_.Handle(event, NowUs(), actions);
  for (const LinkAction& action : actions) {
    std::visit([this](const auto& a) { Perform(a); }, action);
  }
}

int64_t MemberLink::Wake(int64_t now_us) {
  if (link_.NextDeadlineUs() <= now_us) events_.Raise(LinkTick{});
  return link_.NextDeadlineUs();
}

// ---- What the link decides ----

void MemberLink::Perform(const TryEpoch& action) {
  events_.Raise(EpochTried{callbacks_.try_epoch(action.hello)});
}

void MemberLink::Perform(const FormGroup& action) {
  const uint64_t epoch = action.hello.epoch;
  GroupJoiner::Callbacks callbacks;
  callbacks.say = [this, epoch](const Rendezvous::Entry& entry) {
    v1::LinkResponse response;
    *response.mutable_group_entry() = ToProto(entry);
    Report(epoch, std::move(response));
  };
  callbacks.connected = [this, epoch] {
    v1::LinkResponse response;
    response.mutable_group_connected();
    Report(epoch, std::move(response));
  };
  callbacks.formed = [this, epoch](const absl::Status& status) {
    events_.Raise(GroupFormed{epoch, status});
  };
  v1::LinkResponse response;
  response.mutable_group_join()->set_epoch(epoch);
  streams_.at(action.link)->Write(std::move(response));
  options_.joiner->Join(GroupOf(options_.place, action.hello), std::move(callbacks));
}

void MemberLink::Perform(const SendReady& action) {
  v1::LinkResponse response;
  response.mutable_ready()->set_epoch(action.epoch);
  response.mutable_ready()->set_page_count(options_.page_count);
  callbacks_.describe(*response.mutable_ready());
  streams_.at(action.link)->Write(std::move(response));
}

void MemberLink::Perform(const SendPong& action) {
  v1::LinkResponse response;
  response.mutable_pong()->set_sequence(action.sequence);
  streams_.at(action.link)->Write(std::move(response));
}

void MemberLink::Perform(const PassNextStageDone& action) {
  if (callbacks_.next_stage_done) callbacks_.next_stage_done(action.epoch, action.number);
}

absl::Status MemberLink::Named(const absl::Status& status) const {
  const std::string& self = options_.place.self.instance.id;
  return LegOf(status).has_value() ? status : WithLeg(status, RoleName(options_.place.role), self);
}

void MemberLink::Perform(const RefuseLink& action) {
  LOG(kWarning) << "a link is refused: " << action.status.message();
  const auto stream = std::move(streams_.extract(action.link).mapped());
  if (action.newest_epoch > 0) {
    v1::LinkResponse response;
    response.mutable_refused()->set_newest_epoch(action.newest_epoch);
    stream->Write(std::move(response));
  }
  stream->Finish(Named(action.status));
}

void MemberLink::Perform(const EndLink& action) {
  LOG(kInfo) << "the link of epoch " << action.epoch << " ends: " << action.status.message();
  streams_.extract(action.link).mapped()->Finish(Named(action.status));
}

// ---- What comes over it ----

uint64_t MemberLink::NumberOf(const std::shared_ptr<LinkStream>& stream) const {
  const auto found = std::find_if(streams_.begin(), streams_.end(),
                                  [&](const auto& entry) { return entry.second == stream; });
  return found == streams_.end() ? 0 : found->first;
}

void MemberLink::OnEnd(const std::shared_ptr<LinkStream>& stream) {
  const uint64_t number = NumberOf(stream);
  if (number == 0) return stream->Finish(absl::CancelledError("the link has ended"));
  events_.Raise(LinkGone{number});
}

void MemberLink::OnRequest(const std::shared_ptr<LinkStream>& stream,
                           const v1::LinkRequest& request) {
  if (request.has_hello()) return OnHello(stream, request.hello());
  const uint64_t number = NumberOf(stream);
  if (number == 0) {
    return stream->Finish(absl::FailedPreconditionError("a link begins with hello"));
  }
  if (absl::Status status = Failpoint(options_.failpoint); !status.ok()) {
    events_.Raise(StageFailed{status});
  } else if (request.has_group_entry() || request.has_group_verdict()) {
    OnGroupMessage(number, request);
  } else if (request.has_ping()) {
    events_.Raise(PingHeard{number, request.ping().sequence(), request.ping().next_stage_done()});
  } else {
    const Work work = callbacks_.read(request);
    events_.Raise(WorkHeard{number, work.epoch, work.status});
  }
}

void MemberLink::OnHello(const std::shared_ptr<LinkStream>& stream, const v1::LinkHello& proto) {
  absl::StatusOr<Hello> hello = FromProto(proto, options_.place, options_.max_plan_tokens);
  uint64_t number = NumberOf(stream);
  if (!hello.ok()) {
    if (number != 0) return events_.Raise(StageFailed{hello.status()});
    LOG(kWarning) << "a link is refused: " << hello.status().message();
    return stream->Finish(Named(hello.status()));
  }
  if (number == 0) {
    number = ++streams_opened_;
    streams_[number] = stream;
  }
  events_.Raise(HelloArrived{number, *std::move(hello)});
}

void MemberLink::OnGroupMessage(uint64_t number, const v1::LinkRequest& request) {
  if (!link_.Stands(number) || options_.joiner == nullptr) return;
  Rendezvous::Message message;
  absl::Status status;
  if (request.has_group_entry()) {
    absl::StatusOr<Rendezvous::Entry> entry = FromProto(request.group_entry());
    status = entry.status();
    if (entry.ok()) message.entry = *std::move(entry);
  } else {
    absl::StatusOr<absl::Status> verdict = VerdictFromProto(request.group_verdict());
    status = verdict.status();
    if (verdict.ok()) message.verdict = *std::move(verdict);
  }
  if (!status.ok()) return events_.Raise(StageFailed{status});
  options_.joiner->OnMessage(message);
}

}  // namespace baton::links
