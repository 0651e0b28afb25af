#include "common/tokenizer/unigram/unigram.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baton {
namespace {

using testing::ElementsAre;

UnigramModel Model(const std::vector<std::pair<std::string, double>>& pieces,
                   bool byte_fallback = false) {
  std::vector<VocabEntry> vocab;
  std::vector<double> scores;
  for (const auto& [text, score] : pieces) {
    vocab.push_back({text, static_cast<int32_t>(vocab.size())});
    scores.push_back(score);
  }
  return UnigramModel::Create(vocab, scores, 0, byte_fallback).value();
}

std::vector<int32_t> Encode(const UnigramModel& model, std::string_view word) {
  std::vector<int32_t> ids;
  model.EncodeWord(word, &ids);
  return ids;
}

TEST(UnigramTest, TheBestScoreWins) {
  const UnigramModel model =
      Model({{"<unk>", 0}, {"a", -3}, {"b", -3}, {"ab", -4}, {"abc", -9}, {"c", -3}, {"bc", -5.5}});
  EXPECT_THAT(Encode(model, "ab"), ElementsAre(3));
  EXPECT_THAT(Encode(model, "abc"), ElementsAre(3, 5));
  EXPECT_THAT(Encode(model, "bca"), ElementsAre(6, 1));
  EXPECT_THAT(Encode(model, ""), ElementsAre());
}

TEST(UnigramTest, WhatIsUnknownIsOneTokenOrItsBytes) {
  EXPECT_THAT(Encode(Model({{"<unk>", 0}, {"a", -1}}), "aäöa!"), ElementsAre(1, 0, 1, 0));
  const UnigramModel bytes = Model({{"<unk>", 0}, {"a", -1}, {"<0xC3>", -9}, {"<0xA4>", -9}}, true);
  EXPECT_THAT(Encode(bytes, "aä"), ElementsAre(1, 2, 3));
  EXPECT_THAT(Encode(bytes, "ö"), ElementsAre(0)) << "half of its bytes are no help";
}

TEST(UnigramTest, OfEqualPiecesTheLastCounts) {
  EXPECT_THAT(Encode(Model({{"<unk>", 0}, {"a", -1}, {"a", -2}}), "a"), ElementsAre(2));
}

TEST(UnigramTest, RefusesAnUnknownTokenThatIsNone) {
  EXPECT_FALSE(UnigramModel::Create({{"a", 0}}, {-1}, 1, false).ok());
  EXPECT_FALSE(UnigramModel::Create({}, {}, 0, false).ok());
}

TEST(UnigramTest, LongWordsTakeTime) {
  const UnigramModel model = Model({{"<unk>", 0}, {"a", -1}, {"aaaaaaaa", -2}});
  EXPECT_EQ(Encode(model, std::string(1 << 22, 'a')).size(), size_t{1} << 19);
}

}  // namespace
}  // namespace baton
