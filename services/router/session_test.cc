#include "services/router/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/tokenizer/testing/test_tokenizer.h"

namespace baton::router {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Records its calls.
class RecordingSink : public ResponseSink {
 public:
  void OnPromptTokens(std::vector<TokenPiece> tokens) override {
    EXPECT_TRUE(pieces.empty());
    for (TokenPiece& token : tokens) prompt.push_back(std::move(token));
  }
  void OnTokens(TextPiece piece) override { pieces.push_back(std::move(piece)); }
  void OnFinished(Outcome end) override { outcome = std::move(end); }
  void OnError(absl::Status) override { FAIL(); }

  std::string text() const {
    std::string all;
    for (const TextPiece& piece : pieces) all += piece.text;
    return all + outcome.text;
  }
  std::vector<int32_t> ids() const {
    std::vector<int32_t> all;
    for (const TextPiece& piece : pieces) {
      for (const TokenPiece& token : piece.tokens) all.push_back(token.id);
    }
    return all;
  }
  std::vector<int64_t> offsets() const {
    std::vector<int64_t> all;
    for (const TextPiece& piece : pieces) {
      for (const TokenPiece& token : piece.tokens) all.push_back(token.text_offset);
    }
    return all;
  }

  void OnPromptProgress(PromptProgress told) override { progress.push_back(told.computed_tokens); }

  std::vector<int> progress;
  std::vector<TokenPiece> prompt;
  std::vector<TextPiece> pieces;
  Outcome outcome;
};

class SessionTest : public testing::Test {
 protected:
  Session Make(const std::vector<std::string>& stop = {}) {
    SessionRequest request;  // Not copied: it may have spans.
    request.prompt_ids = {'a', 'b'};
    request.sampling = request_.sampling;
    request.sampling.set_logprobs(true);
    for (const std::string& text : stop) request.sampling.add_stop(text);
    request.prompt_only = request_.prompt_only;
    request.clip = request_.clip;
    request.text = request_.text;
    request.sink = sink_;
    TextAssembler::Options options;
    options.skip_special_tokens = request.text.skip_special_tokens;
    options.stop = stop;
    Session session(std::move(request), TextAssembler::Create(tokenizer_.get(), options).value(),
                    *tokenizer_, metrics_);
    session.BeginAttempt(1, 10);
    return session;
  }

  // One token per byte; true once a stop string has matched.
  static bool Feed(Session& session, const std::string& bytes) {
    for (const char byte : bytes) {
      if (session.DeliverToken({.token = static_cast<uint8_t>(byte), .logprob = -1}, 20))
        return true;
    }
    return false;
  }
  static void Finish(Session& session, FinishReason reason) {
    FinishCall finish;
    finish.outcome = reason;
    session.Finish(finish, 30);
  }

  std::unique_ptr<Tokenizer> tokenizer_ = MakeTestTokenizer();
  RouterMetrics metrics_{"tiny", "router"};
  SessionRequest request_;  // What tests set of it.
  std::shared_ptr<RecordingSink> sink_ = std::make_shared<RecordingSink>();
};

TEST_F(SessionTest, OffsetsCountCharacters) {
  Session session = Make();
  Feed(session, "\xC3\xA9t\xF0\x9F\x98\x80!");
  EXPECT_THAT(sink_->pieces, SizeIs(8)) << "without stop strings a token is told at once";
  Finish(session, FinishReason::kLength);
  EXPECT_EQ(sink_->text(), "\u00E9t\U0001F600!");
  EXPECT_THAT(sink_->offsets(), ElementsAre(0, 0, 1, 2, 2, 2, 2, 3));
}

TEST_F(SessionTest, TokensOfTextThatWasCutOffAreNotTold) {
  Session session = Make({"b\u00E9"});
  EXPECT_TRUE(Feed(session, "a\xC3\xA9 b\xC3\xA9z"));
  Finish(session, FinishReason::kStop);
  EXPECT_EQ(sink_->text(), "a\u00E9 ");
  EXPECT_THAT(sink_->ids(), ElementsAre('a', 0xC3, 0xA9, ' '));
  EXPECT_EQ(sink_->outcome.matched_stop, "b\u00E9");
  EXPECT_EQ(sink_->outcome.usage.completion_tokens(), 7) << "what was generated counts";
}

TEST_F(SessionTest, NothingIsToldAfterAStopString) {
  Session session = Make({"ab"});
  EXPECT_TRUE(Feed(session, "xab"));
  EXPECT_FALSE(session.DeliverToken({.token = 'a'}, 20))
      << "it waited for the prompt with the others";
  Finish(session, FinishReason::kLength);
  EXPECT_EQ(sink_->text(), "x");
  EXPECT_EQ(sink_->outcome.reason, FinishReason::kStop);
  EXPECT_EQ(sink_->outcome.usage.completion_tokens(), 3);
}

TEST_F(SessionTest, ATokenThatIsCutInTheMiddleIsTold) {
  Session session = Make({"ll"});
  const int32_t hello = *tokenizer_->TokenId("hello");
  EXPECT_TRUE(session.DeliverToken({.token = hello}, 20));
  Finish(session, FinishReason::kStop);
  EXPECT_EQ(sink_->text(), "he");
  EXPECT_THAT(sink_->ids(), ElementsAre(hello));
}

TEST_F(SessionTest, TokensThatWereHeldForNothingComeAtTheEnd) {
  Session session = Make({"abcd"});
  EXPECT_FALSE(Feed(session, "xab"));
  EXPECT_THAT(sink_->ids(), ElementsAre('x'));
  Finish(session, FinishReason::kLength);
  EXPECT_EQ(sink_->text(), "xab");
  EXPECT_THAT(sink_->ids(), ElementsAre('x', 'a', 'b'));
  EXPECT_THAT(sink_->offsets(), ElementsAre(0, 1, 2));
}

TEST_F(SessionTest, AStopStringStaysIfAskedFor) {
  request_.text.include_stop = true;
  Session session = Make({"bc"});
  EXPECT_TRUE(Feed(session, "abcd"));
  Finish(session, FinishReason::kStop);
  EXPECT_EQ(sink_->text(), "abc");
  EXPECT_THAT(sink_->ids(), ElementsAre('a', 'b', 'c'));
}

TEST_F(SessionTest, SpecialTokensAreShownIfAskedFor) {
  const int32_t special = *tokenizer_->TokenId("<|im_end|>");
  for (const bool skip : {true, false}) {
    request_.text.skip_special_tokens = skip;
    sink_ = std::make_shared<RecordingSink>();
    Session session = Make();
    EXPECT_FALSE(session.DeliverToken({.token = special}, 20));
    EXPECT_FALSE(session.DeliverToken({.token = 'a'}, 20));
    Finish(session, FinishReason::kLength);
    EXPECT_EQ(sink_->text(), skip ? "a" : "<|im_end|>a");
    EXPECT_THAT(sink_->offsets(), ElementsAre(0, skip ? 0 : 10));
  }
}

TEST_F(SessionTest, OnlyThePromptIsReadIfNoTokenWasAskedFor) {
  request_.prompt_only = true;
  Session session = Make();
  EXPECT_FALSE(session.DeliverToken({.token = 'a'}, 20));
  Finish(session, FinishReason::kStop);
  EXPECT_THAT(sink_->pieces, IsEmpty());
  EXPECT_EQ(sink_->text(), "");
  EXPECT_EQ(sink_->outcome.reason, FinishReason::kLength);
  EXPECT_EQ(sink_->outcome.usage.completion_tokens(), 0);
}

TEST_F(SessionTest, ThePromptsTokensAreToldWithTheFirst) {
  request_.sampling.set_prompt_logprobs(true);
  Session session = Make();
  const std::vector<SampledToken> told = {{.token = 'b', .logprob = -2, .top = {{6, -3}}}};
  session.DeliverPrompt(told);
  ASSERT_THAT(sink_->prompt, SizeIs(2));
  EXPECT_EQ(sink_->prompt[0].id, 'a');
  EXPECT_FALSE(sink_->prompt[0].logprob.has_value());
  EXPECT_EQ(sink_->prompt[1].bytes, "b");
  EXPECT_EQ(sink_->prompt[1].logprob, -2);
  EXPECT_EQ(sink_->prompt[1].text_offset, 1);
  ASSERT_THAT(sink_->prompt[1].top, SizeIs(1));
}

TEST_F(SessionTest, WhoAskedForNoNumberHearsThatTheCacheEndedIt) {
  const auto warnings = [&](FinishReason reason) {
    request_.sampling.set_max_tokens(100);
    request_.clip = true;
    Session session = Make();
    session.LimitOutput(3);
    EXPECT_EQ(session.request().sampling.max_tokens(), 3);
    (void)Feed(session, "abc");
    Finish(session, reason);
    return sink_->outcome.warnings;
  };
  EXPECT_THAT(warnings(FinishReason::kLength), ElementsAre(HasSubstr("cut at 3 tokens")));
  EXPECT_THAT(warnings(FinishReason::kStop), IsEmpty()) << "nothing was cut";
}

TEST_F(SessionTest, ATextIsKeptToGoOnElsewhere) {
  Session session = Make();
  EXPECT_THAT(session.ToRead(0), ElementsAre('a', 'b'));
  for (const int32_t id : {120, 121, 122}) EXPECT_FALSE(session.DeliverToken({id, 0, {}}, 1));
  EXPECT_THAT(session.ToRead(2), ElementsAre('a', 'b', 120, 121));
}

TEST_F(SessionTest, ProgressIsToldWhenItIsNews) {
  Session session = Make();
  for (const int computed : {-1, 0, 1, 1, 3}) session.OnPromptProgress(computed);
  EXPECT_EQ(sink_->progress, std::vector<int>{1});  // There are two tokens, not three.
  session.BeginAttempt(2, 20);
  session.OnPromptProgress(1);
  EXPECT_FALSE(Feed(session, "c"));
  session.OnPromptProgress(2);  // A heartbeat that was on its way.
  EXPECT_EQ(sink_->progress, (std::vector<int>{1, 1}));
}

}  // namespace
}  // namespace baton::router
