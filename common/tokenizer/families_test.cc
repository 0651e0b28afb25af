// Compares tokenizers of every kind with Hugging Face's library, and with tiktoken, on 5,000 texts
// each (tests/parity/tokenizer_families.py, which makes the texts by the same rule).
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/base/random.h"
#include "common/tokenizer/stream/text_assembler.h"
#include "common/tokenizer/tokenizer.h"
#include "common/tokenizer/words/utf8.h"

namespace baton {
namespace {

using Ids = std::vector<int32_t>;

constexpr size_t kTexts = 5000;
constexpr size_t kHashDigits = 4;
constexpr char kData[] = "common/tokenizer/testdata/";

std::string ReadTestFile(const std::string& path) {
  std::ifstream file(kData + path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

const nlohmann::json& Golden() {
  static const auto* golden =
      new nlohmann::json(nlohmann::json::parse(ReadTestFile("families/golden.json")));
  return *golden;
}

std::string TextOf(uint64_t number) {
  static const auto* fragments =
      new std::vector<std::string>(Golden()["fragments"].get<std::vector<std::string>>());
  std::string text;
  const uint64_t count = 1 + Mix64(number) % 9;
  for (uint64_t at = 0; at < count; ++at) {
    text += (*fragments)[Mix64(number + at * 0x1234567) % fragments->size()];
  }
  return text;
}

// Fowler, Noll and Vo's hash of numbers as text.
class Digest {
 public:
  void Add(int64_t number) {
    const std::string text = (first_ ? "" : ",") + std::to_string(number);
    first_ = false;
    for (const char c : text) {
      value_ = (value_ ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
    }
  }
  std::string Hex() const {
    char digits[17];
    std::snprintf(digits, sizeof(digits), "%016llx", static_cast<unsigned long long>(value_));
    return digits;
  }

 private:
  uint64_t value_ = 0xcbf29ce484222325ULL;
  bool first_ = true;
};

std::string HashOf(const Ids& ids) {
  Digest digest;
  for (const int32_t id : ids) digest.Add(id);
  return digest.Hex().substr(16 - kHashDigits);
}

// Others' normalizers and pre-tokenizers around a vocabulary of this place.
const nlohmann::json& Pipelines() {
  static const auto* pipelines =
      new nlohmann::json(nlohmann::json::parse(ReadTestFile("families/pipelines.json")));
  return *pipelines;
}

std::unique_ptr<Tokenizer> Load(const std::string& family) {
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer;
  if (family == "kimi") {
    const std::string directory = testing::TempDir() + "/kimi";
    mkdir(directory.c_str(), 0700);
    std::ofstream(directory + "/tiktoken.model") << ReadTestFile("families/kimi.tiktoken");
    std::ofstream(directory + "/tokenizer_config.json")
        << ReadTestFile("families/kimi_config.json");
    tokenizer = Tokenizer::Load(directory);
  } else if (Pipelines().contains(family)) {
    const auto base = Pipelines()[family][0].get<std::string>();
    auto file = nlohmann::json::parse(
        ReadTestFile(base == "gpt2" ? "gpt2_tokenizer.json" : "families/" + base + ".json"));
    file.update(Pipelines()[family][1]);
    tokenizer = Tokenizer::LoadFromJson(file.dump());
  } else if (family == "gpt2" || family == "llama3" || family == "qwen2") {
    tokenizer = Tokenizer::LoadFromJson(ReadTestFile(family + "_tokenizer.json"));
  } else {
    tokenizer = Tokenizer::LoadFromJson(ReadTestFile("families/" + family + ".json"));
  }
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

class FamiliesTest : public testing::TestWithParam<std::string> {};

TEST_P(FamiliesTest, EncodesAsItsOwnLibraryDoes) {
  const auto tokenizer = Load(GetParam());
  ASSERT_NE(tokenizer, nullptr);
  const auto& golden = Golden()["families"][GetParam()];
  const auto hashes = golden["hashes"].get<std::string>();
  ASSERT_EQ(hashes.size(), kTexts * kHashDigits);
  int wrong = 0;
  for (size_t i = 0; i < kTexts && wrong < 5; ++i) {
    const std::string text = TextOf(i);
    const auto ids = tokenizer->Encode(text, /*add_special_tokens=*/true, /*parse_special=*/true);
    ASSERT_TRUE(ids.ok()) << ids.status();
    const bool same = HashOf(*ids) == hashes.substr(i * kHashDigits, kHashDigits);
    EXPECT_TRUE(same) << nlohmann::json(text).dump(-1, ' ', true) << " "
                      << nlohmann::json(*ids).dump();
    if (i < golden["first"].size()) {
      EXPECT_EQ(*ids, golden["first"][i].get<Ids>());
    }
    wrong += same ? 0 : 1;
  }
}

TEST_P(FamiliesTest, DecodesAsItsOwnLibraryDoes) {
  const auto& golden = Golden()["families"][GetParam()];
  if (!golden.contains("decoded")) return;  // tiktoken's is bytes, as GPT-2's.
  const auto tokenizer = Load(GetParam());
  ASSERT_NE(tokenizer, nullptr);
  Digest digest;
  for (size_t i = 0; i < 1000; ++i) {
    const Ids ids = tokenizer->Encode(TextOf(i), true, true).value();
    const std::string decoded = tokenizer->Decode(ids, /*skip_special=*/true).value();
    for (std::string_view text = decoded; !text.empty();) {
      const Utf8Step step = NextUtf8(text);
      digest.Add(static_cast<int64_t>(step.code_point));
      text.remove_prefix(step.length);
    }
    // A stream keeps the space that a text's beginning is marked by: it goes on with a prompt.
    IncrementalDetokenizer detokenizer(tokenizer.get(), /*skip_special=*/true);
    std::string streamed;
    for (const int32_t id : ids) streamed += detokenizer.Append(id);
    streamed += detokenizer.Flush();
    EXPECT_TRUE(streamed == decoded || streamed.ends_with(decoded) || GetParam() == "t5" ||
                GetParam() == "charsmap" || GetParam() == "characters" || GetParam() == "lowercase")
        << streamed << "|" << decoded;
  }
  EXPECT_EQ(digest.Hex(), golden["decoded"]);
}

TEST_P(FamiliesTest, TakesLongTextsInTime) {
  const auto tokenizer = Load(GetParam());
  ASSERT_NE(tokenizer, nullptr);
  for (const char* run : {"a", " ", "\n", "é", "▁", "x ", "1"}) {
    std::string text;
    while (text.size() < size_t{1} << 19) text += run;
    const auto ids = tokenizer->Encode(text, true, true);
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_GT(ids->size(), 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(All, FamiliesTest,
                         testing::Values("llama2", "mistral", "gemma", "characters", "t5",
                                         "charsmap", "unigram_bytes", "gpt2", "llama3", "qwen2",
                                         "falcon", "starcoder", "command_r", "neox", "opt",
                                         "deepseek2", "deepseek3", "tekken", "o200k", "cl100k",
                                         "bloom", "yi", "metaspace_never", "lowercase", "kimi"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace baton
