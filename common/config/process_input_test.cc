#include "common/config/process_input.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace baton::config {
namespace {

TEST(ProcessInputTest, ReadsArgumentsEnvironmentAndFile) {
  const std::string path = absl::StrCat(testing::TempDir(), "/baton.yaml");
  std::ofstream(path) << "host: ::1\n";
  ASSERT_EQ(setenv("BATON_PORT", "7", 1), 0);
  const std::string config = absl::StrCat("--config=", path);
  std::vector<std::string> words = {"baton", "router", "--model-path=/m", config};
  std::vector<char*> argv;
  argv.reserve(words.size());
  for (std::string& word : words) argv.push_back(word.data());
  const auto parsed =
      ParseOptions(Command::kRouter, FromProcess(static_cast<int>(argv.size()), argv.data()));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->values.port(), 7);
  EXPECT_EQ(parsed->values.host(), "::1");
  EXPECT_EQ(SourceText(parsed->sources.at("host")), absl::StrCat(path, ":1"));
}

TEST(ProcessInputTest, RefusesWhatIsNoSmallFile) {
  EXPECT_FALSE(ReadTextFile("/no/such/file").ok());
  EXPECT_FALSE(ReadTextFile("/").ok());
  EXPECT_FALSE(ReadTextFile("/dev/zero").ok());
  const std::string path = absl::StrCat(testing::TempDir(), "/large.yaml");
  std::ofstream(path) << std::string((size_t{1} << 20) + 1, ' ');
  EXPECT_FALSE(ReadTextFile(path).ok());
}

}  // namespace
}  // namespace baton::config
