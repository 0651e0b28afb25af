#include "common/model/generation_defaults.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace baton {
namespace {

GenerationDefaults Parse(const std::string& json) {
  const auto defaults = ParseGenerationDefaults(json, "generation_config.json");
  EXPECT_TRUE(defaults.ok()) << defaults.status();
  return defaults.value_or(GenerationDefaults());
}

TEST(GenerationDefaultsTest, TakesWhatIsThere) {
  const GenerationDefaults defaults = Parse(
      R"({"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0,
          "repetition_penalty": 1.05, "max_new_tokens": 512, "eos_token_id": [1, 2],
          "pad_token_id": 1, "transformers_version": "4.51.0"})");
  EXPECT_EQ(defaults.temperature, 0.6);
  EXPECT_EQ(defaults.top_k, 20);
  EXPECT_EQ(defaults.top_p, 0.95);
  EXPECT_EQ(defaults.min_p, 0.0);
  EXPECT_EQ(defaults.repetition_penalty, 1.05);
  EXPECT_EQ(defaults.max_new_tokens, 512);
  EXPECT_EQ(defaults.ToString(),
            "temperature 0.6, top_k 20, top_p 0.95, min_p 0, repetition_penalty 1.05, "
            "max_new_tokens 512");
  EXPECT_EQ(Parse("{}").ToString(), "");
  EXPECT_EQ(Parse(R"({"temperature": null, "do_sample": null})").ToString(), "");
}

TEST(GenerationDefaultsTest, GreedyWhereTheFileSaysSo) {
  EXPECT_EQ(Parse(R"({"do_sample": false, "temperature": 0.6})").temperature, 0.0);
  EXPECT_EQ(Parse(R"({"do_sample": false})").temperature, 0.0);
  EXPECT_EQ(Parse(R"({"temperature": 0.6})").temperature, 0.6);
}

TEST(GenerationDefaultsTest, RefusesWhatIsWrongByFileAndKey) {
  for (const char* key : {"temperature", "top_k", "top_p", "min_p", "repetition_penalty",
                          "max_new_tokens", "do_sample"}) {
    for (const char* value : {"-2", "\"1\"", "[1]", "1e300"}) {
      const auto defaults = ParseGenerationDefaults(std::string("{\"") + key + "\": " + value + "}",
                                                    "generation_config.json");
      EXPECT_EQ(defaults.status().code(), absl::StatusCode::kInvalidArgument) << key << value;
      EXPECT_NE(defaults.status().message().find(std::string("generation_config.json: \"") + key),
                std::string::npos)
          << defaults.status();
    }
  }
  for (const char* json :
       {R"({"top_p": 0})", R"({"top_p": 1.1})", R"({"min_p": 1.5})", R"({"repetition_penalty": 0})",
        R"({"repetition_penalty": 2.5})", R"({"max_new_tokens": 0})", R"({"top_k": 2.5})", "[]"}) {
    EXPECT_FALSE(ParseGenerationDefaults(json, "f").ok()) << json;
  }
}

TEST(GenerationDefaultsTest, AModelNeedNoneOfIt) {
  const std::string directory = testing::TempDir() + "/generation_defaults";
  std::filesystem::create_directories(directory);
  std::filesystem::remove(directory + "/generation_config.json");
  EXPECT_EQ(LoadGenerationDefaults(directory)->ToString(), "");
  std::ofstream(directory + "/generation_config.json") << R"({"top_p": 2})";
  const absl::Status wrong = LoadGenerationDefaults(directory).status();
  EXPECT_NE(wrong.message().find(directory + "/generation_config.json: \"top_p\""),
            std::string::npos)
      << wrong;
}

}  // namespace
}  // namespace baton
