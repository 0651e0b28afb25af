#include "services/decode/decode_service.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <future>
#include <numeric>
#include <optional>
#include <set>
#include <vector>

#include "common/base/status.h"
#include "common/base/sync.h"
#include "services/decode/testing/decode_fixture.h"

namespace baton::decode {
namespace {

TEST_F(DecodeServiceTest, FromReservationToTheLastToken) {
  const auto ticket = Reserve(Request(1));
  ASSERT_TRUE(ticket.ok()) << ticket.status();
  EXPECT_EQ(ticket->decode, kSelf);
  EXPECT_EQ(ticket->prompt_pages, 2);
  const PromptKv kv(layout_, 2, 5);
  HandOver(*ticket, kv, 17);
  const Answer answer = Generate(1, ticket->generation);
  EXPECT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.ids(), Expected(kv, 17, 6, 4));
  EXPECT_EQ(answer.reason, v1::FINISH_REASON_LENGTH);
  EXPECT_FALSE(answer.tokens[0].has_logprobs()) << "nobody asked";
}

TEST_F(DecodeServiceTest, StreamMayOpenBeforeTheKvComes) {
  const auto ticket = Reserve(Request(1));
  ASSERT_TRUE(ticket.ok()) << ticket.status();
  auto answer = std::async(std::launch::async, [&] { return Generate(1, ticket->generation); });
  const PromptKv kv(layout_, 2, 9);
  HandOver(*ticket, kv, 3);
  EXPECT_EQ(answer.get().ids(), Expected(kv, 3, 6, 4));
}

TEST_F(DecodeServiceTest, LogprobsComeIfAskedFor) {
  v1::ReserveRequest request = Request(1);
  request.mutable_sampling()->set_logprobs(true);
  request.mutable_sampling()->set_top_logprobs(1);
  const auto ticket = Reserve(request);
  ASSERT_TRUE(ticket.ok()) << ticket.status();
  HandOver(*ticket, PromptKv(layout_, 2, 5), 17);
  const Answer answer = Generate(1, ticket->generation);
  ASSERT_EQ(answer.tokens.size(), 4u);
  EXPECT_EQ(answer.tokens[0].logprobs().logprob(), -0.25F);
  ASSERT_EQ(answer.tokens[1].logprobs().top_size(), 1);
  EXPECT_EQ(answer.tokens[1].logprobs().top(0).token_id(), answer.tokens[1].token_id());
}

// What is generated under penalties, by their definition. The prompt's last drawn_tokens are text.
std::vector<int32_t> Penalised(const PromptKv& kv, const v1::ReserveRequest& request,
                               int32_t first) {
  const v1::SamplingParams& sampling = request.sampling();
  const int drawn = sampling.drawn_tokens();
  const std::vector<int32_t> prompt(request.prompt_token_ids().begin(),
                                    request.prompt_token_ids().end() - drawn);
  std::vector<int32_t> ids(request.prompt_token_ids().end() - drawn,
                           request.prompt_token_ids().end());
  ids.push_back(first);
  while (static_cast<int>(ids.size()) < sampling.max_tokens()) {
    const int position = request.prompt_token_ids_size() - drawn + static_cast<int>(ids.size()) - 1;
    std::vector<double> logits(kVocab, 0);
    logits[static_cast<size_t>(FakeModel::Next(ids.back(), position, kv.sum))] = 10;
    for (const v1::LogitBias& bias : sampling.logit_bias()) logits[bias.token_id()] += bias.bias();
    for (int32_t id = 0; id < kVocab; ++id) {
      const auto count = std::count(ids.begin(), ids.end(), id);
      if (count > 0 || std::count(prompt.begin(), prompt.end(), id) > 0) {
        logits[id] *=
            logits[id] > 0 ? 1 / sampling.repetition_penalty() : sampling.repetition_penalty();
      }
      logits[id] -= sampling.frequency_penalty() * static_cast<double>(count);
      logits[id] -= count > 0 ? sampling.presence_penalty() : 0;
    }
    ids.push_back(
        static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
  }
  ids.erase(ids.begin(), ids.begin() + drawn);
  return ids;
}

TEST_F(DecodeServiceTest, PenaltiesKnowWhatWasGeneratedAndThePrompt) {
  const PromptKv kv(layout_, 2, 5);
  uint64_t attempt = 0;
  std::set<std::vector<int32_t>> texts;
  for (const auto& [presence, frequency, repetition] :
       std::vector<std::array<float, 3>>{{0, 0, 1}, {2, 0, 1}, {0, 1.5F, 1}, {0, 0, 1.9F}}) {
    v1::ReserveRequest request = Request(++attempt, 6, 16);
    v1::SamplingParams& sampling = *request.mutable_sampling();
    sampling.set_presence_penalty(presence);
    sampling.set_frequency_penalty(frequency);
    sampling.set_repetition_penalty(repetition);
    for (int i = 0; i < 3; ++i) {
      v1::LogitBias& bias = *sampling.add_logit_bias();
      bias.set_token_id(30 + i);
      bias.set_bias(12.0F - 0.75F * static_cast<float>(i));
    }
    const std::vector<int32_t> ids{30, 31, 5, 5, 6, 7};
    request.mutable_prompt_token_ids()->Assign(ids.begin(), ids.end());
    const auto ticket = Reserve(request);
    ASSERT_TRUE(ticket.ok()) << ticket.status();
    HandOver(*ticket, kv, 17);
    const std::vector<int32_t> text = Generate(attempt, ticket->generation).ids();
    EXPECT_EQ(text, Penalised(kv, request, 17));
    texts.insert(text);
  }
  EXPECT_EQ(texts.size(), 4u) << "each changes the text";
}

TEST_F(DecodeServiceTest, PenaltiesKnowWhatWasDrawnElsewhere) {
  const PromptKv kv(layout_, 2, 5);
  v1::ReserveRequest request = Request(1, 6, 16);
  const std::vector<int32_t> ids{30, 31, 5, 30, 31, 30};
  request.mutable_prompt_token_ids()->Assign(ids.begin(), ids.end());
  v1::SamplingParams& sampling = *request.mutable_sampling();
  sampling.set_drawn_tokens(3);
  sampling.set_frequency_penalty(1.5F);
  sampling.set_repetition_penalty(1.4F);
  for (int i = 0; i < 3; ++i) {
    v1::LogitBias& bias = *sampling.add_logit_bias();
    bias.set_token_id(30 + i);
    bias.set_bias(12.0F - 0.75F * static_cast<float>(i));
  }
  const auto ticket = Reserve(request);
  ASSERT_TRUE(ticket.ok()) << ticket.status();
  HandOver(*ticket, kv, 17);
  const std::vector<int32_t> text = Generate(1, ticket->generation).ids();
  EXPECT_EQ(text.size(), 13u) << "16 with what was drawn";
  EXPECT_EQ(text, Penalised(kv, request, 17));
}

TEST_F(DecodeServiceTest, EndOfSequenceStopsAtTheFirstToken) {
  const auto ticket = Reserve(Request(1));
  ASSERT_TRUE(ticket.ok());
  HandOver(*ticket, PromptKv(layout_, 2, 5), kEos);
  const Answer answer = Generate(1, ticket->generation);
  EXPECT_EQ(answer.ids(), std::vector<int32_t>{kEos});
  EXPECT_EQ(answer.reason, v1::FINISH_REASON_STOP);
}

TEST_F(DecodeServiceTest, DataOfAnotherGenerationIsRefused) {
  const auto ticket = Reserve(Request(1));
  ASSERT_TRUE(ticket.ok());
  Ticket forged = *ticket;
  forged.generation += 1;
  const PromptKv wrong(layout_, 2, 200);
  SendPage(forged, kWriters[0], 0, std::span(wrong.bands[0]).first(layout_.BandBytes({0, 1})));
  const PromptKv kv(layout_, 2, 5);
  HandOver(*ticket, kv, 17);
  EXPECT_EQ(Generate(1, ticket->generation).ids(), Expected(kv, 17, 6, 4));
  EXPECT_EQ(plane_->counters().messages_refused, 1u);
  EXPECT_NE(metrics_.Scrape().find("reason=\"stale_generation\""), std::string::npos);
}

// So that it connects back, and says that it lives, before it has anything to write.
TEST_F(DecodeServiceTest, EveryWriterIsGreetedOnceByAnEndpoint) {
  const auto ticket = Reserve(Request(1));
  ASSERT_TRUE(ticket.ok());
  EXPECT_EQ(AwaitGreetings(kWriters.size()), kWriters.size());
  const PromptKv kv(layout_, 2, 5);
  const auto next = Reserve(Request(2));
  ASSERT_TRUE(next.ok());
  HandOver(*next, kv, 17);
  EXPECT_EQ(Generate(2, next->generation).ids(), Expected(kv, 17, 6, 4));
  EXPECT_EQ(AwaitGreetings(kWriters.size()), kWriters.size());
  Abort(1);
}

TEST_F(DecodeServiceTest, EveryWriterHearsWhatHasBecomeOfItsPart) {
  const auto ticket = Reserve(Request(1));
  ASSERT_TRUE(ticket.ok());
  SendCommit(*ticket, 0, 1, 17);
  SendCommit(*ticket, 0, 1, 17);  // Asks for the receipt.
  KvReceipt receipt = NextReceipt();
  EXPECT_EQ(receipt.writer, kWriters[0].instance);
  EXPECT_EQ(receipt.generation, ticket->generation);
  EXPECT_EQ(receipt.decode_incarnation, kSelf.incarnation);
  EXPECT_EQ(receipt.kind, KvReceiptKind::kMissing);
  EXPECT_EQ(receipt.missing_parts, 2u);
  Abort(1);
  EXPECT_FALSE(Generate(1, ticket->generation).status.ok());
  const auto next = Reserve(Request(2));
  ASSERT_TRUE(next.ok());
  const PromptKv kv(layout_, 2, 5);
  HandOver(*next, kv, 17);
  std::set<InstanceRef> told;  // In any order: the parts of one may be there before the other's.
  for (size_t i = 0; i < kWriters.size(); ++i) {
    receipt = NextReceipt();
    told.insert(receipt.writer);
    EXPECT_EQ(receipt.kind, KvReceiptKind::kComplete);
  }
  EXPECT_EQ(told, (std::set<InstanceRef>{kWriters[0].instance, kWriters[1].instance}));
  EXPECT_EQ(Generate(2, next->generation).ids(), Expected(kv, 17, 6, 4));
  SendCommit(*ticket, 0, 1, 17);  // For the attempt that is over.
  EXPECT_EQ(NextReceipt().kind, KvReceiptKind::kOver);
}

TEST_F(DecodeServiceTest, OtherBytesThanAnnouncedEndTheRequest) {
  const auto ticket = Reserve(Request(1));
  ASSERT_TRUE(ticket.ok());
  const std::vector<std::byte> bytes(layout_.BandBytes({0, 1}));
  KvDataHeader header{.slot = ticket->slot,
                      .generation = ticket->generation,
                      .decode_incarnation = kSelf.incarnation,
                      .writer_incarnation = kWriters[0].instance.incarnation,
                      .layers = {0, 1},
                      .first_page = 0,
                      .page_count = 1,
                      .bytes = bytes.size(),
                      .checksum = 1};
  Send({MessageKind::kKvPages, EncodeKvData(header), {bytes}, nullptr});
  EXPECT_TRUE(absl::IsDataLoss(Generate(1, ticket->generation).status));
}

TEST_F(DecodeServiceTest, TwoRequestsShareSteps) {
  Notification both_committed;
  std::atomic<size_t> widest = 0;
  model_->SetBeforeStep([&](const Batch& batch) {
    both_committed.WaitForNotification();
    widest = std::max<size_t>(widest, batch.slices.size());
  });
  const auto a = Reserve(Request(1, 6, 6));
  const auto b = Reserve(Request(2, 7, 6));
  ASSERT_TRUE(a.ok() && b.ok());
  std::promise<void> first_a;
  std::promise<void> first_b;
  const auto once = [](std::promise<void>& promise) {
    return [&promise, told = false](grpc::ClientContext&) mutable {
      if (!std::exchange(told, true)) promise.set_value();
    };
  };
  auto answer_a =
      std::async(std::launch::async, [&] { return Generate(1, a->generation, once(first_a)); });
  auto answer_b =
      std::async(std::launch::async, [&] { return Generate(2, b->generation, once(first_b)); });
  const PromptKv kv_a(layout_, 2, 1);
  const PromptKv kv_b(layout_, 2, 2);
  HandOver(*a, kv_a, 10);
  HandOver(*b, kv_b, 20);
  first_a.get_future().wait();
  first_b.get_future().wait();
  both_committed.Notify();
  EXPECT_EQ(answer_a.get().ids(), Expected(kv_a, 10, 6, 6)) << "as if it ran alone";
  EXPECT_EQ(answer_b.get().ids(), Expected(kv_b, 20, 7, 6));
  EXPECT_EQ(widest, 2u);
}

TEST_F(DecodeServiceTest, AbortEndsTheStreamAndFreesThePages) {
  const auto ticket = Reserve(Request(1));
  ASSERT_TRUE(ticket.ok());
  auto answer = std::async(std::launch::async, [&] { return Generate(1, ticket->generation); });
  Abort(1);
  const absl::Status status = answer.get().status;
  // The stream may open before or after the abort.
  EXPECT_TRUE(absl::IsCancelled(status) || absl::IsNotFound(status)) << status;
  EXPECT_EQ(LegOf(status), "decode");
  Abort(1);
  Abort(99);
}

TEST_F(DecodeServiceTest, CancellingTheStreamAbortsTheRequest) {
  const auto ticket = Reserve(Request(1, 6, 30));
  ASSERT_TRUE(ticket.ok());
  HandOver(*ticket, PromptKv(layout_, 2, 5), 17);
  const Answer answer =
      Generate(1, ticket->generation, [](grpc::ClientContext& context) { context.TryCancel(); });
  EXPECT_TRUE(absl::IsCancelled(answer.status)) << answer.status;
}

TEST_F(DecodeServiceTest, CancellingAWaitingReservationWithdrawsIt) {
  const auto large = Reserve(Request(1, 20, 20));
  ASSERT_TRUE(large.ok());
  const auto other = Reserve(Request(2, 20, 4));
  ASSERT_TRUE(other.ok());
  grpc::ClientContext context;
  std::promise<grpc::Status> waiting;
  v1::ReserveResponse response;
  const v1::ReserveRequest request = Request(3, 20, 4);
  stub_->async()->Reserve(&context, &request, &response,
                          [&](const grpc::Status& status) { waiting.set_value(status); });
  context.TryCancel();
  EXPECT_EQ(waiting.get_future().get().error_code(), grpc::StatusCode::CANCELLED);
  Abort(1);
  Abort(2);
}

TEST_F(DecodeServiceTest, ReleaseNeedsTheGeneration) {
  const auto ticket = Reserve(Request(1));
  ASSERT_TRUE(ticket.ok());
  const auto release = [this](uint64_t generation) {
    grpc::ClientContext context;
    v1::ReleaseRequest request;
    request.set_attempt_id(1);
    request.set_generation(generation);
    v1::ReleaseResponse response;
    EXPECT_TRUE(stub_->Release(&context, request, &response).ok());
  };
  release(ticket->generation + 1);
  EXPECT_TRUE(absl::IsAlreadyExists(Reserve(Request(1)).status())) << "still held";
  release(ticket->generation);
  EXPECT_TRUE(absl::IsNotFound(Generate(1, ticket->generation).status));
}

TEST_F(DecodeServiceTest, StreamsOfNoTicketAreRefused) {
  EXPECT_TRUE(absl::IsNotFound(Generate(5, 1).status));
  const auto ticket = Reserve(Request(1));
  ASSERT_TRUE(ticket.ok());
  const absl::Status stale = Generate(1, ticket->generation + 1).status;
  EXPECT_TRUE(absl::IsFailedPrecondition(stale)) << stale;
  EXPECT_EQ(InstanceOf(stale), "decode-0");
  const PromptKv kv(layout_, 2, 5);
  HandOver(*ticket, kv, 17);
  EXPECT_EQ(Generate(1, ticket->generation).ids(), Expected(kv, 17, 6, 4)) << "unharmed";
}

TEST_F(DecodeServiceTest, BadRequestsNameTheField) {
  using Change = std::function<void(v1::ReserveRequest&)>;
  const std::vector<std::pair<std::string, Change>> rows{
      {"attempt_id", [](auto& r) { r.set_attempt_id(0); }},
      {"prompt_token_ids", [](auto& r) { r.clear_prompt_token_ids(); }},
      {"prompt_token_ids", [](auto& r) { r.mutable_prompt_token_ids()->Resize(40, 1); }},
      {"prompt_token_ids[2]", [](auto& r) { r.set_prompt_token_ids(2, kVocab); }},
      {"prompt_token_ids[0]", [](auto& r) { r.set_prompt_token_ids(0, -1); }},
      {"sampling.drawn_tokens",
       [](auto& r) {
         r.mutable_sampling()->set_max_tokens(20);
         r.mutable_sampling()->set_drawn_tokens(6);
       }},
      {"timeout_ms", [](auto& r) { r.set_timeout_ms(0); }},
      {"timeout_ms", [](auto& r) { r.set_timeout_ms(std::numeric_limits<int64_t>::max()); }},
      {"sampling.seed", [](auto& r) { r.mutable_sampling()->clear_seed(); }},
      {"sampling.top_p", [](auto& r) { r.mutable_sampling()->set_top_p(2); }},
      {"sampling.max_tokens", [](auto& r) { r.mutable_sampling()->set_max_tokens(0); }},
      {"sampling.stop_token_ids",
       [](auto& r) { r.mutable_sampling()->add_stop_token_ids(kVocab); }},
      {"writers", [](auto& r) { r.clear_writers(); }},
      {"writers", [](auto& r) { r.mutable_writers(1)->mutable_layers()->set_end(4); }},
      {"writers[1].layers", [](auto& r) { r.mutable_writers(1)->mutable_layers()->set_end(-4); }},
      {"writers[0].instance.incarnation",
       [](auto& r) { r.mutable_writers(0)->mutable_instance()->set_incarnation(0); }},
  };
  for (size_t i = 0; i < rows.size(); ++i) {
    v1::ReserveRequest request = Request(100 + i);
    rows[i].second(request);
    const absl::Status status = Reserve(request).status();
    EXPECT_EQ(FieldOf(status), rows[i].first) << "row " << i << ": " << status;
    EXPECT_EQ(LegOf(status), "decode") << "row " << i;
  }
}

TEST_F(DecodeServiceTest, AServiceThatCannotStartIsRegisteredNowhere) {
  const auto plane = DataPlane::Create({}).value();
  const prefill::PrefillService::Parts parts{executor_.get(), plane.get(), &peers_, &metrics_};
  prefill::PrefillOptions options;
  options.self = {"decode-9", 9};
  options.planner.max_open_requests = 4;
  options.planner.max_context_tokens = 40;
  options.grpc_port = service_->grpc_port();
  EXPECT_EQ(CreateDecodeService(options, parts).status().code(), absl::StatusCode::kUnavailable);
  options.grpc_port = 0;
  struct Nobody : MessageHandler {
    std::optional<Placement> OnHeader(std::span<const std::byte>, size_t) override {
      return std::nullopt;
    }
    void OnPlaced(uint64_t, const absl::Status&) override {}
  } nobody;
  ASSERT_TRUE(plane->Register(MessageKind::kKvControl, &nobody).ok());
  EXPECT_EQ(CreateDecodeService(options, parts).status().code(), absl::StatusCode::kAlreadyExists);
  plane->Unregister(MessageKind::kKvControl);
  const auto service = CreateDecodeService(options, parts);
  EXPECT_TRUE(service.ok()) << service.status();
  (*service)->Stop();
  plane->Shutdown();
}

TEST_F(DecodeServiceTest, StopEndsWhatRunsWithUnavailable) {
  Notification may_step;
  model_->SetBeforeStep([&](const Batch&) { may_step.WaitForNotification(); });
  const auto ticket = Reserve(Request(1, 6, 30));
  ASSERT_TRUE(ticket.ok());
  HandOver(*ticket, PromptKv(layout_, 2, 5), 17);
  Notification first_token;
  auto answer = std::async(std::launch::async, [&] {
    return Generate(1, ticket->generation, [&](grpc::ClientContext&) { first_token.Notify(); });
  });
  first_token.WaitForNotification();
  auto stopped = std::async(std::launch::async, [&] { service_->Stop(); });
  EXPECT_TRUE(absl::IsUnavailable(answer.get().status)) << "while its step still runs";
  may_step.Notify();
  stopped.get();
}

class SilentStageTest : public DecodeServiceTest {
 protected:
  void SetUp() override {
    plane_ = DataPlane::Create({}).value();
    stages_ = DataPlane::Create({}).value();
    Begin([](prefill::PrefillOptions& options) { options.kv_lease_ms = 100; });
  }
};

TEST_F(SilentStageTest, AReservationWithoutAStreamGivesItsPagesBack) {
  v1::ReserveRequest request = Request(1);
  request.set_timeout_ms(kPatienceMs * 10);
  ASSERT_TRUE(Reserve(request).ok());
  EXPECT_TRUE(service_->Drain(kPatienceMs));
}

TEST_F(SilentStageTest, EndsTheRequestAndNamesTheStage) {
  const auto ticket = Reserve(Request(1));
  ASSERT_TRUE(ticket.ok());
  const absl::Status status = Generate(1, ticket->generation).status;
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_EQ(LegOf(status), "prefill");
}

}  // namespace
}  // namespace baton::decode
