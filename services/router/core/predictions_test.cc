// What the router predicts of cached prompts, through the events of requests.
#include "services/router/core/router_core_fixture.h"

namespace baton::router {
namespace {

class PredictionsTest : public RouterCoreTest {
 protected:
  // A request from its beginning to its end, of whose prompt so much was cached.
  void Serve(uint64_t call_id, uint64_t prefix, int cached_tokens) {
    CallSubmitted call = {call_id, "r" + std::to_string(call_id), 100, 4, now_us_ + kDeadlineUs};
    call.prefix = {prefix};
    Handle(call);
    reserve_ = Only<Reserve>();
    Answer();
    now_us_ += 1000;
    Handle(PrefillEnded{reserve_.attempt_id, absl::OkStatus(), {}, cached_tokens});
    Handle(TokenReceived{reserve_.attempt_id, {7, 0, {}}});
    Handle(DecodeEnded{reserve_.attempt_id, FinishReason::kStop});
    ASSERT_EQ(Only<FinishCall>().outcome.status(), absl::OkStatus());
  }
  PredictionCounts Counts() const { return core_->load().predictions; }
};

TEST_F(PredictionsTest, ArePromptsOfBeforeAndCountedBesideWhatWasCached) {
  JoinOnePair();
  Serve(1, 11, 0);
  EXPECT_EQ(Counts().uncached_total, 1);
  EXPECT_EQ(Counts().predicted_tokens_total, 0);
  Serve(2, 11, 80);
  EXPECT_EQ(Counts().cached_total, 1);
  EXPECT_EQ(Counts().predicted_tokens_total, 64);
  EXPECT_EQ(Counts().cached_tokens_total, 80);
  Serve(3, 12, 1000);
  EXPECT_EQ(Counts().uncached_total, 2);
  EXPECT_EQ(Counts().cached_tokens_total, 180) << "no more than the prompt has";
  EXPECT_TRUE(core_->AtRest());
}

TEST_F(PredictionsTest, AnotherThatHasMoreIsPassedOverForLoad) {
  JoinTwoPairs();  // The fixture's policy goes by load alone.
  Serve(1, 11, 0);
  Serve(2, 11, 0);
  EXPECT_EQ(Counts().passed_over_total, 1);
}

TEST_F(PredictionsTest, EndWithAFlushAndWithTheChain) {
  JoinOnePair();
  Serve(1, 11, 0);
  Handle(CachesFlushed{});
  Serve(2, 11, 0);
  EXPECT_EQ(Counts().cached_total, 0);
  WorkerInfo stage = TestStage("c0", 1, 2);
  Dies(stage.instance);
  stage.instance.incarnation = 2;
  Join({stage});
  for (const char* id : {"c0-0", "d0"}) Beat({id, 1});
  Serve(3, 11, 0);
  EXPECT_EQ(Counts().cached_total, 0) << "a stage began with an empty cache";
  Serve(4, 11, 64);
  EXPECT_EQ(Counts().cached_total, 1);
}

}  // namespace
}  // namespace baton::router
