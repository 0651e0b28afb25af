// The fixture of the tests of a whole router: the real service with fake workers, over gRPC.
#ifndef SERVICES_ROUTER_TESTING_ROUTER_SERVICE_FIXTURE_H_
#define SERVICES_ROUTER_TESTING_ROUTER_SERVICE_FIXTURE_H_

#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/config/options.h"
#include "services/router/core/test_cluster.h"
#include "services/router/router_service.h"
#include "services/router/testing/fake_workers.h"

namespace baton::router {

// One that writes conversations down as ChatML.
inline std::unique_ptr<Tokenizer> LoadTokenizer() {
  std::ifstream file("common/tokenizer/testdata/qwen2_tokenizer.json");
  nlohmann::json json = nlohmann::json::parse(file);
  int id = json["added_tokens"].back()["id"];
  for (const char* token : {"<|im_start|>", "<|im_end|>"}) {
    nlohmann::json added = json["added_tokens"].front();
    added["content"] = token;
    added["id"] = ++id;
    json["added_tokens"].push_back(std::move(added));
  }
  auto tokenizer = Tokenizer::LoadFromJson(json.dump());
  BATON_CHECK(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

// What a client got of one call.
struct Answer {
  std::string text;  // With what Finished brought.
  std::vector<int32_t> token_ids;
  v1::Finished finished;
  int finished_count = 0;
  grpc::Status status;
};

class RouterServiceTest : public ::testing::Test {
 protected:
  explicit RouterServiceTest(int64_t pairing_timeout_ms = 50) {
    auto tokenizer = LoadTokenizer();
    hello_ = *tokenizer->Encode("hello world", false, false);
    RouterConfig config;
    config.options = config::ParseOptions(config::Command::kRouter, {{"--model-path=tiny"}, {}, {}})
                         .value()
                         .values;
    config.options.set_port(0);
    config.options.set_grpc_port(0);
    config.options.set_cluster_port(0);
    config.options.set_lease_ms(3'600'000);  // The fakes beat only when told.
    config.options.set_pairing_timeout_ms(pairing_timeout_ms);
    config.options.set_load_balance_policy("least_load");  // By turns while all are idle.
    config.served_model_name = "tiny";
    config.vocab_size = tokenizer->vocab_size();
    config.max_context_tokens = 1024;
    auto chat = MakeChatTemplate("auto", *tokenizer);
    BATON_CHECK(chat.ok()) << chat.status();
    auto router = RouterService::Start(config, std::move(tokenizer), *std::move(chat));
    BATON_CHECK(router.ok()) << router.status();
    router_ = *std::move(router);
    channel_ = grpc::CreateChannel("127.0.0.1:" + std::to_string(router_->grpc_port()),
                                   grpc::InsecureChannelCredentials());
    cluster_ = v1::Cluster::NewStub(
        grpc::CreateChannel("127.0.0.1:" + std::to_string(router_->cluster_port()),
                            grpc::InsecureChannelCredentials()));
    inference_ = v1::Inference::NewStub(channel_);
  }

  FakeWorker& Add(const WorkerInfo& info, const FakeBehaviour& behaviour) {
    workers_.push_back(std::make_unique<FakeWorker>(info, behaviour));
    return *workers_.back();
  }

  // Registers all workers and lets each hear of its members before it is ready with them.
  void JoinAll() {
    for (const auto& worker : workers_) ASSERT_TRUE(worker->Register(*cluster_).ok());
    for (int round = 0; round < 2; ++round) {
      for (const auto& worker : workers_) ASSERT_TRUE(worker->Beat().ok());
    }
  }
  void JoinPair(const FakeBehaviour& prefill, const FakeBehaviour& decode) {
    Add(TestStage("c0", 0, 1), prefill);
    Add(TestDecode("d0"), decode);
    JoinAll();
  }
  FakeRecord& Prefill(size_t i = 0) { return workers_[2 * i]->record(); }
  FakeRecord& Decode(size_t i = 0) { return workers_[2 * i + 1]->record(); }

  static v1::GenerateRequest Request(const std::string& id = "") {
    v1::GenerateRequest request;
    request.set_request_id(id);
    request.set_text("hello");
    request.mutable_sampling()->set_max_tokens(50);
    return request;
  }

  // Reads a whole answer.
  Answer Generate(const v1::GenerateRequest& request) {
    grpc::ClientContext context;
    auto reader = inference_->Generate(&context, request);
    return ReadAll(*reader);
  }
  static Answer ReadAll(grpc::ClientReader<v1::GenerateResponse>& reader) {
    Answer answer;
    v1::GenerateResponse message;
    while (reader.Read(&message)) {
      answer.text += message.tokens().text();
      for (const int32_t id : message.tokens().token_ids()) answer.token_ids.push_back(id);
      if (message.has_finished()) {
        answer.finished = message.finished();
        answer.text += message.finished().text();
        ++answer.finished_count;
      }
    }
    answer.status = reader.Finish();
    return answer;
  }

  std::vector<int32_t> hello_;  // "hello world"
  std::unique_ptr<RouterService> router_;
  std::vector<std::unique_ptr<FakeWorker>> workers_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Cluster::Stub> cluster_;
  std::unique_ptr<v1::Inference::Stub> inference_;
};

}  // namespace baton::router

#endif  // SERVICES_ROUTER_TESTING_ROUTER_SERVICE_FIXTURE_H_
