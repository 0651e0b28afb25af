// Prefix keys, and the index of what chains are predicted to have of them.
#include "services/router/core/prefix_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "common/base/random.h"
#include "services/router/core/prefix_keys.h"

namespace baton::router {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

std::vector<int32_t> Tokens(size_t count, uint64_t seed = 1) {
  Random random(seed);
  std::vector<int32_t> tokens(count);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random.Below(1000));
  return tokens;
}

std::vector<uint64_t> Keys(size_t tokens, uint64_t seed = 1) {
  return PrefixKeys(Tokens(tokens, seed), "");
}

std::vector<size_t> HoldersIn(const PrefixIndex& index, std::span<const uint64_t> keys,
                              size_t most) {
  std::vector<size_t> holders;
  for (const PrefixIndex::Found& found : index.FindHolders(keys, most)) {
    holders.push_back(found.holder);
  }
  return holders;
}

TEST(PrefixKeysTest, PositionsAreEvenThenGrowWithTheLength) {
  EXPECT_EQ(PrefixTokens(0), 0);
  EXPECT_EQ(PrefixTokens(1), 64);
  EXPECT_EQ(PrefixTokens(16), 1024);
  EXPECT_EQ(PrefixTokens(17), 1152);
  EXPECT_EQ(PrefixTokens(24), 2048);
  EXPECT_EQ(PrefixTokens(25), 2304);
  EXPECT_EQ(PrefixTokens(32), 4096);
  EXPECT_THAT(Keys(63), IsEmpty());
  EXPECT_EQ(Keys(64).size(), 1);
  EXPECT_EQ(Keys(1151).size(), 16);
  EXPECT_EQ(Keys(1152).size(), 17);
  EXPECT_LT(Keys(1 << 20).size(), 100);
}

TEST(PrefixKeysTest, PromptsThatBeginAlikeHaveTheirFirstKeysInCommon) {
  std::vector<int32_t> one = Tokens(1000);
  std::vector<int32_t> other = one;
  other[500] += 1;
  const std::vector<uint64_t> a = PrefixKeys(one, "");
  const std::vector<uint64_t> b = PrefixKeys(other, "");
  for (size_t i = 0; i < a.size(); ++i) EXPECT_EQ(a[i] == b[i], i < 7) << i;
  for (const uint64_t key : PrefixKeys(one, "salt")) {
    EXPECT_EQ(std::count(a.begin(), a.end(), key), 0);
  }
}

TEST(PrefixIndexTest, AHolderHasWhatItWasNotedWith) {
  PrefixIndex index(1000);
  std::vector<int32_t> tokens = Tokens(1000);
  index.Note(3, PrefixKeys(tokens, ""), 10'000);
  EXPECT_EQ(index.Held(3, PrefixKeys(tokens, "")), 15);
  EXPECT_EQ(index.Held(2, PrefixKeys(tokens, "")), 0);
  EXPECT_EQ(index.Held(9, PrefixKeys(tokens, "")), 0);
  tokens[300] += 1;
  EXPECT_EQ(index.Held(3, PrefixKeys(tokens, "")), 4);
  EXPECT_EQ(index.size(), 15);
}

TEST(PrefixIndexTest, FindsHoldersOfTheLongestFirst) {
  PrefixIndex index(1000);
  const std::vector<uint64_t> keys = Keys(1024);
  const std::span<const uint64_t> all = keys;
  index.Note(0, all.first(2), 10'000);
  index.Note(1, all.first(16), 10'000);
  index.Note(2, all.first(8), 10'000);
  index.Note(3, Keys(1024, 9), 10'000);
  EXPECT_THAT(HoldersIn(index, keys, 4), ElementsAre(1, 2, 0));
  EXPECT_THAT(HoldersIn(index, keys, 2), ElementsAre(1, 2));
  EXPECT_THAT(HoldersIn(index, Keys(1024, 5), 4), IsEmpty());
  for (const PrefixIndex::Found& found : index.FindHolders(keys, 4)) {
    EXPECT_LE(found.keys, index.Held(found.holder, keys));
  }
  EXPECT_EQ(index.FindHolders(keys, 4).front().keys, 16);
}

TEST(PrefixIndexTest, WhatWasUnusedTheLongestGoesFirstItsEndBeforeItsBeginning) {
  PrefixIndex index(1000);
  index.Note(0, Keys(512, 1), 1024);
  index.Note(0, Keys(512, 2), 1024);
  index.Note(0, Keys(256, 1), 1024);  // Used again, the first half.
  index.Note(0, Keys(256, 3), 1024);
  EXPECT_EQ(index.Held(0, Keys(512, 1)), 4) << "its second half was unused the longest";
  EXPECT_EQ(index.Held(0, Keys(512, 2)), 8);
  index.Note(0, Keys(128, 4), 1024);
  EXPECT_EQ(index.Held(0, Keys(512, 2)), 6);
  EXPECT_EQ(index.Held(0, Keys(256, 3)), 4);
}

// Names of keys and holders are hashes of the same kind.
TEST(PrefixIndexTest, AKeyMayBeTheHashOfAHolder) {
  PrefixIndex index(1000);
  for (size_t holder = 0; holder < 8; ++holder) {
    index.Note(holder, std::vector<uint64_t>{Mix64(holder + 1)}, 1000);
  }
  for (size_t holder = 0; holder < 8; ++holder) {
    for (uint64_t key = 0; key < 8; ++key) {
      EXPECT_EQ(index.Held(holder, std::vector<uint64_t>{Mix64(key + 1)}), key == holder ? 1 : 0);
    }
  }
}

TEST(PrefixIndexTest, IsBounded) {
  PrefixIndex index(20);
  for (uint64_t seed = 0; seed < 50; ++seed) index.Note(seed % 3, Keys(640, seed), 1 << 30);
  EXPECT_LE(index.size(), 20);
  for (const uint64_t seed : {47, 48, 49}) {
    EXPECT_GT(index.Held(seed % 3, Keys(640, seed)), 0) << "each has a part of it";
  }
}

TEST(PrefixIndexTest, WhatIsMissingTakesAllThatIsOlderWithIt) {
  PrefixIndex index(1000);
  index.Note(0, Keys(128, 1), 10'000);
  index.Note(0, Keys(128, 2), 10'000);
  index.Note(0, Keys(128, 3), 10'000);
  index.Note(1, Keys(128, 1), 10'000);
  const uint64_t noted = index.NotedAt(0, Keys(128, 2)[1]);
  index.Note(0, Keys(128, 2), 10'000);  // It is given the prompt again, and then says: not there.
  index.DropUntil(0, noted);
  EXPECT_EQ(index.Held(0, Keys(128, 1)), 0);
  EXPECT_EQ(index.Held(0, Keys(128, 2)), 2);
  EXPECT_EQ(index.Held(0, Keys(128, 3)), 2);
  EXPECT_EQ(index.Held(1, Keys(128, 1)), 2);
  index.Drop(0);
  EXPECT_EQ(index.Held(0, Keys(128, 3)), 0);
  EXPECT_EQ(index.size(), 2);
}

TEST(PrefixIndexTest, HoldersOfOneKeyComeAndGoInAnyOrder) {
  const std::vector<uint64_t> keys = Keys(64);
  for (const size_t first : {0, 1, 2}) {
    PrefixIndex index(1000);
    for (size_t holder = 0; holder < 3; ++holder) index.Note(holder, keys, 1000);
    index.Drop(first);
    EXPECT_THAT(HoldersIn(index, keys, 4), UnorderedElementsAre((first + 1) % 3, (first + 2) % 3));
    index.Drop((first + 1) % 3);
    index.Drop((first + 2) % 3);
    EXPECT_THAT(HoldersIn(index, keys, 4), IsEmpty());
    EXPECT_EQ(index.size(), 0);
  }
}

// Whatever is noted and dropped: who has a key has those before it.
TEST(PrefixIndexTest, NoHolderHasAHole) {
  Random random(5);
  PrefixIndex index(400);
  const auto keys_of = [](uint64_t family, uint64_t tail, size_t tokens) {
    std::vector<int32_t> prompt = Tokens(1000, family);
    const std::vector<int32_t> own = Tokens(tokens, 100 + tail);
    prompt.insert(prompt.end(), own.begin(), own.end());
    return PrefixKeys(prompt, "");
  };
  for (int i = 0; i < 2000; ++i) {
    const size_t holder = random.Below(6);
    const std::vector<uint64_t> keys =
        keys_of(random.Below(4), random.Below(20), random.Below(1000));
    const size_t cut = random.Below(keys.size() + 1);
    if (random.Chance(0.1)) {
      index.DropUntil(holder, index.NotedAt(holder, keys[keys.size() / 2]));
    } else {
      index.Note(holder, std::span(keys).first(cut), random.Chance(0.5) ? 2000 : 6000);
    }
    for (size_t other = 0; other < 6; ++other) {
      const size_t held = index.Held(other, keys);
      for (size_t key = 0; key < keys.size(); ++key) {
        ASSERT_EQ(index.NotedAt(other, keys[key]) != 0, key < held) << "holder " << other;
      }
    }
    for (const PrefixIndex::Found& found : index.FindHolders(keys, 4)) {
      ASSERT_LE(found.keys, index.Held(found.holder, keys));
    }
    ASSERT_LE(index.size(), 400);
  }
}

}  // namespace
}  // namespace baton::router
