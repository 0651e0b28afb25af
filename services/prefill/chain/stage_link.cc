#include "services/prefill/chain/stage_link.h"

#include <utility>

#include "common/base/status.h"

namespace baton::prefill {

StageLink::StageLink(const Options& options)
    : options_(options),
      link_({options.place, options.bounds.page_count, options.bounds.max_plan_tokens,
             options.joiner, "prefill.link"},
            Callbacks()) {
  StageShell::Reports reports;
  reports.plan_done = [this](uint64_t epoch, const PlanDone& done) {
    v1::LinkResponse response;
    *response.mutable_plan_done() = ToProto(done);
    link_.Report(epoch, std::move(response));
  };
  reports.request_closed = [this](uint64_t epoch, const RequestClosed& closed) {
    v1::LinkResponse response;
    *response.mutable_request_closed() = ToProto(closed);
    link_.Report(epoch, std::move(response));
  };
  reports.end_epoch = [this](const absl::Status& status) { link_.Fail(status); };
  options_.stage->SetReports(std::move(reports));
}

links::MemberLink::Callbacks StageLink::Callbacks() {
  links::MemberLink::Callbacks callbacks;
  callbacks.try_epoch = [this](const links::Hello& hello) {
    return options_.stage->TryEpoch(
        hello, [this](const InstanceRef& peer) { return options_.peers->Find(peer); });
  };
  callbacks.drop_epoch = [this](const absl::Status& why) { options_.stage->EndEpoch(why); };
  callbacks.describe = [this](v1::LinkReady& ready) {
    const std::optional<KnownCost> measured = options_.measured();
    if (measured) *ready.mutable_measured_cost() = ToProto(*measured);
  };
  callbacks.read = [this](const v1::LinkRequest& request) { return Read(request); };
  callbacks.take = [this] { options_.stage->OnPlan(std::exchange(arriving_, {})); };
  callbacks.next_stage_done = [this](uint64_t epoch, uint64_t number) {
    options_.stage->Handle(NextStageDone{epoch, number});
  };
  return callbacks;
}

links::MemberLink::Work StageLink::Read(const v1::LinkRequest& request) {
  if (!request.has_plan()) {
    return {0, absl::InvalidArgumentError("a message on the link that is empty, or no plan")};
  }
  PlanBounds bounds = options_.bounds;
  bounds.max_plan_tokens = link_.hello().max_plan_tokens;
  absl::StatusOr<PlanWithContexts> plan = FromProto(request.plan(), bounds);
  const absl::Status status = plan.status();
  if (status.ok()) arriving_ = *std::move(plan);
  return {request.plan().epoch(), status};
}

void StageLink::Stop() { link_.Fail(absl::UnavailableError("the stage is stopping")); }

}  // namespace baton::prefill
