#include "common/engine/sampling/token_sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "common/base/status.h"
#include "common/engine/sampling/sampler.h"

namespace baton {
namespace {

v1::SamplingParams Complete() {
  v1::SamplingParams sampling;
  sampling.set_seed(7);
  sampling.set_max_tokens(10);
  return sampling;
}

TEST(TokenSamplerTest, DefaultsAreTheContracts) {
  const auto sampler = TokenSampler::Create(Complete(), {2}, 8);
  ASSERT_TRUE(sampler.ok()) << sampler.status();
  EXPECT_EQ(sampler->params().temperature, 1);
  EXPECT_EQ(sampler->params().top_k, 0);
  EXPECT_EQ(sampler->params().top_p, 1);
  EXPECT_EQ(sampler->params().eos_token_ids, std::vector<int32_t>{2});
  EXPECT_EQ(sampler->stop_rule().max_tokens, 10);
}

int32_t Draw(const TokenSampler& sampler, const std::vector<float>& logits, int generated) {
  const baton::Draw draw = sampler.DrawOf(generated, nullptr);
  const auto token = Sampler(static_cast<int>(logits.size()))
                         .Sample({logits, draw.params, draw.seed, draw.position, draw.history});
  EXPECT_TRUE(token.ok()) << token.status();
  return token->token;
}

// Tokens: a, b, ab, the end, and one more of the model's.
Constraints::Vocabulary Letters() {
  return std::make_shared<const grammar::Vocabulary>(std::vector<grammar::VocabularyToken>{
      {"a", false}, {"b", false}, {"ab", false}, {"<end>", true}});
}

// What is drawn greedily. A process that is told the tokens goes on from index `from`.
std::vector<int32_t> Drawn(v1::SamplingParams sampling, const std::vector<float>& logits,
                           size_t count, size_t from, Constraints& constraints) {
  const int vocabulary = static_cast<int>(logits.size());
  sampling.set_temperature(0);
  const auto sampler =
      TokenSampler::Create(sampling, {vocabulary > 5 ? 5 : 3}, vocabulary, &constraints);
  EXPECT_TRUE(sampler.ok()) << sampler.status();
  std::vector<int32_t> tokens;
  auto history = std::make_unique<TokenHistory>();
  const auto follow = [&](std::optional<int32_t> token) {
    history->Follow(sampler->params(), token);
    if (token.has_value()) history->Add(*token);
  };
  for (size_t i = 0; i < count; ++i) {
    if (i > 0 && i == from) {
      history = std::make_unique<TokenHistory>();
      for (const int32_t token : tokens) follow(token);
    } else {
      follow(i == 0 ? std::nullopt : std::optional(tokens.back()));
    }
    const auto draw = sampler->DrawOf(static_cast<int>(i), history.get());
    const auto token =
        Sampler(vocabulary).Sample({logits, draw.params, draw.seed, draw.position, history.get()});
    if (!token.ok()) {
      EXPECT_EQ(token.status().message(), "");
      break;
    }
    tokens.push_back(token->token);
  }
  return tokens;
}

std::vector<int32_t> Text(v1::SamplingParams sampling, const std::vector<float>& logits,
                          size_t count, size_t from = 0) {
  Constraints constraints([] { return Letters(); });
  return Drawn(std::move(sampling), logits, count, from, constraints);
}

TEST(TokenSamplerTest, TextsAreKeptToTheirStructure) {
  const std::vector<float> likes_end = {1, 2, 0, 9, 10};
  const std::vector<float> likes_a = {3, 2, 0, 1, 10};
  v1::SamplingParams sampling = Complete();
  sampling.mutable_structure()->set_regex("a(b|ab)");
  EXPECT_EQ(Text(sampling, likes_end, 3), (std::vector<int32_t>{0, 1, 3}));
  EXPECT_EQ(Text(sampling, likes_a, 4), (std::vector<int32_t>{0, 0, 1, 3}));
  EXPECT_EQ(Text(sampling, likes_a, 4, 1), (std::vector<int32_t>{0, 0, 1, 3}));
  EXPECT_EQ(Text(sampling, {0, 0, 9, 0, 0}, 2), (std::vector<int32_t>{2, 3}));
  // The end comes when the text may end, and no sooner.
  sampling.mutable_structure()->set_regex("a*");
  EXPECT_EQ(Text(sampling, likes_end, 1), std::vector<int32_t>{3});
  sampling.set_min_tokens(2);
  EXPECT_EQ(Text(sampling, likes_end, 3), (std::vector<int32_t>{0, 0, 3}));
  // What must end does, whatever else is asked for.
  sampling.mutable_structure()->set_regex("b");
  EXPECT_EQ(Text(sampling, likes_a, 3), (std::vector<int32_t>{1, 3, 3}));
  sampling.set_min_tokens(0);
  sampling.set_ignore_eos(true);
  EXPECT_EQ(Text(sampling, likes_a, 3), (std::vector<int32_t>{1, 3, 3}));
  v1::LogitBias& bias = *sampling.add_logit_bias();
  bias.set_token_id(0);
  bias.set_bias(100);
  EXPECT_EQ(Text(sampling, likes_a, 2), (std::vector<int32_t>{1, 3}));
}

// Tokens: <, /, t, >, a, the end, half of a character and its rest. Marks are spelled out.
std::vector<int32_t> Reasoned(v1::SamplingParams sampling, const std::vector<float>& logits,
                              size_t count, size_t from = 0) {
  Constraints constraints([] {
    return std::make_shared<const grammar::Vocabulary>(
        std::vector<grammar::VocabularyToken>{{"<", false},
                                              {"/", false},
                                              {"t", false},
                                              {">", false},
                                              {"a", false},
                                              {"<end>", true},
                                              {"\xC3", false},
                                              {"\xA4", false}});
  });
  return Drawn(std::move(sampling), logits, count, from, constraints);
}

TEST(TokenSamplerTest, ReasoningIsEndedWhenItsBudgetIsSpent) {
  const std::vector<float> likes_a = {1, 0, 2, 3, 9, 0, 0, 0};
  v1::SamplingParams sampling = Complete();
  sampling.set_max_tokens(40);
  v1::TextStructure& structure = *sampling.mutable_structure();
  structure.set_reasoning_begin("<t>");
  structure.set_reasoning_end("</t>");
  structure.set_in_reasoning(true);
  structure.set_reasoning_budget(2);
  // The text behind is free: no mask, and no end.
  const std::vector<int32_t> ended = {4, 4, 0, 1, 2, 3, 4, 4, 4};
  for (size_t from = 0; from < ended.size(); ++from) {
    EXPECT_EQ(Reasoned(sampling, likes_a, ended.size(), from), ended) << "moved at " << from;
  }
  structure.set_reasoning_budget(0);
  EXPECT_EQ(Reasoned(sampling, likes_a, 5), (std::vector<int32_t>{0, 1, 2, 3, 4}));
  // A text that begins without reasoning has none to bound.
  structure.set_in_reasoning(false);
  EXPECT_EQ(Reasoned(sampling, likes_a, 5), (std::vector<int32_t>{4, 4, 4, 4, 4}));
  // A text with a structure keeps to it behind the mark, in a budget and past it.
  structure.set_in_reasoning(true);
  structure.set_regex("t{3}");
  structure.set_reasoning_budget(3);
  EXPECT_EQ(Reasoned(sampling, likes_a, 11, 5),
            (std::vector<int32_t>{4, 4, 4, 0, 1, 2, 3, 2, 2, 2, 5}));
  // Never within a character.
  structure.clear_kind();
  structure.set_reasoning_budget(1);
  EXPECT_EQ(Reasoned(sampling, {0, 0, 0, 0, 0, 0, 9, 8}, 1), std::vector<int32_t>{6});
  sampling.add_logit_bias()->set_token_id(6);
  sampling.mutable_logit_bias(0)->set_bias(-2);  // Drawn at first, then the rest by its penalty.
  sampling.set_presence_penalty(2);
  EXPECT_EQ(Reasoned(sampling, {0, 0, 0, 0, 0, 0, 12, 9}, 6),
            (std::vector<int32_t>{6, 7, 0, 1, 2, 3}));
}

TEST(TokenSamplerTest, BudgetsThatMakeNoSense) {
  Constraints constraints([] { return Letters(); });
  v1::SamplingParams sampling = Complete();
  sampling.mutable_structure()->set_reasoning_budget(3);
  EXPECT_EQ(FieldOf(TokenSampler::Create(sampling, {3}, 5, &constraints).status()),
            "sampling.structure")
      << "it has no marks";
  sampling.mutable_structure()->set_reasoning_begin("a");
  sampling.mutable_structure()->set_reasoning_end("b");
  EXPECT_TRUE(TokenSampler::Create(sampling, {}, 5, &constraints).ok()) << "nothing must end";
  sampling.mutable_structure()->set_reasoning_budget(-1);
  EXPECT_EQ(FieldOf(TokenSampler::Create(sampling, {3}, 5, &constraints).status()),
            "sampling.structure");
}

TEST(TokenSamplerTest, StructuresThatCannotBeKeptTo) {
  Constraints constraints([] { return Letters(); });
  v1::SamplingParams sampling = Complete();
  sampling.mutable_structure()->set_regex("a");
  EXPECT_EQ(FieldOf(TokenSampler::Create(sampling, {3}, 5).status()), "sampling.structure");
  EXPECT_EQ(FieldOf(TokenSampler::Create(sampling, {}, 5, &constraints).status()),
            "sampling.structure");
  EXPECT_FALSE(TokenSampler::CreateSilent(sampling, {}, 5)->params().NeedsHistory());
  sampling.mutable_structure()->clear_kind();
  EXPECT_EQ(FieldOf(TokenSampler::Create(sampling, {3}, 5, &constraints).status()),
            "sampling.structure");
  // What is malformed fails the draw, and so does a model without a vocabulary.
  sampling.mutable_structure()->set_regex("(");
  Constraints nothing([]() -> absl::StatusOr<Constraints::Vocabulary> {
    return absl::FailedPreconditionError("no tokenizer");
  });
  for (Constraints* of : {&constraints, &nothing}) {
    const auto sampler = TokenSampler::Create(sampling, {3}, 5, of);
    ASSERT_TRUE(sampler.ok()) << sampler.status();
    TokenHistory history;
    history.Follow(sampler->params(), std::nullopt);
    const auto draw = sampler->DrawOf(0, &history);
    const std::vector<float> logits(5);
    EXPECT_FALSE(Sampler(5).Sample({logits, draw.params, draw.seed, 0, &history}).ok());
  }
}

TEST(TokenSamplerTest, ZeroTemperatureIsGreedy) {
  v1::SamplingParams sampling = Complete();
  sampling.set_temperature(0);
  const auto sampler = TokenSampler::Create(sampling, {}, 4);
  ASSERT_TRUE(sampler.ok());
  const std::vector<float> logits{0, 3, 1, 2};
  EXPECT_EQ(Draw(*sampler, logits, 0), 1);
  EXPECT_EQ(Draw(*sampler, logits, 5), 1);
}

TEST(TokenSamplerTest, TheDrawDependsOnSeedAndIndexAlone) {
  const std::vector<float> logits(64, 0.0F);
  const auto a = TokenSampler::Create(Complete(), {}, 64);
  const auto b = TokenSampler::Create(Complete(), {}, 64);
  std::vector<int32_t> first(32);
  for (int i = 0; i < 32; ++i) first[static_cast<size_t>(i)] = Draw(*a, logits, i);
  for (int i = 31; i >= 0; --i) {
    EXPECT_EQ(Draw(*b, logits, i), first[static_cast<size_t>(i)]);
  }
  EXPECT_NE(std::vector<int32_t>(32, first[0]), first);
}

TEST(TokenSamplerTest, TakesOverBiasAndPenalties) {
  v1::SamplingParams sampling = Complete();
  EXPECT_FALSE(TokenSampler::Create(sampling, {}, 8)->params().NeedsHistory());
  sampling.set_presence_penalty(0.5F);
  sampling.set_frequency_penalty(-1);
  EXPECT_TRUE(TokenSampler::Create(sampling, {}, 8)->params().NeedsHistory());
  EXPECT_FALSE(TokenSampler::Create(sampling, {}, 8)->params().NeedsPrompt());
  sampling.set_repetition_penalty(1.25F);
  sampling.add_logit_bias()->set_token_id(3);
  sampling.mutable_logit_bias(0)->set_bias(-7);
  const auto sampler = TokenSampler::Create(sampling, {}, 8);
  ASSERT_TRUE(sampler.ok()) << sampler.status();
  EXPECT_EQ(sampler->params().presence_penalty, 0.5);
  EXPECT_EQ(sampler->params().frequency_penalty, -1);
  EXPECT_EQ(sampler->params().repetition_penalty, 1.25);
  EXPECT_TRUE(sampler->params().NeedsPrompt());
  EXPECT_EQ(sampler->params().logit_bias, (std::vector<std::pair<int32_t, float>>{{3, -7}}));
}

TEST(TokenSamplerTest, LogprobsOfThePromptAndOfTheContinuationAreAskedForApart) {
  v1::SamplingParams sampling = Complete();
  sampling.set_prompt_logprobs(true);
  sampling.set_top_logprobs(3);
  auto sampler = TokenSampler::Create(sampling, {}, 8);
  ASSERT_TRUE(sampler.ok()) << sampler.status();
  EXPECT_TRUE(sampler->prompt_logprobs());
  EXPECT_EQ(sampler->prompt_top_logprobs(), 3);
  EXPECT_FALSE(sampler->params().logprobs);
  EXPECT_EQ(sampler->params().top_logprobs, 0);
  sampling.set_logprobs(true);
  sampling.set_prompt_logprobs(false);
  sampler = TokenSampler::Create(sampling, {}, 8);
  EXPECT_EQ(sampler->params().top_logprobs, 3);
  EXPECT_FALSE(sampler->prompt_logprobs());
}

TEST(TokenSamplerTest, GoesOnBehindWhatAnEarlierAttemptHasDrawn) {
  v1::SamplingParams sampling;
  sampling.set_seed(1);
  sampling.set_max_tokens(10);
  sampling.set_min_tokens(5);
  sampling.set_drawn_tokens(3);
  const auto sampler = TokenSampler::Create(sampling, {}, 8);
  ASSERT_TRUE(sampler.ok()) << sampler.status();
  EXPECT_EQ(sampler->DrawOf(2, nullptr).position, 5);
  EXPECT_EQ(sampler->params().min_tokens, 5) << "counts all draws, as positions do";
  EXPECT_EQ(sampler->stop_rule().max_tokens, 7);
  EXPECT_EQ(sampler->stop_rule().min_tokens, 2);
  EXPECT_TRUE(sampler->CheckDrawn(4).ok());
  EXPECT_EQ(FieldOf(sampler->CheckDrawn(3)), "sampling.drawn_tokens") << "no prompt is left";
}

TEST(TokenSamplerTest, RefusesAndNamesTheField) {
  using Change = std::function<void(v1::SamplingParams&)>;
  const std::vector<std::pair<std::string, Change>> rows{
      {"sampling.seed", [](auto& s) { s.clear_seed(); }},
      {"sampling.max_tokens", [](auto& s) { s.clear_max_tokens(); }},
      {"sampling.max_tokens", [](auto& s) { s.set_max_tokens(0); }},
      {"sampling.min_tokens", [](auto& s) { s.set_min_tokens(-1); }},
      {"sampling.min_tokens", [](auto& s) { s.set_min_tokens(11); }},
      {"sampling.drawn_tokens", [](auto& s) { s.set_drawn_tokens(-1); }},
      {"sampling.drawn_tokens", [](auto& s) { s.set_drawn_tokens(10); }},
      {"sampling.temperature", [](auto& s) { s.set_temperature(-0.1F); }},
      {"sampling.temperature", [](auto& s) { s.set_temperature(std::nanf("")); }},
      {"sampling.temperature",
       [](auto& s) { s.set_temperature(std::numeric_limits<float>::infinity()); }},
      {"sampling.top_k", [](auto& s) { s.set_top_k(-2); }},
      {"sampling.top_p", [](auto& s) { s.set_top_p(0); }},
      {"sampling.top_p", [](auto& s) { s.set_top_p(1.5F); }},
      {"sampling.top_p", [](auto& s) { s.set_top_p(std::nanf("")); }},
      {"sampling.min_p", [](auto& s) { s.set_min_p(-1); }},
      {"sampling.min_p", [](auto& s) { s.set_min_p(std::nanf("")); }},
      {"sampling.top_logprobs", [](auto& s) { s.set_top_logprobs(5); }},
      {"sampling.top_logprobs",
       [](auto& s) {
         s.set_logprobs(true);
         s.set_top_logprobs(21);
       }},
      {"sampling.presence_penalty", [](auto& s) { s.set_presence_penalty(2.5F); }},
      {"sampling.frequency_penalty", [](auto& s) { s.set_frequency_penalty(-3); }},
      {"sampling.repetition_penalty", [](auto& s) { s.set_repetition_penalty(0); }},
      {"sampling.logit_bias", [](auto& s) { s.add_logit_bias()->set_token_id(8); }},
      {"sampling.stop_token_ids", [](auto& s) { s.add_stop_token_ids(8); }},
      {"sampling.stop_token_ids", [](auto& s) { s.add_stop_token_ids(-1); }},
      {"sampling.stop_token_ids",
       [](auto& s) {
         for (int i = 0; i < 65; ++i) s.add_stop_token_ids(1);
       }},
      {"sampling.stop", [](auto& s) { s.add_stop(""); }},
      {"sampling.stop", [](auto& s) { s.add_stop(std::string(1025, 'x')); }},
      {"sampling.stop",
       [](auto& s) {
         for (int i = 0; i < 17; ++i) s.add_stop("x");
       }},
  };
  for (size_t i = 0; i < rows.size(); ++i) {
    v1::SamplingParams sampling = Complete();
    rows[i].second(sampling);
    const auto sampler = TokenSampler::Create(sampling, {2}, 8);
    EXPECT_EQ(FieldOf(sampler.status()), rows[i].first) << "row " << i << sampler.status();
  }
}

}  // namespace
}  // namespace baton
