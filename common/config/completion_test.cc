#include "common/config/completion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/config/man_page.h"
#include "common/config/option_table.h"
#include "common/config/option_text.h"

namespace baton::config {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::string ReadAll(const std::string& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

std::string Folder() { return ::testing::TempDir() + "/completion"; }

// What a real bash would offer for the last of `words`, as bash itself splits them: with the
// script loaded and nothing else.
std::vector<std::string> Offered(const std::vector<std::string>& words) {
  const std::string folder = Folder();
  EXPECT_EQ(std::system(absl::StrCat("mkdir -p ", folder, "/models ", folder, "/other").c_str()),
            0);
  std::ofstream(folder + "/file.yaml") << "\n";
  std::ofstream(folder + "/baton.bash") << CompletionScript("bash").value();
  std::ofstream(folder + "/ask.bash")
      << "set -eu\ncd " << folder << "\nsource ./baton.bash\ncomplete -p baton >/dev/null\n"
      << "COMP_WORDS=('" << absl::StrJoin(words, "' '") << "')\nCOMP_CWORD=" << words.size() - 1
      << "\n_baton\nprintf '%s\\n' \"${COMPREPLY[@]}\"\n";
  const std::string command = absl::StrCat("bash --norc ", folder, "/ask.bash > ", folder, "/out");
  EXPECT_EQ(std::system(command.c_str()), 0) << absl::StrJoin(words, " ");
  return absl::StrSplit(ReadAll(folder + "/out"), '\n', absl::SkipEmpty());
}

TEST(CompletionTest, BashOffersCommandsThenTheirFlags) {
  EXPECT_THAT(Offered({"baton", "r"}), ElementsAre("router", "replay"));
  EXPECT_THAT(Offered({"baton", "model", ""}), ElementsAre("info", "make"));
  EXPECT_THAT(Offered({"baton", "completion", "z"}), ElementsAre("zsh"));
  EXPECT_THAT(Offered({"baton", "worker", "--pp-r"}), ElementsAre("--pp-rank"));
  EXPECT_THAT(Offered({"baton", "router", "--pp-r"}), IsEmpty());
  EXPECT_THAT(Offered({"baton", "model", "make", "--sha"}), ElementsAre("--shards"));
}

TEST(CompletionTest, BashOffersValuesInBothForms) {
  EXPECT_THAT(Offered({"baton", "worker", "--page-size", ""}),
              ElementsAre("16", "32", "64", "128"));
  EXPECT_THAT(Offered({"baton", "worker", "--page-size", "=", "3"}), ElementsAre("32"));
  EXPECT_THAT(Offered({"baton", "worker", "--page-size", "="}), Contains("64"));
  EXPECT_THAT(Offered({"baton", "up", "--model-path", ""}), ElementsAre("models", "other"));
  EXPECT_THAT(Offered({"baton", "up", "--config", "f"}), ElementsAre("file.yaml"));
  EXPECT_THAT(Offered({"baton", "up", "--port", ""}), IsEmpty());
  EXPECT_THAT(Offered({"baton", "serve", "mo"}), ElementsAre("models"));
  EXPECT_THAT(Offered({"baton", "serve", "models", "--target"}), ElementsAre("--target-itl-ms"));
  EXPECT_THAT(Offered({"baton", "serve", "models", "--decodes"}), IsEmpty());
}

TEST(CompletionTest, BashExpectsNoValueAfterASwitch) {
  EXPECT_THAT(Offered({"baton", "model", "make", "--tie-embeddings", "--see"}),
              ElementsAre("--seed"));
  EXPECT_THAT(Offered({"baton", "model", "make", "--tie-embeddings", "=", "t"}),
              ElementsAre("true"));
}

TEST(CompletionTest, EveryOptionIsInBothScriptsAndTheManPage) {
  const std::string bash = CompletionScript("bash").value();
  const std::string zsh = CompletionScript("zsh").value();
  const std::string man = absl::StrReplaceAll(ManOptions(), {{"\\-", "-"}});
  for (const Option& option : OptionTable()) {
    for (const std::string& flag : FlagsOf(option)) {
      EXPECT_TRUE(absl::StrContains(bash, absl::StrCat(" ", flag))) << flag;
      EXPECT_TRUE(absl::StrContains(zsh, absl::StrCat(flag, "="))) << flag;
      EXPECT_TRUE(absl::StrContains(man, absl::StrCat("\\fB", flag, "\\fR"))) << flag;
    }
  }
}

TEST(CompletionTest, ZshIsQuotedWhateverTheHelpSays) {
  const std::string zsh = CompletionScript("zsh").value();
  EXPECT_TRUE(absl::StartsWith(zsh, "#compdef baton\n"));
  for (const char* expected : {"'(--model-path --model)--model-path=[Directory of a model in "
                               "Hugging Face'\\''s layout\\: ",
                               "'--tie-embeddings=-[", "]:tokens:(16 32 64 128)'"}) {
    EXPECT_TRUE(absl::StrContains(zsh, expected)) << expected;
  }
  for (const absl::string_view line : absl::StrSplit(zsh, '\n')) {
    if (!absl::StrContains(line, "--") || !absl::StrContains(line, "[")) continue;
    const std::string plain = absl::StrReplaceAll(line, {{"'\\''", ""}});
    EXPECT_EQ(std::count(plain.begin(), plain.end(), '\''), 2) << line;
  }
}

TEST(CompletionTest, OtherShellsAreNamed) {
  EXPECT_THAT(CompletionScript("").status().message(), HasSubstr("which shell?"));
  EXPECT_THAT(CompletionScript("tcsh").status().message(), HasSubstr("no script for 'tcsh'"));
}

TEST(ManPageTest, RoffIsEscaped) {
  EXPECT_EQ(RoffText("a \\ b"), "a \\e b");
  EXPECT_EQ(RoffText(".so x"), "\\&.so x");
  EXPECT_EQ(RoffText("'tis"), "\\&'tis");
  EXPECT_EQ(RoffText("not --page-size=-1: -1 is well-known"),
            "not \\-\\-page\\-size=\\-1: \\-1 is well-known");
}

TEST(ManPageTest, NoLineOfTextIsTakenForARequest) {
  for (const absl::string_view line : absl::StrSplit(ManCommands() + ManOptions(), '\n')) {
    EXPECT_FALSE(absl::StartsWith(line, "'")) << line;
    if (!absl::StartsWith(line, ".")) continue;
    EXPECT_TRUE(line == ".TP" || absl::StartsWith(line, ".SS ")) << line;
  }
  EXPECT_THAT(ManCommands(), HasSubstr("\\fBbaton model make\\fR\n"));
  EXPECT_THAT(ManOptions(), HasSubstr("\\fIDIR\\fR"));
  EXPECT_THAT(ManOptions(), Not(HasSubstr("TEXT TEXT")));
}

}  // namespace
}  // namespace baton::config
