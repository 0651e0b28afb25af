#include "services/prefill/testing/test_chain.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/engine/testing/fake_device.h"
#include "common/kv/head_routes.h"
#include "common/rpc/convert.h"
#include "common/rpc/grpc_status.h"

namespace baton::prefill {

std::optional<PeerId> FakePeers::Find(const InstanceRef& instance) const {
  MutexLock lock(&mutex_);
  const auto found = peers_.find(instance);
  if (found == peers_.end()) return std::nullopt;
  return found->second;
}

bool FakePeers::Want(const std::vector<InstanceRef>& peers) const {
  return opening && !std::all_of(peers.begin(), peers.end(), [this](const InstanceRef& peer) {
           return Find(peer).has_value();
         });
}

std::vector<PeerId> FakePeers::Decodes() const {
  MutexLock lock(&mutex_);
  return decodes_;
}

void FakePeers::Connect(DataPlane& from, const InstanceRef& to, const std::string& address,
                        bool decode) {
  if (Find(to).has_value()) return;
  const absl::StatusOr<PeerId> peer = from.Connect(address);
  BATON_CHECK(peer.ok()) << peer.status();
  MutexLock lock(&mutex_);
  peers_[to] = *peer;
  if (decode) decodes_.push_back(*peer);
}

void FakePeers::Disconnect(DataPlane& from, const InstanceRef& to) {
  const std::optional<PeerId> peer = Find(to);
  if (!peer.has_value()) return;
  from.Disconnect(*peer);
  MutexLock lock(&mutex_);
  peers_.erase(to);
  std::erase(decodes_, *peer);
}

TestChain::TestChain(const Settings& settings)
    : settings_(settings), stages_(static_cast<size_t>(settings.stages * settings.ranks)) {
  for (int rank = 0; rank < settings_.decode_ranks; ++rank) {
    const InstanceRef self{rank == 0 ? "decode-0" : absl::StrCat("decode-0-", rank),
                           1 + static_cast<uint64_t>(rank)};
    decodes_.push_back(
        std::make_unique<FakeDecode>(self, TensorRank{rank, settings_.decode_ranks}));
  }
  for (int rank = 0; rank < members(); ++rank) StartStage(rank);
  ShareView();
}

Ticket TestChain::GrantRanks(int prompt_tokens) {
  Ticket ticket = decode().Grant(prompt_tokens);
  for (size_t rank = 1; rank < decodes_.size(); ++rank) {
    ticket.followers.push_back(decodes_[rank]->self());
  }
  for (size_t rank = 1; rank < decodes_.size(); ++rank) decodes_[rank]->GrantToo(ticket);
  return ticket;
}

std::string TestChain::CheckRanks(const Ticket& ticket, const std::vector<int32_t>& prompt) {
  for (int rank = 0; rank < settings_.decode_ranks; ++rank) {
    const TensorRank place{rank, settings_.decode_ranks};
    int writers = 0;
    for (int from = 0; from < settings_.ranks; ++from) {
      const TensorRank writer{from, settings_.ranks};
      if (RouteBetween(kFakeKvHeads, writer, place).has_value()) ++writers;
    }
    const bool hears =
        RouteBetween(kFakeKvHeads, TensorRank{0, settings_.ranks}, place).has_value();
    const std::string wrong = decodes_[static_cast<size_t>(rank)]->Check(
        ticket, prompt, settings_.stages * writers, hears ? 1 : 0);
    if (!wrong.empty()) return absl::StrCat("rank ", rank, " of decode: ", wrong);
  }
  return "";
}

TestChain::~TestChain() {
  for (int rank = 0; rank < members(); ++rank) KillStage(rank);
}

// Uneven where that is possible.
LayerRange TestChain::LayersOf(int rank) const {
  const int each = kFakeLayers / settings_.stages;
  const int stage = rank / settings_.ranks;
  const int begin = stage == 0 ? 0 : stage * each - 1;
  const int end = stage + 1 == settings_.stages ? kFakeLayers : (stage + 1) * each - 1;
  return {begin, end};
}

void TestChain::StartStage(int rank) {
  Stage& stage = stages_[static_cast<size_t>(rank)];
  const LayerRange layers = LayersOf(rank);
  stage.self = {absl::StrCat("prefill-", rank), next_incarnation_++};
  auto model = std::make_unique<FakeModel>(layers.begin, layers.end, settings_.page_count,
                                           TensorRankOf(rank));
  const auto hook = settings_.before_forward.find(rank);
  if (hook != settings_.before_forward.end()) model->before_forward = hook->second;
  stage.executor = settings_.make_executor ? settings_.make_executor(rank, std::move(model))
                                           : MakeTestExecutor(std::move(model), "prefill.compute");
  stage.metrics =
      std::make_unique<Metrics>(MetricsIdentity{MetricRole::kPrefill, "fake", stage.self.id, rank});
  stage.peers = std::make_unique<FakePeers>();
  auto plane = DataPlane::Create({});
  BATON_CHECK(plane.ok()) << plane.status();
  stage.data_plane = *std::move(plane);
  PrefillOptions options;
  options.self = stage.self;
  options.chain_id = "chain-0";
  options.pp_rank = rank / settings_.ranks;
  options.pp_size = settings_.stages;
  options.tensor_rank = TensorRankOf(rank);
  options.planner.chunk_tokens = settings_.chunk_tokens;
  options.planner.chunk_rule = settings_.chunk_rule;
  options.activation_credits = settings_.credits;
  options.plans_in_flight = settings_.plans_in_flight;
  options.planner.decodes = settings_.decodes;
  options.planner.feeds_ahead = true;
  options.planner.caches = settings_.caches;
  options.planner.reserved_decode_tokens = settings_.reserved_decode_tokens;
  options.planner.max_context_tokens = settings_.page_count * kFakePageSize;
  options.kv_lease_ms = 300;
  PrefillService::Parts parts{stage.executor.get(), stage.data_plane.get(), stage.peers.get(),
                              stage.metrics.get()};
  const auto measured = settings_.measured.find(rank);
  if (measured != settings_.measured.end()) parts.measured = measured->second;
  parts.rank_sweep = settings_.rank_sweep;
  parts.constraints = settings_.constraints;
  parts.connect_group = groups_.Connect();
  auto service = PrefillService::Create(options, parts);
  BATON_CHECK(service.ok()) << service.status();
  stage.service = *std::move(service);
}

void TestChain::LoseDecode(int rank, bool opening) {
  Stage& stage = stages_[static_cast<size_t>(rank)];
  stage.peers->Disconnect(*stage.data_plane, decode().self());
  stage.peers->opening = opening;
}

void TestChain::FindDecode(int rank) {
  Stage& stage = stages_[static_cast<size_t>(rank)];
  stage.peers->Connect(*stage.data_plane, decode().self(), decode().data_plane().address(), true);
  stage.service->OnEndpoints();
}

void TestChain::Disconnect(int rank, int other) {
  Stage& stage = stages_[static_cast<size_t>(rank)];
  stage.peers->Disconnect(*stage.data_plane, instance(other));
}

void TestChain::KillStage(int rank) {
  Stage& stage = stages_[static_cast<size_t>(rank)];
  if (stage.service == nullptr) return;
  stage.service->Stop();
  stage.data_plane->Shutdown();
  stage.service.reset();
}

void TestChain::ShareView() {
  for (Stage& stage : stages_) {
    if (stage.service == nullptr) continue;
    std::vector<worker::PeerWorker> listed;
    listed.reserve(stages_.size());
    const int member = static_cast<int>(&stage - stages_.data());
    for (const auto& decode : decodes_) {
      stage.peers->Connect(*stage.data_plane, decode->self(), decode->data_plane().address(), true);
      decode->Connect(stage.self, stage.data_plane->address(), TensorRankOf(member));
    }
    for (int rank = 0; rank < members(); ++rank) {
      const Stage& other = stages_[static_cast<size_t>(rank)];
      if (&other == &stage) continue;
      if (other.service == nullptr) {
        stage.peers->Disconnect(*stage.data_plane, other.self);
        continue;
      }
      stage.peers->Connect(*stage.data_plane, other.self, other.data_plane->address(), false);
      worker::PeerWorker worker;
      worker.instance = other.self;
      worker.role = Role::kPrefill;
      worker.grpc_address = absl::StrCat("127.0.0.1:", other.service->grpc_port());
      worker.layers = LayersOf(rank);
      worker.chain_id = "chain-0";
      worker.pp_rank = rank / settings_.ranks;
      worker.pp_size = settings_.stages;
      worker.tensor_rank = TensorRankOf(rank);
      listed.push_back(worker);
    }
    stage.service->OnMembers(listed);
    stage.service->OnEndpoints();
  }
}

bool TestChain::WaitFor(const std::function<bool()>& condition) const {
  const int64_t until_us = NowUs() + 20'000'000;
  while (!condition()) {
    if (NowUs() > until_us) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

bool TestChain::WaitReady() const {
  return WaitFor([this] { return stages_[0].service->ready(); });
}

bool TestChain::WaitIdle() const {
  return WaitFor([this] {
    return std::all_of(stages_.begin(), stages_.end(), [this](const Stage& stage) {
      return stage.service == nullptr ||
             (stage.service->load().free_pages() == settings_.page_count &&
              stage.service->load().queued_requests() == 0);
    });
  });
}

std::unique_ptr<v1::Prefill::Stub> TestChain::Stub(int rank) const {
  const Stage& stage = stages_[static_cast<size_t>(rank)];
  return v1::Prefill::NewStub(grpc::CreateChannel(
      absl::StrCat("127.0.0.1:", stage.service->grpc_port()), grpc::InsecureChannelCredentials()));
}

v1::StartRequest TestChain::Request(uint64_t attempt_id, const std::vector<int32_t>& prompt,
                                    const Ticket& ticket) {
  v1::StartRequest request;
  request.set_attempt_id(attempt_id);
  request.mutable_fixed_prompt_token_ids()->Assign(prompt.begin(), prompt.end());
  request.mutable_sampling()->set_temperature(0);
  request.mutable_sampling()->set_seed(1);
  request.mutable_sampling()->set_max_tokens(8);
  *request.mutable_ticket() = rpc::ToProto(ticket);
  request.set_timeout_ms(60'000);
  return request;
}

std::vector<int32_t> TestChain::Prompt(int tokens, int seed) {
  std::vector<int32_t> prompt;
  prompt.reserve(static_cast<size_t>(tokens));
  for (int i = 0; i < tokens; ++i) prompt.push_back((i * 31 + seed * 17) % kFakeVocab);
  return prompt;
}

absl::Status TestChain::Send(const v1::StartRequest& request, v1::PrefillReport* report, int rank) {
  v1::StartResponse response;
  absl::Status status = Send(request, response, rank);
  if (report != nullptr) *report = response.report();
  return status;
}

absl::Status TestChain::Send(const v1::StartRequest& request, v1::StartResponse& response,
                             int rank) {
  grpc::ClientContext context;
  return rpc::FromGrpc(Stub(rank)->Start(&context, request, &response));
}

absl::Status TestChain::Run(uint64_t attempt_id, const std::vector<int32_t>& prompt,
                            const Ticket& ticket, v1::PrefillReport* report, int64_t timeout_ms) {
  v1::StartRequest request = Request(attempt_id, prompt, ticket);
  request.set_timeout_ms(timeout_ms);
  return Send(request, report);
}

absl::Status TestChain::Abort(uint64_t attempt_id) {
  grpc::ClientContext context;
  v1::PrefillAbortRequest request;
  request.set_attempt_id(attempt_id);
  v1::PrefillAbortResponse response;
  return rpc::FromGrpc(Stub(0)->Abort(&context, request, &response));
}

}  // namespace baton::prefill
