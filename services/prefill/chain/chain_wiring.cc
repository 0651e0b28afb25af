#include "services/prefill/chain/chain_wiring.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/base/stop_signal.h"

namespace baton::prefill {
namespace {

constexpr int64_t kPingUs = 500'000;
constexpr int64_t kSilenceUs = 3'000'000;
constexpr int64_t kLinkingLimitUs = 10'000'000;
constexpr int64_t kFirstBackoffUs = 50'000;
constexpr int64_t kLongestBackoffUs = 2'000'000;
constexpr int64_t kStableUs = 10'000'000;  // Up for so long, the next failure is a new one.
constexpr auto kEndOfCalls = std::chrono::seconds(2);

// Epochs must grow across restarts of stage 0, which keeps nothing on disk: the wall clock does.
uint64_t WallClockUs() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(
                                   std::chrono::system_clock::now().time_since_epoch())
                                   .count());
}

}  // namespace

ChainWiring::ChainWiring(Options options, Callbacks callbacks)
    : options_(std::move(options)), callbacks_(std::move(callbacks)) {
  BATON_CHECK(options_.place.stage == 0) << "stage " << options_.place.stage << " wires nothing";
  whole_ = options_.place.stages == 1;
}

ChainWiring::~ChainWiring() {
  calls_.CancelAll();
  links_.clear();
  calls_.WaitIdle();
}

void ChainWiring::EndCalls() {
  calls_.CancelAll();
  if (!calls_.WaitIdle(kEndOfCalls)) {
    LOG(kWarning) << "links of chain " << options_.place.chain_id << " don't end";
  }
}

std::vector<worker::PeerWorker> ChainWiring::FindMembers(
    const std::vector<worker::PeerWorker>& workers) const {
  const ChainPlace& place = options_.place;
  std::vector<worker::PeerWorker> members;
  int layer = place.self.layers.end;
  for (int stage = 1; stage < place.stages; ++stage) {
    const auto found = std::find_if(workers.begin(), workers.end(), [&](const auto& worker) {
      return worker.role == Role::kPrefill && worker.chain_id == place.chain_id &&
             worker.pp_size == place.stages && worker.pp_rank == stage &&
             worker.layers.begin == layer;
    });
    if (found == workers.end()) return {};
    layer = found->layers.end;
    members.push_back(*found);
  }
  if (layer != place.layers) return {};
  return members;
}

void ChainWiring::OnView(const std::vector<worker::PeerWorker>& workers, int64_t now_us) {
  std::vector<worker::PeerWorker> members = FindMembers(workers);
  if (members == members_) return;
  const bool wired = state_ == State::kLinking || state_ == State::kUp;
  if (wired) {
    std::string lost = "a stage";
    for (const worker::PeerWorker& member : members_) {
      if (std::find(workers.begin(), workers.end(), member) == workers.end()) {
        lost = member.instance.id;
      }
    }
    const absl::Status reason =
        absl::UnavailableError(absl::StrCat(lost, " has left the prefill chain"));
    Break(WithLeg(reason, "prefill", lost), now_us);
  }
  // Who comes back, or comes in another's place, has not failed yet: the wait was for the one
  // before.
  if (!members.empty() && members != tried_) {
    backoff_us_ = 0;
    retry_at_us_ = now_us;
  }
  members_ = std::move(members);
  whole_ = !members_.empty() || options_.place.stages == 1;
}

void ChainWiring::TryWire(int64_t now_us) {
  if (!whole_ || now_us < retry_at_us_) return;
  Hello hello;
  hello.epoch = std::max(epoch_ + 1, WallClockUs());
  hello.max_plan_tokens = options_.max_plan_tokens;
  hello.activation_credits = options_.activation_credits;
  hello.stages.push_back(options_.place.self);
  for (const auto& member : members_) hello.stages.push_back({member.instance, member.layers});
  if (absl::Status status = callbacks_.begin_own(hello); !status.ok()) {
    retry_at_us_ = now_us + kFirstBackoffUs;
    return;
  }
  epoch_ = hello.epoch;
  tried_ = members_;
  state_ = State::kLinking;
  linking_since_us_ = now_us;
  OpenLinks(hello, now_us);
  if (links_.empty()) BecomeUp(now_us);
}

void ChainWiring::OpenLinks(const Hello& hello, int64_t now_us) {
  links_.clear();
  for (const worker::PeerWorker& member : members_) {
    const int stage = member.pp_rank;
    LinkCall::Callbacks callbacks;
    callbacks.on_response = [this, loop = options_.loop, stage,
                             epoch = epoch_](const v1::LinkResponse& response) {
      return loop->Post([this, stage, epoch, response] { OnResponse(stage, epoch, response); });
    };
    callbacks.on_done = [this, loop = options_.loop, stage,
                         epoch = epoch_](const absl::Status& status) {
      const bool posted = loop->PostCompletion([this, stage, epoch, status] {
        if (epoch != epoch_ || links_.empty()) return;
        const absl::Status cause =
            status.ok() ? absl::UnavailableError("the stage ended the link") : status;
        Break(Blame(cause, links_[static_cast<size_t>(stage - 1)]), NowUs());
      });
      if (!posted) {
        LOG(kInfo) << "the link to stage " << stage << " has ended";
      }
    };
    Link link;
    link.member = member;
    link.last_heard_us = now_us;
    link.call = LinkCall::Open(member.grpc_address, calls_, std::move(callbacks));
    v1::LinkRequest request;
    *request.mutable_hello() = ToProto(hello, options_.place.chain_id, stage, options_.page_count);
    link.call->Write(std::move(request));
    links_.push_back(std::move(link));
  }
}

absl::Status ChainWiring::Blame(const absl::Status& cause, const Link& link) const {
  const std::string& name = link.member.instance.id;
  const absl::Status status = absl::UnavailableError(absl::StrCat(
      "prefill stage ", link.member.pp_rank, " (", name, ") is lost: ", cause.message()));
  return WithLeg(status, "prefill", InstanceOf(cause).value_or(name));
}

void ChainWiring::OnResponse(int stage, uint64_t epoch, const v1::LinkResponse& response) {
  if (epoch != epoch_ || links_.empty()) return;  // Of an older epoch.
  const int64_t now_us = NowUs();
  absl::Status status = Failpoint("prefill.link");
  if (status.ok()) status = HandleResponse(stage, response, now_us);
  if (status.ok() || links_.empty()) return;
  Break(Blame(status, links_[static_cast<size_t>(stage - 1)]), now_us);
}

absl::Status ChainWiring::HandleResponse(int stage, const v1::LinkResponse& response,
                                         int64_t now_us) {
  Link& link = links_[static_cast<size_t>(stage - 1)];
  link.last_heard_us = now_us;
  switch (response.message_case()) {
    case v1::LinkResponse::kReady:
      return OnReady(link, response.ready(), now_us);
    case v1::LinkResponse::kPlanDone: {
      BATON_ASSIGN_OR_RETURN(const PlanDone done, FromProto(response.plan_done()));
      if (state_ != State::kUp) return absl::FailedPreconditionError("a plan is done before any");
      callbacks_.on_plan_done(stage, epoch_, done);
      return absl::OkStatus();
    }
    case v1::LinkResponse::kRequestClosed: {
      BATON_ASSIGN_OR_RETURN(const RequestClosed closed, FromProto(response.request_closed()));
      if (state_ != State::kUp) return absl::FailedPreconditionError("closed before any plan");
      callbacks_.on_request_closed(stage, epoch_, closed);
      return absl::OkStatus();
    }
    case v1::LinkResponse::kPong:
      return absl::OkStatus();
    case v1::LinkResponse::MESSAGE_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("an empty message on the link");
}

absl::Status ChainWiring::OnReady(Link& link, const v1::LinkReady& ready, int64_t now_us) {
  if (link.ready || ready.epoch() != epoch_) {
    return absl::FailedPreconditionError(absl::StrCat("ready for epoch ", ready.epoch()));
  }
  if (ready.page_count() < 1) return InvalidField("ready.page_count", "must be positive");
  link.ready = true;
  link.page_count = ready.page_count();
  const bool all = std::all_of(links_.begin(), links_.end(), [](const Link& l) { return l.ready; });
  if (all) BecomeUp(now_us);
  return absl::OkStatus();
}

void ChainWiring::BecomeUp(int64_t now_us) {
  state_ = State::kUp;
  up_since_us_ = now_us;
  next_ping_us_ = now_us;
  int page_count = options_.page_count;
  for (const Link& link : links_) page_count = std::min(page_count, link.page_count);
  LOG(kInfo) << "chain " << options_.place.chain_id << " is up: " << options_.place.stages
             << " stages, " << page_count << " pages";
  callbacks_.on_up(epoch_, options_.place.stages, page_count);
}

void ChainWiring::Break(const absl::Status& reason, int64_t now_us) {
  if (state_ != State::kLinking && state_ != State::kUp) return;
  if (!StopRequested()) {
    LOG(kWarning) << "chain " << options_.place.chain_id << " breaks: " << reason.message();
  }
  const bool stable = state_ == State::kUp && now_us - up_since_us_ >= kStableUs;
  backoff_us_ =
      stable || backoff_us_ == 0 ? kFirstBackoffUs : std::min(2 * backoff_us_, kLongestBackoffUs);
  retry_at_us_ = now_us + backoff_us_;
  state_ = State::kDown;
  for (const Link& link : links_) link.call->Cancel();
  links_.clear();
  callbacks_.on_down(reason);
}

void ChainWiring::Stop(int64_t now_us) {
  Break(absl::UnavailableError("stage 0 is stopping"), now_us);
  state_ = State::kStopped;
}

// Silence is what tells a stopped process: gRPC and UCX don't.
void ChainWiring::Watch(int64_t now_us) {
  for (const Link& link : links_) {
    if (now_us - link.last_heard_us < kSilenceUs) continue;
    if (state_ == State::kLinking) break;  // A stage may take longer to become quiet.
    Break(Blame(absl::UnavailableError("no sign of life for 3 s"), link), now_us);
    return;
  }
  if (state_ == State::kLinking && now_us - linking_since_us_ >= kLinkingLimitUs) {
    const auto late =
        std::find_if(links_.begin(), links_.end(), [](const Link& l) { return !l.ready; });
    Break(Blame(absl::DeadlineExceededError("not ready within 10 s"), *late), now_us);
    return;
  }
  if (state_ != State::kUp || now_us < next_ping_us_) return;
  next_ping_us_ = now_us + kPingUs;
  v1::LinkRequest request;
  request.mutable_ping()->set_sequence(++ping_sequence_);
  for (const Link& link : links_) link.call->Write(request);
}

int64_t ChainWiring::Wake(int64_t now_us) {
  if (state_ == State::kDown) TryWire(now_us);
  if (state_ == State::kLinking || state_ == State::kUp) Watch(now_us);
  switch (state_) {
    case State::kDown:
      return whole_ ? retry_at_us_ : kNeverUs;
    case State::kLinking:
      return now_us + kPingUs;
    case State::kUp:
      return links_.empty() ? kNeverUs : next_ping_us_;
    case State::kStopped:
      break;
  }
  return kNeverUs;
}

void ChainWiring::Send(const v1::Plan& plan) {
  v1::LinkRequest request;
  *request.mutable_plan() = plan;
  for (const Link& link : links_) link.call->Write(request);
}

}  // namespace baton::prefill
