#include "common/tokenizer/bpe/bpe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "common/base/random.h"

namespace baton {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Ids = std::vector<int32_t>;

// Single bytes have their value as id; the results of merges come after them.
struct Definition {
  std::vector<VocabEntry> vocab;
  std::vector<MergeRule> merges;

  Definition() {
    for (int byte = 0; byte < 256; ++byte) {
      vocab.push_back({SpellByte(static_cast<uint8_t>(byte)), byte});
    }
  }
  // Returns the id of the merged token.
  int32_t Merge(const std::string& left, const std::string& right) {
    merges.push_back({left, right});
    for (const VocabEntry& entry : vocab) {
      if (entry.spelling == left + right) return entry.id;
    }
    return AddToken(left + right);
  }
  int32_t AddToken(const std::string& spelling) {
    vocab.push_back({spelling, static_cast<int32_t>(vocab.size())});
    return vocab.back().id;
  }
};

Ids Encode(const BpeModel& model, std::string_view word) {
  BpeScratch scratch;
  Ids ids;
  model.EncodeWord(word, &scratch, &ids);
  return ids;
}

TEST(BpeTest, MergesByRankThenFromTheLeft) {
  Definition definition;
  const int32_t bc = definition.Merge("b", "c");
  const int32_t ab = definition.Merge("a", "b");
  const int32_t aa = definition.Merge("a", "a");
  const auto model = BpeModel::Create(definition.vocab, definition.merges, {}).value();
  EXPECT_THAT(Encode(model, "abc"), ElementsAre('a', bc));
  EXPECT_THAT(Encode(model, "abd"), ElementsAre(ab, 'd'));
  EXPECT_THAT(Encode(model, "aaa"), ElementsAre(aa, 'a'));
  EXPECT_THAT(Encode(model, ""), ElementsAre());
  EXPECT_THAT(Encode(model, std::string("\0\xFF", 2)), ElementsAre(0, 255));
}

TEST(BpeTest, IgnoreMergesTakesWholeWordsFirst) {
  Definition definition;
  const int32_t ab = definition.Merge("a", "b");
  const int32_t cab = definition.AddToken("cab");
  const int32_t space = definition.AddToken("Ġc");
  const auto with =
      BpeModel::Create(definition.vocab, definition.merges, {.ignore_merges = true}).value();
  const auto without = BpeModel::Create(definition.vocab, definition.merges, {}).value();
  EXPECT_THAT(Encode(with, "cab"), ElementsAre(cab));
  EXPECT_THAT(Encode(with, " c"), ElementsAre(space));
  EXPECT_THAT(Encode(without, "cab"), ElementsAre('c', ab));
}

TEST(BpeTest, RefusesMergesAndBytesOutsideTheVocabulary) {
  Definition definition;
  definition.merges.push_back({"a", "b"});
  const auto no_result = BpeModel::Create(definition.vocab, definition.merges, {});
  EXPECT_THAT(std::string(no_result.status().message()), HasSubstr("model.merges[0]: \"ab\""));
  definition.merges[0] = {"a", "zz"};
  const auto no_part = BpeModel::Create(definition.vocab, definition.merges, {});
  EXPECT_THAT(std::string(no_part.status().message()), HasSubstr("model.merges[0]: \"zz\""));
  definition.vocab.erase(definition.vocab.begin() + ' ');
  const auto no_byte = BpeModel::Create(definition.vocab, {}, {});
  EXPECT_THAT(std::string(no_byte.status().message()), HasSubstr("byte 32, spelled \"Ġ\""));
}

// The definition of byte-pair encoding, without any cleverness: find the best pair, merge its
// leftmost occurrence, start over.
Ids EncodeByDefinition(const Definition& definition, const std::string& word) {
  std::vector<std::string> symbols;
  for (const char c : word) symbols.emplace_back(1, c);
  while (true) {
    size_t best_rank = definition.merges.size();
    size_t best = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      for (size_t rank = 0; rank < best_rank; ++rank) {
        const MergeRule& rule = definition.merges[rank];
        if (rule.left != symbols[i] || rule.right != symbols[i + 1]) continue;
        best_rank = rank;
        best = i;
      }
    }
    if (best_rank == definition.merges.size()) break;
    symbols[best] += symbols[best + 1];
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
  std::map<std::string, int32_t> id_of;
  for (const VocabEntry& entry : definition.vocab) id_of[entry.spelling] = entry.id;
  Ids ids;
  for (const std::string& symbol : symbols) ids.push_back(id_of.at(symbol));
  return ids;
}

TEST(BpeTest, AgreesWithTheDefinition) {
  Random random(7);
  for (int round = 0; round < 200; ++round) {
    Definition definition;
    std::vector<std::string> parts = {"a", "b", "c"};
    while (definition.merges.size() < 12) {
      const std::string left = parts[random.Below(parts.size())];
      const std::string right = parts[random.Below(parts.size())];
      bool known = false;
      for (const VocabEntry& entry : definition.vocab) known |= entry.spelling == left + right;
      if (known) continue;  // Training never makes a token twice.
      definition.Merge(left, right);
      parts.push_back(left + right);
    }
    const auto model = BpeModel::Create(definition.vocab, definition.merges, {}).value();
    for (int i = 0; i < 20; ++i) {
      std::string word(random.Below(40), 'a');
      for (char& c : word) c = static_cast<char>('a' + random.Below(3));
      ASSERT_EQ(Encode(model, word), EncodeByDefinition(definition, word)) << word;
    }
  }
}

TEST(BpeTest, WorkGrowsLinearlyInTheWord) {
  Definition definition;
  std::string power = "a";
  for (int i = 0; i < 8; ++i, power += power) definition.Merge(power, power);
  const auto model = BpeModel::Create(definition.vocab, definition.merges, {}).value();
  const auto steps = [&](size_t bytes) {
    BpeScratch scratch;
    Ids ids;
    model.EncodeWord(std::string(bytes, 'a'), &scratch, &ids);
    EXPECT_EQ(ids.size(), bytes / 256);
    return scratch.steps();
  };
  uint64_t half = steps(1 << 11);
  for (size_t bytes = 1 << 12; bytes <= 1 << 18; bytes *= 2) {
    const uint64_t whole = steps(bytes);
    EXPECT_LE(whole, 3 * bytes);
    EXPECT_LE(whole, 2 * half + 16);
    half = whole;
  }
}

}  // namespace
}  // namespace baton
