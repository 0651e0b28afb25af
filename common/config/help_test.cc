#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/config/option_table.h"
#include "common/config/options.h"

namespace baton::config {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(HelpTest, EveryCommandShowsItsOptionsAndNoOther) {
  const std::string worker = HelpText(Command::kWorker);
  EXPECT_THAT(worker, HasSubstr("Usage: baton worker"));
  EXPECT_THAT(worker, HasSubstr("  --pp-size, --pp, --pipeline-parallel-size N\n"));
  EXPECT_THAT(worker, HasSubstr("  --page-size, --block-size 16|32|64|128\n"));
  EXPECT_THAT(worker, HasSubstr("  --enable-dynamic-chunking[=true|false]\n"));
  EXPECT_THAT(worker, Not(HasSubstr("--prefill-chains")));
  EXPECT_THAT(HelpText(Command::kUp), HasSubstr("--prefill-chains"));
  EXPECT_THAT(HelpText(Command::kModelInfo), Not(HasSubstr("--hidden-size")));
  EXPECT_THAT(HelpText(Command::kModelMake), HasSubstr("--hidden-size"));
}

TEST(HelpTest, LinesAreWrapped) {
  for (const absl::string_view line : absl::StrSplit(HelpText(Command::kValidate), '\n')) {
    // Only a line of names may be longer than the terminal.
    const bool names_flags = line.find("--") == 2;
    EXPECT_TRUE(names_flags || line.size() <= 80) << line;
  }
}

TEST(HelpTest, AWordFilters) {
  const std::string pages = HelpText(Command::kWorker, "PAGE");
  EXPECT_THAT(pages, HasSubstr("--page-size"));
  EXPECT_THAT(pages, Not(HasSubstr("--log-level")));
  EXPECT_THAT(HelpText(Command::kRouter, "xyzzy"), HasSubstr("mentions 'xyzzy'"));
}

TEST(HelpTest, EffectiveTextShowsValueAndSource) {
  OptionInput input{{"--model-path=/m", "--page-size=32"}, {"BATON_DECODES=3"}, nullptr};
  const auto parsed = ParseOptions(Command::kValidate, input);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  const std::string text = EffectiveText(*parsed);
  EXPECT_THAT(text, testing::ContainsRegex("page_size +32 +flag --page-size\n"));
  EXPECT_THAT(text, testing::ContainsRegex("decodes +3 +variable BATON_DECODES\n"));
  EXPECT_THAT(text, testing::ContainsRegex("host +127.0.0.1 +default\n"));
  EXPECT_THAT(text, Not(HasSubstr("hidden_size")));
}

TEST(HelpTest, DocumentationIsUpToDate) {
  std::ifstream file("docs/options.md");
  const std::string text(std::istreambuf_iterator<char>(file), {});
  EXPECT_TRUE(text == OptionsMarkdown()) << "./dev docs writes it anew";
}

}  // namespace
}  // namespace baton::config
