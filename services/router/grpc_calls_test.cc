// The whole-answer and chat calls of baton.v1.Inference, over a real router with fake workers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/rpc/grpc_status.h"
#include "services/router/http/openai_request.h"
#include "services/router/testing/router_service_fixture.h"

namespace baton::router {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

struct Whole {
  v1::WholeAnswer answer;
  grpc::Status status;
};

class GrpcCallsTest : public RouterServiceTest {
 protected:
  Whole GenerateOnce(const v1::GenerateRequest& request) {
    Whole whole;
    grpc::ClientContext context;
    whole.status = inference_->GenerateOnce(&context, request, &whole.answer);
    return whole;
  }
  Whole ChatOnce(const v1::ChatRequest& request) {
    Whole whole;
    grpc::ClientContext context;
    whole.status = inference_->ChatOnce(&context, request, &whole.answer);
    return whole;
  }
  Answer Chat(const v1::ChatRequest& request) {
    grpc::ClientContext context;
    auto reader = inference_->Chat(&context, request);
    return ReadAll(*reader);
  }

  // What the HTTP front answers to a body of /v1/chat/completions that is refused.
  absl::Status OverHttp(const std::string& body) {
    auto parsed = ParseOpenAiRequest(Endpoint::kChatCompletions, body, UnknownFields::kRefuse);
    if (!parsed.ok()) return parsed.status();
    parsed->call.prompt = std::move(parsed->prompts[0]);
    return router_->gateway().Submit(std::move(parsed->call), nullptr).status();
  }
};

v1::ChatMessage& Say(v1::ChatRequest& request, const std::string& role,
                     const std::string& content) {
  v1::ChatMessage& message = *request.add_messages();
  message.set_role(role);
  message.set_content(content);
  return message;
}

v1::ChatRequest Question() {
  v1::ChatRequest request;
  Say(request, "user", "hello");
  request.mutable_sampling()->set_max_tokens(50);
  return request;
}

TEST_F(GrpcCallsTest, OneMessageHasWhatTheStreamBrings) {
  JoinPair({}, {.tokens = hello_});
  v1::GenerateRequest request = Request("mine");
  request.mutable_sampling()->set_logprobs(true);
  const Whole whole = GenerateOnce(request);
  ASSERT_TRUE(whole.status.ok()) << whole.status.error_message();
  const Answer streamed = Generate(Request());
  EXPECT_EQ(whole.answer.request_id(), "mine");
  EXPECT_EQ(whole.answer.text(), streamed.text);
  EXPECT_THAT(whole.answer.token_ids(), ::testing::ElementsAreArray(streamed.token_ids));
  EXPECT_EQ(whole.answer.logprobs_size(), whole.answer.token_ids_size());
  const v1::Finished& finished = whole.answer.finished();
  EXPECT_EQ(finished.text(), "");
  EXPECT_EQ(finished.reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(finished.usage().completion_tokens(), static_cast<int>(hello_.size()));
  EXPECT_EQ(finished.prefill_chain(), "c0");
  EXPECT_GT(finished.timing().ttft_us(), 0);
}

TEST_F(GrpcCallsTest, TextThatWasHeldBackEndsTheWholeText) {
  JoinPair({}, {.tokens = hello_});
  v1::GenerateRequest request = Request();
  request.mutable_sampling()->add_stop("world and more");
  const Whole whole = GenerateOnce(request);
  ASSERT_TRUE(whole.status.ok()) << whole.status.error_message();
  EXPECT_EQ(whole.answer.text(), "hello world");
}

TEST_F(GrpcCallsTest, AClientThatCancelsOneMessageEndsBothLegs) {
  JoinPair({.start_hangs = true}, {.tokens = hello_, .hang_after_tokens = true});
  grpc::ClientContext context;
  grpc::Status status;
  std::thread client([&] {
    v1::WholeAnswer answer;
    status = inference_->GenerateOnce(&context, Request(), &answer);
  });
  Prefill().Await([](const auto& seen) { return seen.starts.size() == 1; });
  context.TryCancel();
  client.join();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
  Decode().Await([](const auto& seen) { return seen.decode_aborts.size() == 1; });
}

TEST_F(GrpcCallsTest, TheDeadlineOfOneMessageEndsBothLegs) {
  JoinPair({.start_hangs = true}, {.hang_after_tokens = true});
  // On a busy machine a deadline may pass before there are legs.
  for (int deadline_ms = 50; Decode().Get().reserves.empty(); deadline_ms *= 2) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(deadline_ms));
    v1::WholeAnswer answer;
    EXPECT_EQ(inference_->ChatOnce(&context, Question(), &answer).error_code(),
              grpc::StatusCode::DEADLINE_EXCEEDED);
  }
  Decode().Await([](const auto& seen) { return !seen.decode_aborts.empty(); });
}

TEST_F(GrpcCallsTest, AWorkersFailureEndsOneMessageWithItsName) {
  JoinPair({.start_hangs = true},
           {.tokens = hello_, .end = grpc::Status(grpc::StatusCode::UNAVAILABLE, "gone")});
  const Whole whole = GenerateOnce(Request());
  EXPECT_EQ(whole.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(InstanceOf(rpc::FromGrpc(whole.status)), "d0");
}

TEST_F(GrpcCallsTest, AConversationIsWhatHttpMakesOfIt) {
  JoinPair({}, {.tokens = hello_});
  const auto prompt_of = [this](size_t start) {
    const FakeRecord::Seen seen = Prefill().Get();
    const auto& ids = seen.starts.at(start).fixed_prompt_token_ids();
    return std::vector<int32_t>(ids.begin(), ids.end());
  };
  v1::ChatRequest request;
  Say(request, "developer", "Be brief.");
  v1::ChatMessage& user = *request.add_messages();
  user.set_role("user");
  for (const char* text : {"hello ", "world"}) {
    v1::ContentPart& part = *user.add_parts();
    part.set_type("text");
    part.set_text(text);
  }
  request.add_messages()->set_role("assistant");
  Say(request, "user", "again");
  request.mutable_sampling()->set_max_tokens(50);
  const Whole whole = ChatOnce(request);
  ASSERT_TRUE(whole.status.ok()) << whole.status.error_message();
  EXPECT_EQ(whole.answer.text(), "hello world");
  const Answer streamed = Chat(request);
  EXPECT_EQ(streamed.text, "hello world");
  EXPECT_EQ(streamed.finished_count, 1);
  ASSERT_THAT(Prefill().Get().starts, SizeIs(2));
  EXPECT_EQ(prompt_of(0), prompt_of(1));

  const auto parsed =
      ParseOpenAiRequest(Endpoint::kChatCompletions,
                         R"({"messages": [{"role": "developer", "content": "Be brief."},
                       {"role": "user", "content": [{"type": "text", "text": "hello "},
                                                    {"type": "text", "text": "world"}]},
                       {"role": "assistant", "content": null},
                       {"role": "user", "content": "again"}]})",
                         UnknownFields::kRefuse);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  GenerateCall call = parsed->call;
  call.prompt = parsed->prompts[0];
  const auto ids = router_->gateway().Encode(call);
  ASSERT_TRUE(ids.ok()) << ids.status();
  EXPECT_EQ(prompt_of(0), *ids);

  request.set_add_generation_prompt(false);
  ASSERT_TRUE(ChatOnce(request).status.ok());
  EXPECT_LT(prompt_of(2).size(), ids->size());
}

struct BadChat {
  const char* body;  // What HTTP gets.
  std::function<void(v1::ChatRequest&)> make;
};

TEST_F(GrpcCallsTest, ABadChatIsRefusedInHttpsWords) {
  JoinPair({}, {.tokens = hello_});
  const auto hello = [](auto change) {
    return [change](v1::ChatRequest& request) {
      Say(request, "user", "hello");
      change(request);
    };
  };
  const BadChat rows[] = {
      {R"({"messages": []})", [](v1::ChatRequest&) {}},
      {R"({"messages": [{"role": "user", "content": null}]})",
       [](v1::ChatRequest& request) { request.add_messages()->set_role("user"); }},
      {R"({"messages": [{"role": "", "content": "a"}]})",
       [](v1::ChatRequest& request) { Say(request, "", "a"); }},
      {R"({"messages": [{"role": "user", "content": "a"}, {"role": "robot", "content": "a"}]})",
       [](v1::ChatRequest& request) {
         Say(request, "user", "a");
         Say(request, "robot", "a");
       }},
      {R"({"messages": [{"role": "user", "content": [{"type": "image_url", "text": ""}]}]})",
       [](v1::ChatRequest& request) {
         v1::ChatMessage& message = *request.add_messages();
         message.set_role("user");
         message.add_parts()->set_type("image_url");
       }},
      {R"({"messages": [{"role": "user", "content": "hello"}], "top_p": 2})",
       hello([](auto& request) { request.mutable_sampling()->set_top_p(2); })},
      {R"({"messages": [{"role": "user", "content": "hello"}], "max_tokens": -1})",
       hello([](auto& request) { request.mutable_sampling()->set_max_tokens(-1); })},
      {R"({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 100000})",
       hello([](auto& request) { request.mutable_sampling()->set_max_tokens(100'000); })},
      {R"({"messages": [{"role": "user", "content": "hello"}], "top_logprobs": 3})",
       hello([](auto& request) { request.mutable_sampling()->set_top_logprobs(3); })},
      {R"({"messages": [{"role": "user", "content": "hello"}], "stop": ["", "b"]})",
       hello([](auto& request) {
         request.mutable_sampling()->add_stop("");
         request.mutable_sampling()->add_stop("b");
       })},
      {R"({"messages": [{"role": "user", "content": "hello"}], "model": "other"})",
       hello([](auto& request) { request.set_model("other"); })},
      {R"({"messages": [{"role": "user", "content": "hello"}], "truncate_prompt_tokens": 0})",
       hello([](auto& request) { request.set_truncate_prompt_tokens(0); })},
  };
  for (const BadChat& row : rows) {
    SCOPED_TRACE(row.body);
    v1::ChatRequest request;
    row.make(request);
    const absl::Status http = OverHttp(row.body);
    ASSERT_FALSE(http.ok());
    const absl::Status whole = rpc::FromGrpc(ChatOnce(request).status);
    EXPECT_EQ(whole.code(), http.code());
    EXPECT_EQ(whole.message(), http.message());
    EXPECT_EQ(FieldOf(whole), FieldOf(http));
    EXPECT_EQ(Chat(request).status.error_message(), http.message());
  }
  EXPECT_THAT(Decode().Get().reserves, SizeIs(0));
}

TEST_F(GrpcCallsTest, ContentStandsInOnePlace) {
  v1::ChatRequest request;
  Say(request, "user", "hello").add_parts()->set_type("text");
  const Whole whole = ChatOnce(request);
  EXPECT_EQ(whole.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(FieldOf(rpc::FromGrpc(whole.status)), "messages[0].parts");
}

TEST_F(GrpcCallsTest, EveryCallAsksForTheKey) {
  auto tokenizer = LoadTokenizer();
  RouterConfig config = router_->config();
  config.options.set_api_key("secret");
  auto chat = MakeChatTemplate("auto", *tokenizer);
  ASSERT_TRUE(chat.ok());
  const auto guarded = RouterService::Start(config, std::move(tokenizer), *std::move(chat));
  ASSERT_TRUE(guarded.ok()) << guarded.status();
  const auto stub = v1::Inference::NewStub(grpc::CreateChannel(
      "127.0.0.1:" + std::to_string((*guarded)->grpc_port()), grpc::InsecureChannelCredentials()));
  const auto codes = [&stub](const std::string& key) {
    grpc::ClientContext contexts[3];
    if (!key.empty()) {
      for (auto& context : contexts) context.AddMetadata("authorization", "Bearer " + key);
    }
    v1::WholeAnswer answer;
    const auto once = stub->GenerateOnce(&contexts[0], Request(), &answer).error_code();
    const auto chat_once = stub->ChatOnce(&contexts[1], Question(), &answer).error_code();
    auto reader = stub->Chat(&contexts[2], Question());
    return std::vector{once, chat_once, ReadAll(*reader).status.error_code()};
  };
  constexpr auto kRefused = grpc::StatusCode::UNAUTHENTICATED;
  constexpr auto kNoWorkers = grpc::StatusCode::UNAVAILABLE;
  EXPECT_THAT(codes(""), ElementsAre(kRefused, kRefused, kRefused));
  EXPECT_THAT(codes("wrong"), ElementsAre(kRefused, kRefused, kRefused));
  EXPECT_THAT(codes("secret"), ElementsAre(kNoWorkers, kNoWorkers, kNoWorkers));
}

}  // namespace
}  // namespace baton::router
