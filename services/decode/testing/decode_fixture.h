// The decode service in one process: a fake executor, and the test as router (gRPC) and as the
// stages of a prefill chain (a real data plane over UCX).
#ifndef SERVICES_DECODE_TESTING_DECODE_FIXTURE_H_
#define SERVICES_DECODE_TESTING_DECODE_FIXTURE_H_

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <xxhash.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/base/sync.h"
#include "common/engine/attention/host_kv_memory.h"
#include "common/engine/testing/fake_device.h"
#include "common/kv/wire.h"
#include "common/rpc/convert.h"
#include "common/rpc/grpc_status.h"
#include "proto/baton/v1/decode.grpc.pb.h"
#include "services/decode/decode_service.h"
#include "services/worker/peers.h"

namespace baton::decode {

inline constexpr int kVocab = 50;
inline constexpr int32_t kEos = 49;
inline constexpr int kPages = 16;
inline constexpr int64_t kPatienceMs = 60'000;  // Only a failing test waits that long.
inline const InstanceRef kSelf{"decode-0", 77};
inline const std::vector<KvWriter> kWriters{{{"prefill-0", 11}, {0, 1}},
                                            {{"prefill-1", 12}, {1, 3}}};

// The next token follows from the fed token, its position and every byte of the first two pages, so
// that a wrong page shows in the text.
class FakeModel : public StageModel {
 public:
  FakeModel() {
    config_.num_hidden_layers = 3;
    config_.num_key_value_heads = 1;
    config_.vocab_size = kVocab;
    config_.max_position_embeddings = 48;
    config_.eos_token_ids = {kEos};
    kv_ = {.layer_begin = 0,
           .layer_end = 3,
           .kv_heads = 1,
           .head_dim = 2,
           .page_size = 4,
           .page_count = kPages};
    memory_.resize(kv_.PageBytes() * kPages);
    kv_memory_ = std::make_unique<HostKvMemory>(kv_, memory_);
  }
  const ModelConfig& config() const override { return config_; }
  const KvGeometry& kv() const override { return kv_; }
  KvMemory& kv_memory() override { return *kv_memory_; }
  absl::Status Forward(const Batch& batch, const TensorView&, const TensorView&,
                       std::span<float> logits) override {
    const std::function<void(const Batch&)> hook = [this] {
      MutexLock lock(&mutex_);
      return before_step_;
    }();
    if (hook) hook(batch);
    std::fill(logits.begin(), logits.end(), 0.0F);
    for (size_t row = 0; row < batch.slices.size(); ++row) {
      const SequenceSlice& slice = batch.slices[row];
      uint64_t bytes = 0;
      for (const int page : slice.pages.first(std::min<size_t>(2, slice.pages.size()))) {
        for (const std::byte b : PageOf(page)) bytes += static_cast<uint64_t>(b);
      }
      const int32_t next = Next(slice.tokens[0], slice.prefix_length, bytes);
      logits[row * kVocab + static_cast<size_t>(next)] = 10;
    }
    return absl::OkStatus();
  }
  // Never the end of the sequence, which the tests send as a first token.
  static int32_t Next(int32_t token, int position, uint64_t bytes) {
    return static_cast<int32_t>(
        (static_cast<uint64_t>(token) * 7 + 3 + static_cast<uint64_t>(position) + bytes) %
        (kVocab - 1));
  }

  // Called on the computing thread before each step.
  void SetBeforeStep(std::function<void(const Batch&)> hook) {
    MutexLock lock(&mutex_);
    before_step_ = std::move(hook);
  }

 private:
  std::span<const std::byte> PageOf(int page) const {
    return std::span(memory_).subspan(static_cast<size_t>(page) * kv_.PageBytes(), kv_.PageBytes());
  }

  Mutex mutex_;
  std::function<void(const Batch&)> before_step_ ABSL_GUARDED_BY(mutex_);
  ModelConfig config_;
  KvGeometry kv_;
  std::vector<std::byte> memory_;
  std::unique_ptr<HostKvMemory> kv_memory_;
};

// A prompt's KV as the stages hold it: for every writer the bytes of its layers, page by page.
struct PromptKv {
  PromptKv(const KvLayout& layout, int pages, int seed) {
    for (const KvWriter& writer : kWriters) {
      std::vector<std::byte> band(layout.BandBytes(writer.layers) * static_cast<size_t>(pages));
      for (size_t i = 0; i < band.size(); ++i) {
        band[i] = static_cast<std::byte>(static_cast<size_t>(seed) + i * 3);
        sum += static_cast<uint64_t>(band[i]);
      }
      bands.push_back(std::move(band));
    }
  }
  std::vector<std::vector<std::byte>> bands;
  uint64_t sum = 0;
};

// All writers are the test.
class FixturePeers final : public worker::Peers {
 public:
  std::optional<PeerId> Find(const InstanceRef&) const override { return stages; }
  std::vector<PeerId> Decodes() const override { return {}; }
  PeerId stages = 0;
};

class DecodeServiceTest : public testing::Test, public MessageHandler {
 protected:
  void SetUp() override {
    plane_ = DataPlane::Create({}).value();
    stages_ = DataPlane::Create({}).value();
    peers_.stages = plane_->Connect(stages_->address()).value();
    ASSERT_TRUE(stages_->Register(MessageKind::kKvControl, this).ok());
    Begin({});
  }
  void Begin(const std::function<void(prefill::PrefillOptions&)>& change) {
    prefill::PrefillOptions options;
    options.self = kSelf;
    options.planner.max_open_requests = 4;
    options.planner.max_queued_requests = 4;
    options.planner.max_context_tokens = 40;
    options.planner.reserved_decode_tokens = 512;
    options.planner.feeds_ahead = true;
    options.kv_lease_ms = kPatienceMs;
    if (change) change(options);
    auto service =
        CreateDecodeService(options, {executor_.get(), plane_.get(), &peers_, &metrics_});
    ASSERT_TRUE(service.ok()) << service.status();
    service_ = *std::move(service);
    while (!service_->ready()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    peer_ = stages_->Connect(plane_->address()).value();
    stub_ = v1::Decode::NewStub(grpc::CreateChannel(
        "127.0.0.1:" + std::to_string(service_->grpc_port()), grpc::InsecureChannelCredentials()));
  }
  void TearDown() override {
    EXPECT_TRUE(service_->Drain(kPatienceMs)) << "pages or leases did not come back";
    EXPECT_TRUE(service_->Liveness().ok()) << service_->Liveness();
    service_->Stop();
    plane_->Shutdown();
    stages_->Shutdown();
  }

  static v1::ReserveRequest Request(uint64_t attempt, int prompt = 6, int max_tokens = 4) {
    v1::ReserveRequest request;
    request.set_attempt_id(attempt);
    for (int i = 0; i < prompt; ++i) {  // A prompt of its own.
      request.add_prompt_token_ids(static_cast<int32_t>((7 * attempt + 3 * i) % kVocab));
    }
    request.mutable_sampling()->set_temperature(0);
    request.mutable_sampling()->set_seed(1);
    request.mutable_sampling()->set_max_tokens(max_tokens);
    for (const KvWriter& writer : kWriters) *request.add_writers() = rpc::ToProto(writer);
    request.set_timeout_ms(kPatienceMs);
    return request;
  }
  absl::StatusOr<Ticket> Reserve(const v1::ReserveRequest& request) {
    grpc::ClientContext context;
    v1::ReserveResponse response;
    const grpc::Status status = stub_->Reserve(&context, request, &response);
    if (!status.ok()) return rpc::FromGrpc(status);
    return rpc::FromProto(response.ticket(), "ticket");
  }

  // Sends `kv` towards the ticket's pages, one message for each writer and page, commits last.
  void HandOver(const Ticket& ticket, const PromptKv& kv, int32_t first_token) {
    for (size_t w = 0; w < kWriters.size(); ++w) {
      const size_t page_bytes = layout_.BandBytes(kWriters[w].layers);
      uint64_t checksums = 0;
      for (int page = 0; page < ticket.prompt_pages; ++page) {
        const auto bytes =
            std::span(kv.bands[w]).subspan(static_cast<size_t>(page) * page_bytes, page_bytes);
        checksums += XXH3_64bits(bytes.data(), bytes.size());
        SendPage(ticket, kWriters[w], page, bytes);
      }
      SendCommit(ticket, w, checksums, first_token);
    }
  }
  void SendCommit(const Ticket& ticket, size_t w, uint64_t checksums, int32_t first_token) {
    KvCommit commit{.slot = ticket.slot,
                    .generation = ticket.generation,
                    .decode_incarnation = kSelf.incarnation,
                    .writer_incarnation = kWriters[w].instance.incarnation,
                    .layers = kWriters[w].layers,
                    .page_count = ticket.prompt_pages,
                    .checksum_sum = checksums};
    commit.writer_id = kWriters[w].instance.id;
    commit.has_first_token = w + 1 == kWriters.size();
    if (commit.has_first_token) commit.first_token = {first_token, -0.25F, {{3, -1.0F}}};
    Send({MessageKind::kKvControl, EncodeKvCommit(commit), {}, nullptr});
  }
  // The next receipt that comes (bounded).
  KvReceipt NextReceipt() {
    MutexLock lock(&receipts_mutex_);
    const bool came = receipts_mutex_.AwaitFor(
        std::chrono::milliseconds(kPatienceMs),
        [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(receipts_mutex_) { return !receipts_.empty(); });
    EXPECT_TRUE(came) << "no receipt";
    if (!came) return {};
    KvReceipt receipt = receipts_.front();
    receipts_.pop_front();
    return receipt;
  }
  // How many greetings have come so far, all of this service; waits until there are `count`.
  size_t AwaitGreetings(size_t count) {
    MutexLock lock(&receipts_mutex_);
    (void)receipts_mutex_.AwaitFor(std::chrono::milliseconds(kPatienceMs),
                                   [this, count]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(receipts_mutex_) {
                                     return greetings_.size() >= count;
                                   });
    for (const InstanceRef& sender : greetings_) EXPECT_EQ(sender, kSelf);
    return greetings_.size();
  }
  std::optional<Placement> OnHeader(std::span<const std::byte> header, size_t) override {
    const auto control = DecodeKvControl(header);
    EXPECT_TRUE(control.ok()) << control.status();
    MutexLock lock(&receipts_mutex_);
    if (const auto* greeting = std::get_if<KvHeartbeat>(&*control)) {
      greetings_.push_back(greeting->sender);
    } else {
      receipts_.push_back(std::get<KvReceipt>(*control));
    }
    return Placement{};
  }
  void OnPlaced(uint64_t, const absl::Status&) override {}
  void SendPage(const Ticket& ticket, const KvWriter& writer, int page,
                std::span<const std::byte> bytes) {
    const KvDataHeader header{.slot = ticket.slot,
                              .generation = ticket.generation,
                              .decode_incarnation = kSelf.incarnation,
                              .writer_incarnation = writer.instance.incarnation,
                              .layers = writer.layers,
                              .first_page = page,
                              .page_count = 1,
                              .bytes = bytes.size(),
                              .checksum = XXH3_64bits(bytes.data(), bytes.size())};
    Send({MessageKind::kKvPages, EncodeKvData(header), {bytes}, nullptr});
  }
  // Waits until the message has been handed over to UCX, so that its bytes may go.
  void Send(Outgoing message) {
    std::promise<absl::Status> sent;
    message.on_sent = [&sent](const absl::Status& status) { sent.set_value(status); };
    stages_->Send(peer_, std::move(message));
    const absl::Status status = sent.get_future().get();
    EXPECT_TRUE(status.ok()) << status;
  }

  struct Answer {
    std::vector<v1::DecodeToken> tokens;
    v1::FinishReason reason = v1::FINISH_REASON_UNSPECIFIED;
    absl::Status status;
    std::vector<int32_t> ids() const {
      std::vector<int32_t> ids;
      for (const auto& token : tokens) ids.push_back(token.token_id());
      return ids;
    }
  };
  // Reads a stream to its end; `on_token` may cancel the context.
  Answer Generate(uint64_t attempt, uint64_t generation,
                  const std::function<void(grpc::ClientContext&)>& on_token = nullptr) {
    grpc::ClientContext context;
    v1::DecodeGenerateRequest request;
    request.set_attempt_id(attempt);
    request.set_generation(generation);
    auto reader = stub_->Generate(&context, request);
    Answer answer;
    v1::DecodeGenerateResponse response;
    while (reader->Read(&response)) {
      if (response.has_finished()) {
        answer.reason = response.finished().reason();
      } else {
        answer.tokens.push_back(response.token());
        if (on_token) on_token(context);
      }
    }
    answer.status = rpc::FromGrpc(reader->Finish());
    return answer;
  }
  static std::vector<int32_t> Expected(const PromptKv& kv, int32_t first, int prompt, int count) {
    std::vector<int32_t> ids{first};
    while (static_cast<int>(ids.size()) < count) {
      const int position = prompt + static_cast<int>(ids.size()) - 1;
      ids.push_back(FakeModel::Next(ids.back(), position, kv.sum));
    }
    return ids;
  }
  void Abort(uint64_t attempt) {
    grpc::ClientContext context;
    v1::DecodeAbortRequest request;
    request.set_attempt_id(attempt);
    request.set_reason("the test says so");
    v1::DecodeAbortResponse response;
    EXPECT_TRUE(stub_->Abort(&context, request, &response).ok());
  }

  FakeModel* const model_ = new FakeModel();  // The executor's.
  const std::unique_ptr<Executor> executor_ =
      MakeTestExecutor(std::unique_ptr<StageModel>(model_), "decode.step");
  const KvLayout layout_{3, 1, 2, 4, 4};
  Metrics metrics_{{.role = MetricRole::kDecode, .model_name = "fake", .instance_id = "decode-0"}};
  std::unique_ptr<DataPlane> plane_;
  std::unique_ptr<DataPlane> stages_;
  FixturePeers peers_;
  Mutex receipts_mutex_;
  std::deque<KvReceipt> receipts_ ABSL_GUARDED_BY(receipts_mutex_);
  std::vector<InstanceRef> greetings_ ABSL_GUARDED_BY(receipts_mutex_);
  std::unique_ptr<prefill::PrefillService> service_;
  PeerId peer_ = 0;
  std::unique_ptr<v1::Decode::Stub> stub_;
};

}  // namespace baton::decode

#endif  // SERVICES_DECODE_TESTING_DECODE_FIXTURE_H_
