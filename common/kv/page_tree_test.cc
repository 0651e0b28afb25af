#include "common/kv/page_tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>

#include "common/base/random.h"
#include "common/kv/block_pool.h"

namespace baton {
namespace {

constexpr int kPageSize = 4;
constexpr int kAll = 1000;

std::vector<int32_t> Tokens(int count, int seed = 0) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), seed);
  return tokens;
}

// Inserts the whole pages of `tokens` that are not there; returns the last one's node.
PageTree::Node InsertAll(PageTree& tree, const std::vector<int32_t>& tokens, int first_page,
                         const std::string& salt = "") {
  const PageTree::Match match = tree.Find(salt, tokens, kAll);
  PageTree::Node node = match.node;
  for (size_t i = match.pages.size(); (i + 1) * kPageSize <= tokens.size(); ++i) {
    node = tree.Insert(salt, node, std::span(tokens).subspan(i * kPageSize, kPageSize),
                       first_page + static_cast<int>(i));
  }
  return node;
}

TEST(PageTreeTest, FindsTheLongestPrefixInWholePages) {
  PageTree tree(kPageSize);
  EXPECT_EQ(tree.Find("", Tokens(10), kAll).node, 0u);
  InsertAll(tree, Tokens(10), 100);
  EXPECT_EQ(tree.pages(), 2);
  EXPECT_EQ(tree.Find("", Tokens(10), kAll).pages, (std::vector<int>{100, 101}));
  EXPECT_EQ(tree.Find("", Tokens(100), kAll).pages, (std::vector<int>{100, 101}));
  EXPECT_EQ(tree.Find("", Tokens(7), kAll).pages, std::vector<int>{100});
  EXPECT_EQ(tree.Find("", Tokens(3), kAll).pages, std::vector<int>{});
  EXPECT_EQ(tree.Find("", Tokens(10), 1).pages, std::vector<int>{100});
  std::vector<int32_t> forked = Tokens(10);
  forked[5] = -1;
  EXPECT_EQ(tree.Find("", forked, kAll).pages, std::vector<int>{100});
  EXPECT_EQ(tree.Find("", Tokens(10, 1), kAll).node, 0u);
  EXPECT_TRUE(tree.CheckInvariants().ok());
}

TEST(PageTreeTest, SaltsShareNothing) {
  PageTree tree(kPageSize);
  InsertAll(tree, Tokens(8), 100, "a");
  EXPECT_EQ(tree.Find("", Tokens(8), kAll).node, 0u);
  EXPECT_EQ(tree.Find("b", Tokens(8), kAll).node, 0u);
  InsertAll(tree, Tokens(8), 200, "b");
  EXPECT_EQ(tree.Find("a", Tokens(8), kAll).pages, (std::vector<int>{100, 101}));
  EXPECT_EQ(tree.Find("b", Tokens(8), kAll).pages, (std::vector<int>{200, 201}));
}

TEST(PageTreeTest, TakesNoSecondPageOfTheSameTokens) {
  PageTree tree(kPageSize);
  EXPECT_NE(tree.Insert("", 0, Tokens(4), 7), 0u);
  EXPECT_EQ(tree.Insert("", 0, Tokens(4), 8), 0u);
  EXPECT_EQ(tree.Find("", Tokens(4), kAll).pages, std::vector<int>{7});
}

TEST(PageTreeTest, EvictsTheLeafThatWasUnusedTheLongest) {
  PageTree tree(kPageSize);
  const PageTree::Node old = InsertAll(tree, Tokens(12), 100);
  InsertAll(tree, Tokens(8, 50), 200);
  tree.Pin(old);
  tree.Unpin(old);  // Now the younger one.
  EXPECT_EQ(tree.Evict(1), std::vector<int>{201});
  EXPECT_EQ(tree.Evict(1), std::vector<int>{200});
  EXPECT_EQ(tree.Evict(9), (std::vector<int>{102, 101, 100}));
  EXPECT_EQ(tree.pages(), 0);
}

TEST(PageTreeTest, WhatIsPinnedAndWhatIsBeforeItStays) {
  PageTree tree(kPageSize);
  InsertAll(tree, Tokens(16), 100);
  const PageTree::Node second = tree.Find("", Tokens(8), kAll).node;
  EXPECT_EQ(tree.EvictablePagesOf(second), 2);
  tree.Pin(second);
  tree.Pin(second);
  EXPECT_EQ(tree.EvictablePagesOf(second), 0);
  EXPECT_EQ(tree.evictable_pages(), 2);
  EXPECT_EQ(tree.Flush(), (std::vector<int>{103, 102}));
  tree.Unpin(second);
  EXPECT_EQ(tree.Flush(), std::vector<int>{});
  tree.Unpin(second);
  EXPECT_EQ(tree.Flush(), (std::vector<int>{101, 100}));
}

TEST(PageTreeTest, APinMovesBehindWhatItWasOn) {
  PageTree tree(kPageSize);
  const PageTree::Node last = InsertAll(tree, Tokens(16), 100);
  const PageTree::Node first = tree.Find("", Tokens(4), kAll).node;
  tree.Pin(first);
  tree.MovePin(first, last);
  EXPECT_EQ(tree.evictable_pages(), 0);
  EXPECT_TRUE(tree.CheckInvariants().ok()) << tree.CheckInvariants();
  tree.Unpin(last);
  EXPECT_EQ(tree.evictable_pages(), 4);
  tree.MovePin(0, first);
  EXPECT_EQ(tree.Flush(), (std::vector<int>{103, 102, 101}));
}

// Against a map from salt and prefix to page.
TEST(PageTreeTest, AgreesWithAMapOfPrefixes) {
  Random random(1);
  PageTree tree(kPageSize);
  std::map<std::pair<std::string, std::vector<int32_t>>, int> pages;
  std::vector<PageTree::Node> pinned;
  int next_page = 0;
  for (int step = 0; step < 20'000; ++step) {
    // Few tokens, so that prefixes are often shared.
    std::vector<int32_t> tokens(static_cast<size_t>(random.Between(0, 24)));
    for (int32_t& token : tokens) token = static_cast<int32_t>(random.Between(0, 1));
    const std::string salt = random.Chance(0.5) ? "" : "s";
    const PageTree::Match match = tree.Find(salt, tokens, kAll);
    size_t known = 0;
    while ((known + 1) * kPageSize <= tokens.size()) {
      const auto end = tokens.begin() + static_cast<int64_t>((known + 1) * kPageSize);
      const auto found = pages.find({salt, {tokens.begin(), end}});
      if (found == pages.end()) break;
      ASSERT_LT(known, match.pages.size());
      ASSERT_EQ(match.pages[known], found->second);
      ++known;
    }
    ASSERT_EQ(match.pages.size(), known);
    if (random.Chance(0.3)) {
      tree.Pin(match.node);
      pinned.push_back(match.node);
    }
    if (random.Chance(0.3) && !pinned.empty()) {
      tree.Unpin(pinned.back());
      pinned.pop_back();
    }
    if (random.Chance(0.5)) {
      InsertAll(tree, tokens, next_page, salt);
      for (size_t i = known; (i + 1) * kPageSize <= tokens.size(); ++i) {
        const auto end = tokens.begin() + static_cast<int64_t>((i + 1) * kPageSize);
        pages[{salt, {tokens.begin(), end}}] = next_page + static_cast<int>(i);
      }
      next_page += 100;
    }
    const int evictable = tree.evictable_pages();
    const int wanted = random.Chance(0.1) ? static_cast<int>(random.Between(0, 20)) : 0;
    const std::vector<int> evicted = tree.Evict(wanted);
    ASSERT_EQ(static_cast<int>(evicted.size()), std::min(wanted, evictable));
    for (const int page : evicted) {
      std::erase_if(pages, [page](const auto& entry) { return entry.second == page; });
    }
    ASSERT_EQ(static_cast<size_t>(tree.pages()), pages.size());
    ASSERT_TRUE(tree.CheckInvariants().ok()) << tree.CheckInvariants();
  }
}

TEST(CachedPagesTest, FreePagesGoBeforeCachedOnes) {
  BlockPool pool(6);
  std::optional<PageTree> tree(kPageSize);
  uint64_t evicted_total = 0;
  const std::vector<int> cached = TakePages(4, pool, tree, evicted_total);
  PageTree::Prefix prefix;
  tree->Extend("", Tokens(4 * kPageSize), cached, prefix);
  EXPECT_EQ(AvailablePages(pool, tree), 2) << "a request has the others";
  tree->Unpin(prefix.node);
  EXPECT_EQ(AvailablePages(pool, tree), 6);
  TakePages(2, pool, tree, evicted_total);
  EXPECT_EQ(evicted_total, 0u);
  EXPECT_EQ(TakePages(1, pool, tree, evicted_total), std::vector<int>{cached.back()});
  EXPECT_EQ(evicted_total, 1u);
  EXPECT_EQ(AvailablePages(pool, tree), 3);
}

TEST(CachedPagesTest, WithoutACacheThereAreFreePagesAlone) {
  BlockPool pool(3);
  std::optional<PageTree> none;
  uint64_t evicted_total = 0;
  EXPECT_EQ(TakePages(2, pool, none, evicted_total).size(), 2u);
  EXPECT_EQ(AvailablePages(pool, none), 1);
  EXPECT_EQ(evicted_total, 0u);
}

}  // namespace
}  // namespace baton
