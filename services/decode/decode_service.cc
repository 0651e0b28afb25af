#include "services/decode/decode_service.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/types/limits.h"
#include "proto/baton/v1/decode_ranks.grpc.pb.h"
#include "services/decode/decode_rpc.h"
#include "services/decode/decode_shell.h"
#include "services/decode/kv_receiver.h"

namespace baton::decode {
namespace {

constexpr int64_t kDataThreadStuckUs = 5'000'000;

absl::Status CheckOptions(const prefill::PrefillOptions& options, const Executor& executor) {
  if (options.planner.max_open_requests < 1) {
    return InvalidField("max_running_requests", "must be positive");
  }
  if (options.planner.reserved_decode_tokens < 1) {
    return InvalidField("num_reserved_decode_tokens", "must be positive");
  }
  if (options.planner.max_queued_requests < 0) {
    return InvalidField("max_queued_requests", "must not be negative");
  }
  if (options.planner.max_context_tokens < 2 ||
      options.planner.max_context_tokens > executor.config().max_position_embeddings) {
    return InvalidField(
        "context_length",
        absl::StrCat(options.planner.max_context_tokens, " is not in [2, ",
                     executor.config().max_position_embeddings, "], the model's longest context"));
  }
  return absl::OkStatus();
}

prefill::PrefillOptions ChainOptionsOf(prefill::PrefillOptions options, const Executor& executor) {
  options.role = Role::kDecode;
  if (options.chain_id.empty()) options.chain_id = options.self.id;
  options.tensor_rank = executor.tensor_rank();
  options.planner.chunk_tokens = RereadTokens(executor.kv().page_size);
  options.planner.decodes = true;
  return options;
}

KvReceiver::Options ReceiverOptionsOf(const prefill::PrefillOptions& options,
                                      const prefill::PrefillService::Parts& parts) {
  KvReceiver::Options kv;
  kv.table.self = options.self;
  kv.table.layout = parts.executor->kv().layout();
  kv.table.rank = parts.executor->tensor_rank();
  kv.table.model_kv_heads = parts.executor->config().num_key_value_heads;
  kv.table.model_layers = parts.executor->config().num_hidden_layers;
  kv.table.slots = static_cast<uint32_t>(options.planner.max_open_requests);
  kv.table.writer_lease_us = options.kv_lease_ms * 1000;
  kv.executor = parts.executor;
  kv.data_plane = parts.data_plane;
  kv.metrics = parts.metrics;
  kv.find_peer = [peers = parts.peers](const InstanceRef& writer) { return peers->Find(writer); };
  kv.want = [peers = parts.peers](const auto& writers) { return peers->Want(writers); };
  return kv;
}

// What speaks to routers on the first process, and to that one on the others; and the lease table.
class DecodeFront final : public prefill::Front {
 public:
  DecodeFront(const prefill::PrefillOptions& options, const prefill::PrefillService::Parts& parts)
      : options_(options), parts_(parts) {
    KvReceiver::Options kv = ReceiverOptionsOf(options, parts);
    kv.deliver = [this](std::vector<LeaseEvent> events) {
      return chain_.on_lease(std::move(events));
    };
    kv_ = std::make_unique<KvReceiver>(std::move(kv));
  }

  prefill::KvInlet& inlet() override { return *kv_; }
  void Attach(const prefill::FrontParts& chain) override {
    chain_ = chain;
    if (chain.chain == nullptr) return;
    shell_ = std::make_unique<DecodeShell>(DecodeShell::Options{
        options_.self.id, chain.chain, kv_.get(), options_.kv_lease_ms * 1000,
        [loop = chain.loop](auto task) { return loop->PostCompletion(std::move(task)); }});
    rpc_ = std::make_unique<DecodeRpc>(options_, parts_, chain.loop.get(), shell_.get());
    chain.relays->SetBegin(
        [rpc = rpc_.get()](const auto& call, auto& relay) { rpc->Begin(call, relay); });
  }
  absl::Status Start() override { return kv_->Start(); }

  std::vector<grpc::Service*> services() override {
    if (rpc_ != nullptr) return {rpc_.get()};
    return {&ranks_};
  }
  int64_t Wake(int64_t now_us) override {
    return shell_ == nullptr ? kNeverUs : shell_->Wake(now_us);
  }
  bool AtRest() const override { return shell_ == nullptr || shell_->AtRest(); }
  void OnEndpoints() override { kv_->OnEndpoints(); }
  absl::Status Liveness() const override {
    const int64_t silent_us = NowUs() - kv_->last_tick_us();
    if (silent_us <= kDataThreadStuckUs) return absl::OkStatus();
    return absl::InternalError(
        absl::StrCat("the data thread has made no progress for ", silent_us / 1000, " ms"));
  }

 private:
  class Ranks final : public v1::DecodeRanks::CallbackService {
   public:
    explicit Ranks(const prefill::FrontParts& chain) : chain_(chain) {}
    grpc::ServerBidiReactor<v1::LinkRequest, v1::LinkResponse>* Link(
        grpc::CallbackServerContext* /*context*/) override {
      return prefill::OpenLinkStream(chain_.link, chain_.loop);
    }

   private:
    const prefill::FrontParts& chain_;
  };

  const prefill::PrefillOptions options_;
  const prefill::PrefillService::Parts parts_;
  prefill::FrontParts chain_;  // Nothing is granted before the chain is there.
  std::unique_ptr<KvReceiver> kv_;
  std::unique_ptr<DecodeShell> shell_;
  std::unique_ptr<DecodeRpc> rpc_;
  Ranks ranks_{chain_};
};

}  // namespace

absl::StatusOr<std::unique_ptr<prefill::PrefillService>> CreateDecodeService(
    const prefill::PrefillOptions& options, const prefill::PrefillService::Parts& parts) {
  BATON_RETURN_IF_ERROR(CheckOptions(options, *parts.executor));
  return prefill::PrefillService::Create(ChainOptionsOf(options, *parts.executor), parts,
                                         std::make_unique<DecodeFront>(options, parts));
}

}  // namespace baton::decode
