#include "services/prefill/chain/stage_link.h"

#include <utility>

#include "common/base/log.h"
#include "common/base/status.h"

namespace baton::prefill {
namespace {

constexpr size_t kMostStructures = 256;
constexpr int64_t kLookAgainUs = 2'000;

}  // namespace

StageLink::StageLink(const Options& options)
    : options_(options),
      link_({options.place, options.bounds.page_count, options.bounds.max_plan_tokens,
             options.joiner, options.failpoint},
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
    if (options_.grants != nullptr && !options_.grants->AtRest()) {
      return absl::UnavailableError("pages of the last epoch are still in use");
    }
    return options_.stage->TryEpoch(hello, [this](const InstanceRef& peer) {
      const std::optional<PeerId> endpoint = options_.peers->Find(peer);
      if (!endpoint.has_value()) (void)options_.peers->Want({peer});  // For the next try.
      return endpoint;
    });
  };
  callbacks.drop_epoch = [this](const absl::Status& why) {
    structures_.clear();
    options_.stage->EndEpoch(why);
    if (options_.grants != nullptr) options_.grants->EndEpoch();
  };
  callbacks.describe = [this](v1::LinkReady& ready) {
    const std::optional<KnownCost> measured = options_.measured();
    if (measured) *ready.mutable_measured_cost() = ToProto(*measured);
    if (options_.grants != nullptr) {
      ready.set_newest_generation(options_.grants->newest_generation());
    }
  };
  callbacks.read = [this](const v1::LinkRequest& request) { return Read(request); };
  callbacks.take = [this] {
    if (const auto* asked = std::get_if<v1::CompileStructure>(&arriving_)) return Compile(*asked);
    if (const auto* order = std::get_if<GrantOrder>(&arriving_)) return OnGrant(*order);
    OnPlan(std::exchange(std::get<PlanWithContexts>(arriving_), {}));
  };
  callbacks.next_stage_done = [this](uint64_t epoch, uint64_t number) {
    options_.stage->Handle(NextStageDone{epoch, number});
  };
  return callbacks;
}

links::MemberLink::Work StageLink::Read(const v1::LinkRequest& request) {
  if (request.has_compile()) {
    arriving_ = request.compile();
    return {link_.hello().epoch, absl::OkStatus()};
  }
  if (request.has_order() && options_.grants != nullptr) {
    absl::StatusOr<GrantOrder> order = FromProto(request.order());
    const absl::Status status = order.status();
    if (status.ok()) arriving_ = *std::move(order);
    return {link_.hello().epoch, status};
  }
  if (!request.has_plan()) {
    return {0, absl::InvalidArgumentError("a message on the link that is no plan")};
  }
  PlanBounds bounds = options_.bounds;
  bounds.max_plan_tokens = link_.hello().max_plan_tokens;
  absl::StatusOr<PlanWithContexts> plan = FromProto(request.plan(), bounds);
  const absl::Status status = plan.status();
  if (status.ok()) arriving_ = *std::move(plan);
  return {request.plan().epoch(), status};
}

void StageLink::OnPlan(PlanWithContexts plan) {
  std::erase_if(structures_, [&](const Structure& structure) {
    return plan.opens.contains(structure.attempt_id);
  });
  options_.stage->OnPlan(std::move(plan));
}

void StageLink::OnGrant(const GrantOrder& order) {
  if (const auto* revoke = std::get_if<RevokeKv>(&order)) {
    const absl::Status status = options_.grants->Revoke(revoke->slot, revoke->generation);
    if (!status.ok()) link_.Fail(status);
    return;
  }
  const auto& grant = std::get<KvGrant>(order);
  if (const absl::Status status = options_.grants->Grant(grant); !status.ok()) {
    return link_.Fail(status);
  }
  // Through the data thread, where the grant must be in force before a writer learns of it.
  options_.grants->inlet().After([this, loop = options_.loop, epoch = link_.hello().epoch,
                                  slot = grant.slot, generation = grant.generation] {
    const bool told = loop->PostCompletion([this, epoch, slot, generation] {
      v1::LinkResponse response;
      *response.mutable_report() = GrantedToProto(slot, generation);
      link_.Report(epoch, std::move(response));
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
  link_.Report(link_.hello().epoch, std::move(response));
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
  link_.Report(link_.hello().epoch, std::move(response));
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

void StageLink::Stop() { link_.Fail(absl::UnavailableError("the stage is stopping")); }

links::LinkStream* OpenLinkStream(StageLink* link, const std::shared_ptr<EventLoop>& loop) {
  links::LinkStream::Callbacks callbacks;
  callbacks.on_request = [link, loop](std::shared_ptr<links::LinkStream> stream,
                                      v1::LinkRequest request) {
    return link != nullptr &&
           loop->Post([link, stream = std::move(stream), request = std::move(request)] {
             link->OnRequest(stream, request);
           });
  };
  callbacks.on_end = [link, loop](const std::shared_ptr<links::LinkStream>& stream) {
    const bool posted =
        link != nullptr && loop->PostCompletion([link, stream] { link->OnEnd(stream); });
    if (!posted) stream->Finish(absl::UnavailableError("the stage takes no links"));
  };
  return links::LinkStream::Open(std::move(callbacks));
}

}  // namespace baton::prefill
