#include "common/secrets/secret_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "common/base/clock.h"
#include "common/base/sync.h"

namespace baton {
namespace {

using testing::HasSubstr;

std::string Write(const std::string& name, const std::string& text) {
  std::string path = testing::TempDir() + "/" + name;
  std::ofstream(path + ".new") << text;
  std::filesystem::rename(path + ".new", path);
  return path;
}

TEST(SecretSetTest, AcceptsTheOptionAndEachLine) {
  const auto set = *SecretSet::Load("opt", Write("lines", "# mine\n one \r\n\ntwo\n"));
  for (const char* good : {"opt", "one", "two"}) EXPECT_TRUE(set->Accepts(good)) << good;
  for (const char* bad : {"", "o", "onE", "one ", "# mine", "oneone"}) {
    EXPECT_FALSE(set->Accepts(bad)) << bad;
  }
  EXPECT_EQ(set->First(), "opt");
  EXPECT_EQ((*SecretSet::Load("", Write("lines", "one\ntwo\n")))->First(), "one");
}

TEST(SecretSetTest, WithoutAnyNobodyIsAsked) {
  const auto none = *SecretSet::Load("", "");
  EXPECT_TRUE(none->asks_for_nothing());
  EXPECT_FALSE(none->Accepts(""));
  EXPECT_FALSE((*SecretSet::Load("", Write("lines", "one\n")))->asks_for_nothing());
}

TEST(SecretSetTest, AFileThatHoldsNoneIsRefusedByName) {
  for (const auto& [text, words] : {std::pair{"", "has no secret"},
                                    {"#only\n\n", "has no secret"},
                                    {"one\ntwo words\n", "line 2"},
                                    {"caf\xc3\xa9\n", "line 1"}}) {
    const std::string path = Write("bad", text);
    const auto set = SecretSet::Load("opt", path);
    ASSERT_FALSE(set.ok()) << text;
    EXPECT_THAT(std::string(set.status().message()), HasSubstr(path));
    EXPECT_THAT(std::string(set.status().message()), HasSubstr(words));
  }
  EXPECT_FALSE(SecretSet::Load("", "/no/such/file").ok());
}

TEST(SecretSetTest, FollowsTheFileAndKeepsTheLastGoodOne) {
  const std::string path = Write("turns", "old\n");
  const auto set = *SecretSet::Load("", path);
  const auto becomes = [&](const std::string& secret, bool accepted) {
    const int64_t until_us = NowUs() + 30'000'000;
    while (set->Accepts(secret) != accepted && NowUs() < until_us) {
    }
    return set->Accepts(secret) == accepted;
  };
  Write("turns", "new\nold\n");
  EXPECT_TRUE(becomes("new", true));
  EXPECT_TRUE(set->Accepts("old"));
  EXPECT_EQ(set->First(), "new");
  Write("turns", "new\n");
  EXPECT_TRUE(becomes("old", false));
  Write("turns", "");
  const int64_t until_us = NowUs() + 2 * SecretSet::kLookEveryUs;
  while (NowUs() < until_us) ASSERT_TRUE(set->Accepts("new"));
}

}  // namespace
}  // namespace baton
