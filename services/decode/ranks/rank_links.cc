#include "services/decode/ranks/rank_links.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "common/base/status.h"
#include "services/decode/ranks/messages.h"

namespace baton::decode {

links::ChainPlace PlaceOf(const InstanceRef& self, const std::string& decode_id,
                          const Executor& executor) {
  const LayerRange layers{executor.kv().layer_begin, executor.kv().layer_end};
  links::ChainPlace place;
  place.chain_id = decode_id;
  place.layers = executor.config().num_hidden_layers;
  place.self = {self, layers, executor.tensor_rank()};
  place.role = Role::kDecode;
  return place;
}

RankLinks::RankLinks(Options options)
    : options_(std::move(options)),
      joiner_(Role::kDecode, options_.executor, options_.loop, options_.connect_group),
      wiring_({.place = options_.place,
               .page_count = options_.executor->kv().page_count,
               .max_plan_tokens = 1,
               .activation_credits = 1,
               .loop = options_.loop,
               .joiner = &joiner_,
               .failpoint = "decode.link",
               .security = options_.security},
              Callbacks()) {}

links::ChainWiring::Callbacks RankLinks::Callbacks() {
  links::ChainWiring::Callbacks callbacks;
  callbacks.begin_own = [this](const links::Hello& hello) {
    if (!options_.may_join()) {
      return absl::UnavailableError("pages of the last epoch are still in use");
    }
    roster_.Begin(hello.members,
                  std::all_of(hello.members.begin(), hello.members.end(), [&](const auto& rank) {
                    return rank.instance == options_.place.self.instance ||
                           grow_.contains(rank.instance);
                  }));
    return absl::OkStatus();
  };
  callbacks.on_ready = [this](int, const v1::LinkReady& ready) {
    roster_.Ready(ready.newest_generation());
    return absl::OkStatus();
  };
  callbacks.on_up = [this](uint64_t, int page_count) {
    options_.handle(roster_.Joined(page_count));
  };
  callbacks.on_down = [this](const absl::Status& status) {
    joiner_.Leave(status);
    options_.handle(RanksLost{status});
  };
  callbacks.on_report = [this](const links::PassReport& of, const v1::LinkResponse& response) {
    if (!response.has_report()) {
      return absl::InvalidArgumentError("a report that is none of a decode service's rank");
    }
    BATON_ASSIGN_OR_RETURN(const auto heard, FromProto(of.rank, response.report()));
    std::visit([this](const auto& event) { options_.handle(event); }, heard);
    return absl::OkStatus();
  };
  return callbacks;
}

void RankLinks::OnView(const std::vector<worker::PeerWorker>& workers) {
  grow_.clear();
  for (const worker::PeerWorker& worker : workers) {
    if (worker.protocol_version >= kDecodeGrowthVersion) grow_.insert(worker.instance);
  }
  wiring_.OnView(workers);
}

void RankLinks::Send(const GrantKv& grant) {
  if (!wiring_.up()) return;
  v1::LinkRequest request;
  *request.mutable_order() = ToProto(grant);
  wiring_.Send(grant.rank, std::move(request));
}

void RankLinks::Send(const RevokeKv& revoke) { SendAll(ToProto(revoke)); }

void RankLinks::Send(const RunStep& step) { SendAll(ToProto(step)); }

void RankLinks::SendAll(v1::DecodeOrder order) {
  if (!wiring_.up()) return;
  v1::LinkRequest request;
  *request.mutable_order() = std::move(order);
  for (int rank = 1; rank < options_.place.ranks(); ++rank) wiring_.Send(rank, request);
}

void RankLinks::EndCalls() {
  wiring_.EndCalls();
  joiner_.Stop();
}

}  // namespace baton::decode
