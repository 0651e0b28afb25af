#include "services/prefill/chain/stage_link.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/log.h"
#include "common/base/status.h"

namespace baton::prefill {
namespace {

constexpr int64_t kBeginLimitUs = 8'000'000;  // Less than stage 0 waits for us.
constexpr int64_t kRetryUs = 20'000;
constexpr int64_t kSilenceUs = 3'000'000;

}  // namespace

StageLink::StageLink(const Options& options) : options_(options) {
  StageShell::Reports reports;
  reports.plan_done = [this](uint64_t epoch, const PlanDone& done) {
    if (stream_ == nullptr || epoch != hello_.epoch) return;
    v1::LinkResponse response;
    *response.mutable_plan_done() = ToProto(done);
    stream_->Write(std::move(response));
  };
  reports.request_closed = [this](uint64_t epoch, const RequestClosed& closed) {
    if (stream_ == nullptr || epoch != hello_.epoch) return;
    v1::LinkResponse response;
    *response.mutable_request_closed() = ToProto(closed);
    stream_->Write(std::move(response));
  };
  reports.end_epoch = [this](const absl::Status& status) { End(status); };
  options_.stage->SetReports(std::move(reports));
}

void StageLink::End(const absl::Status& status) {
  options_.stage->EndEpoch();
  begun_ = false;
  if (stream_ == nullptr) return;
  LOG(kInfo) << "the link of epoch " << hello_.epoch << " ends: " << status.message();
  const std::shared_ptr<LinkStream> stream = std::move(stream_);
  stream_ = nullptr;
  const std::string& self = options_.place.self.instance.id;
  stream->Finish(LegOf(status).has_value() ? status : WithLeg(status, "prefill", self));
}

void StageLink::OnEnd(const std::shared_ptr<LinkStream>& stream) {
  if (stream == stream_) {
    End(absl::CancelledError("stage 0 has ended it"));
  } else {
    stream->Finish(absl::CancelledError("the link has ended"));
  }
}

void StageLink::OnRequest(const std::shared_ptr<LinkStream>& stream,
                          const v1::LinkRequest& request) {
  if (request.has_hello()) {
    OnHello(stream, request.hello());
    return;
  }
  if (stream != stream_) {
    stream->Finish(absl::FailedPreconditionError("a link begins with hello"));
    return;
  }
  last_heard_us_ = NowUs();
  if (absl::Status status = Failpoint("prefill.link"); !status.ok()) {
    End(status);
  } else if (request.has_plan()) {
    OnPlan(request.plan());
  } else if (request.has_ping()) {
    v1::LinkResponse response;
    response.mutable_pong()->set_sequence(request.ping().sequence());
    stream->Write(std::move(response));
  } else {
    End(absl::InvalidArgumentError("an empty message on the link"));
  }
}

void StageLink::OnHello(const std::shared_ptr<LinkStream>& stream, const v1::LinkHello& proto) {
  absl::StatusOr<Hello> hello = FromProto(proto, options_.place, options_.bounds);
  absl::Status status = hello.status();
  if (status.ok() && stream == stream_) status = absl::FailedPreconditionError("a second hello");
  if (status.ok() && hello->epoch <= newest_epoch_) {
    status = InvalidField("hello.epoch",
                          absl::StrCat(hello->epoch, " is not newer than ", newest_epoch_));
  }
  if (status.ok()) status = CheckStage0(hello->stages[0].instance);
  if (!status.ok()) {
    LOG(kWarning) << "a link is refused: " << status.message();
    stream->Finish(WithLeg(status, "prefill", options_.place.self.instance.id));
    return;
  }
  End(absl::AbortedError(absl::StrCat("epoch ", hello->epoch, " replaces it")));
  stream_ = stream;
  hello_ = *std::move(hello);
  newest_epoch_ = hello_.epoch;
  last_heard_us_ = NowUs();
  begin_by_us_ = last_heard_us_ + kBeginLimitUs;
  TryBegin(last_heard_us_);
}

// A stage 0 that was started again takes its link over: its former life can't be told from silence
// yet. Another process that claims its place, known to another router, does not while this one
// lives: each would break the other's chain for ever.
absl::Status StageLink::CheckStage0(const InstanceRef& claimant) const {
  if (stream_ == nullptr || claimant.id == hello_.stages[0].instance.id) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "stage 0 of chain ", options_.place.chain_id, " is ", hello_.stages[0].instance.id,
      ", which is alive; ", claimant.id, " must have a chain id of its own"));
}

absl::StatusOr<ActivationEpoch> StageLink::Neighbours() const {
  if (!options_.stage->Quiet()) {
    return absl::UnavailableError("work of the last epoch goes on");
  }
  ActivationEpoch epoch;
  epoch.epoch = hello_.epoch;
  epoch.max_plan_tokens = hello_.max_plan_tokens;
  epoch.credits = hello_.activation_credits;
  const auto stage = static_cast<size_t>(options_.place.stage);
  const InstanceRef& previous = hello_.stages[stage - 1].instance;
  BATON_ASSIGN_OR_RETURN(epoch.previous, FindNeighbour(*options_.peers, previous));
  if (stage + 1 == hello_.stages.size()) return epoch;
  const InstanceRef& next = hello_.stages[stage + 1].instance;
  BATON_ASSIGN_OR_RETURN(epoch.next, FindNeighbour(*options_.peers, next));
  return epoch;
}

void StageLink::TryBegin(int64_t now_us) {
  const absl::StatusOr<ActivationEpoch> epoch = Neighbours();
  if (!epoch.ok()) {
    if (now_us >= begin_by_us_) End(epoch.status());
    return;
  }
  options_.stage->BeginEpoch(*epoch, now_us);
  begun_ = true;
  v1::LinkResponse response;
  response.mutable_ready()->set_epoch(hello_.epoch);
  response.mutable_ready()->set_page_count(options_.bounds.page_count);
  stream_->Write(std::move(response));
}

void StageLink::OnPlan(const v1::Plan& proto) {
  if (!begun_) {
    End(absl::FailedPreconditionError("a plan before the stage was ready"));
    return;
  }
  PlanBounds bounds = options_.bounds;
  bounds.max_plan_tokens = hello_.max_plan_tokens;
  absl::StatusOr<PlanWithContexts> plan = FromProto(proto, bounds);
  if (plan.ok() && plan->plan.epoch != hello_.epoch) {
    plan = InvalidField("plan.epoch",
                        absl::StrCat(plan->plan.epoch, ", this link's is ", hello_.epoch));
  }
  if (plan.ok()) {
    options_.stage->OnPlan(*std::move(plan));
  } else {
    End(plan.status());
  }
}

int64_t StageLink::Wake(int64_t now_us) {
  if (stream_ == nullptr) return kNeverUs;
  if (!begun_) TryBegin(now_us);
  if (stream_ == nullptr) return kNeverUs;
  if (!begun_) return now_us + kRetryUs;
  // Stage 0 pings; if it has stopped, its plans will not come and its requests are over.
  if (now_us - last_heard_us_ >= kSilenceUs) {
    End(absl::UnavailableError("no sign of life from stage 0 for 3 s"));
    return kNeverUs;
  }
  return last_heard_us_ + kSilenceUs;
}

void StageLink::Stop() { End(absl::UnavailableError("the stage is stopping")); }

}  // namespace baton::prefill
