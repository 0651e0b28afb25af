#include "common/chunking/chunk_profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

namespace baton {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kGood[] = R"({
 "format": 1,
 "measured_on": {
  "model": "toy", "config": "00000000000000ff",
  "executor": "native", "device": "cpu",
  "dtype": "bfloat16", "kv_dtype": "float32", "cpu_numerics": "exact",
  "threads": 4, "max_chunk_tokens": 2048, "host": "h", "cpu": "c"
 },
 "stages": [
  {"layers": 2, "overhead_us": 10, "prefix_us": 0.5, "token_us": 4,
   "attention_us": 0.25, "error": 0.1, "plans": 20},
  {"layers": 4, "overhead_us": 20, "prefix_us": 0, "token_us": 8,
   "attention_us": 0.5, "error": 0.2, "plans": 30}
 ]
})";

std::string Changed(const std::string& from, const std::string& to) {
  std::string text = kGood;
  const size_t at = text.rfind(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(ChunkProfileTest, ReadsWhatItWrites) {
  const auto profile = ParseChunkProfile(kGood, "p.json");
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_EQ(profile->on.config_hash, 255u);
  EXPECT_EQ(profile->on.kv_dtype, "float32");
  EXPECT_EQ(profile->on.threads, 4);
  ASSERT_EQ(profile->stages.size(), 2u);
  EXPECT_EQ(profile->stages[1].cost,
            (StageCost{.overhead_us = 20, .token_us = 8, .attention_us = 0.5}));
  EXPECT_EQ(profile->stages[1].plans, 30);

  ChunkProfile odd = *profile;
  odd.stages[0].cost.token_us = 1.0 / 3;
  odd.on.config_hash = UINT64_MAX;
  odd.on.host = "\xff is no UTF-8";
  const auto again = ParseChunkProfile(ChunkProfileText(odd), "p.json");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->stages[0].cost, odd.stages[0].cost) << "to the last bit";
  EXPECT_EQ(again->stages[0].error, 0.1);
  EXPECT_EQ(again->on.config_hash, UINT64_MAX);
  EXPECT_EQ(again->on.DifferenceTo(odd.on), "");
  EXPECT_EQ(ChunkProfileText(*again).find('\xff'), std::string::npos);
}

TEST(ChunkProfileTest, SaysTheLineAndTheFieldOfWhatIsWrong) {
  struct Case {
    const char* from;
    const char* to;
    std::vector<const char*> says;
  };
  const std::vector<Case> cases = {
      {"\"format\": 1", "\"format\": 2", {"line 2", "\"format\" is 2"}},
      {"\"format\": 1,", "", {"\"format\"", "missing"}},
      {"\"plans\": 30", "\"plans\": 30, \"plan\": 1", {"\"stages[1].plan\"", "unknown"}},
      {"\"token_us\": 8", "\"token_us\": -8", {"line 12", "\"stages[1].token_us\" is -8"}},
      {"\"token_us\": 4", "\"token_us\": -4", {"line 10", "\"stages[0].token_us\" is -4"}},
      {"\"token_us\": 8", "\"token_us\": NaN", {"line 12", "not valid JSON"}},
      {"\"token_us\": 8", "\"token_us\": 1e999", {"not valid JSON"}},
      {"\"token_us\": 8", "\"token_us\": 1e30", {"line 12", "\"stages[1].token_us\" is 1e+30"}},
      {"\"token_us\": 8", "\"token_us\": null", {"\"stages[1].token_us\" is null", "a number"}},
      {"\"token_us\": 8,", "", {"\"stages[1].token_us\" is missing"}},
      {"\"layers\": 4", "\"layers\": 0", {"line 12", "\"stages[1].layers\" is 0"}},
      {"\"error\": 0.2", "\"error\": 0.4", {"line 13", "\"stages[1].error\" is 0.4", "0.3"}},
      {"\"plans\": 30", "\"plans\": 1e400", {"not valid JSON"}},
      {"\"plans\": 30", "\"plans\": -1", {"\"stages[1].plans\" is -1"}},
      {"\"00000000000000ff\"", "\"ff\"", {"line 4", "\"measured_on.config\" is \"ff\""}},
      {"\"dtype\": \"bfloat16\"", "\"dtype\": 7", {"line 6", "\"measured_on.dtype\" is no string"}},
      {"\"exact\"", "true", {"line 6", "\"measured_on.cpu_numerics\" is no string"}},
      {"\"threads\": 4", "\"threads\": 99999999999", {"\"measured_on.threads\""}},
      {"\"measured_on\"", "\"measured\"", {"\"measured\" is unknown"}},
      {"\"stages\": [", "\"stages\": [7,", {"\"stages[0]\" is no object"}},
  };
  for (const Case& bad : cases) {
    const auto profile = ParseChunkProfile(Changed(bad.from, bad.to), "p.json");
    ASSERT_FALSE(profile.ok()) << bad.to;
    EXPECT_EQ(profile.status().code(), absl::StatusCode::kInvalidArgument);
    const std::string message(profile.status().message());
    EXPECT_THAT(message, StartsWith("p.json: "));
    for (const char* part : bad.says) EXPECT_THAT(message, HasSubstr(part));
  }
  const std::string head = std::string(kGood).substr(0, std::string(kGood).find("\"stages\""));
  for (const char* stages : {"\"stages\": []}", "\"stages\": {}}", "\"stages\": 1}"}) {
    const auto profile = ParseChunkProfile(head + stages, "p.json");
    ASSERT_FALSE(profile.ok()) << stages;
    EXPECT_THAT(std::string(profile.status().message()), HasSubstr("1 to 64 stages"));
  }
  EXPECT_FALSE(ParseChunkProfile("", "p.json").ok());
  EXPECT_FALSE(ParseChunkProfile("[1]", "p.json").ok());
}

TEST(ChunkProfileTest, FieldsThatMayBeMissing) {
  const nlohmann::json good = nlohmann::json::parse(kGood);
  const std::set<std::string> optional = {"cpu_numerics", "threads", "max_chunk_tokens", "host",
                                          "cpu"};
  for (const auto& [field, value] : good["measured_on"].items()) {
    nlohmann::json without = good;
    without["measured_on"].erase(field);
    const auto profile = ParseChunkProfile(without.dump(), "p.json");
    EXPECT_EQ(profile.ok(), optional.contains(field)) << field << ": " << profile.status();
    if (!profile.ok()) continue;
    EXPECT_EQ(profile->on.threads, field == "threads" ? 1 : 4);
    EXPECT_EQ(profile->on.max_chunk_tokens, field == "max_chunk_tokens" ? 0 : 2048);
  }
  for (const auto& [field, value] : good["stages"][0].items()) {
    nlohmann::json without = good;
    without["stages"][0].erase(field);
    EXPECT_FALSE(ParseChunkProfile(without.dump(), "p.json").ok()) << field;
  }
}

TEST(ChunkProfileTest, NumbersHaveBounds) {
  struct Bound {
    const char* section;
    const char* field;
    int64_t least;
    int64_t most;
  };
  for (const Bound& bound :
       {Bound{"measured_on", "threads", 1, 1024},
        Bound{"measured_on", "max_chunk_tokens", 0, int64_t{1} << 27},
        Bound{"stages", "layers", 1, 65536}, Bound{"stages", "plans", 0, int64_t{1} << 53}}) {
    const auto accepted = [&bound](int64_t value) {
      nlohmann::json changed = nlohmann::json::parse(kGood);
      nlohmann::json& part = changed[bound.section];
      (part.is_array() ? part[0] : part)[bound.field] = value;
      return ParseChunkProfile(changed.dump(), "p.json").ok();
    };
    EXPECT_TRUE(accepted(bound.least) && accepted(bound.most)) << bound.field;
    EXPECT_FALSE(accepted(bound.least - 1) || accepted(bound.most + 1)) << bound.field;
  }
}

TEST(ChunkProfileTest, CostsAreAnyNumbersFromZeroOn) {
  for (const char* field : {"overhead_us", "prefix_us", "token_us", "attention_us"}) {
    for (const double value : {-0.5, 0.0, 0.5}) {
      nlohmann::json changed = nlohmann::json::parse(kGood);
      changed["stages"][0][field] = value;
      EXPECT_EQ(ParseChunkProfile(changed.dump(), "p.json").ok(), value >= 0) << field << value;
    }
  }
}

TEST(ChunkProfileTest, TokensThatCostNothingAreRefused) {
  std::string text = Changed("\"token_us\": 8", "\"token_us\": 0");
  text.replace(text.rfind("\"attention_us\": 0.5"), 19, "\"attention_us\": 0.0");
  const auto profile = ParseChunkProfile(text, "p.json");
  ASSERT_FALSE(profile.ok());
  EXPECT_THAT(std::string(profile.status().message()), HasSubstr("tokens cost nothing"));
}

TEST(ChunkProfileTest, FilesAreBounded) {
  EXPECT_EQ(LoadChunkProfile("/nowhere.json").status().code(), absl::StatusCode::kNotFound);
  const std::string path = testing::TempDir() + "/large_profile.json";
  std::ofstream(path) << std::string(kGood) + std::string(2 << 20, ' ');
  const absl::Status large = LoadChunkProfile(path).status();
  EXPECT_EQ(large.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(large.message()), HasSubstr("larger than the accepted"));
}

TEST(ChunkProfileTest, AFileOfAMebibyteIsTheLargest) {
  const std::string path = testing::TempDir() + "/profile_at_the_bound.json";
  for (const size_t bytes : {size_t{1} << 20, (size_t{1} << 20) + 1}) {
    std::string text = kGood;
    text.resize(bytes, ' ');
    std::ofstream(path) << text;
    EXPECT_EQ(LoadChunkProfile(path).ok(), bytes == size_t{1} << 20) << bytes;
  }
}

TEST(ChunkProfileTest, SaysWhatItWasMeasuredOn) {
  const MeasuredOn here = ParseChunkProfile(kGood, "p.json")->on;
  MeasuredOn there = here;
  there.host = "another";
  there.threads = 64;
  EXPECT_EQ(there.DifferenceTo(here), "") << "costs follow within a few plans";
  there.dtype = "float32";
  EXPECT_EQ(there.DifferenceTo(here), "--dtype is float32 there and bfloat16 here");
  MeasuredOn unknowing = here;
  unknowing.dtype.clear();
  EXPECT_EQ(there.DifferenceTo(unknowing), "");
  there.cpu_numerics = "auto";
  EXPECT_EQ(there.DifferenceTo(unknowing), "--cpu-numerics is auto there and exact here");
  unknowing.cpu_numerics.clear();
  EXPECT_EQ(there.DifferenceTo(unknowing), "") << "types for which it makes no difference";
  unknowing.cpu_numerics = "exact";
  there.cpu_numerics.clear();
  EXPECT_EQ(there.DifferenceTo(unknowing), "") << "a file that does not say it";
  there.config_hash = 1;
  EXPECT_EQ(there.DifferenceTo(here), "the model toy has other sizes there");
  there.model = "tiny";
  EXPECT_EQ(there.DifferenceTo(here), "the model is tiny there and toy here");
}

TEST(ChunkProfileTest, CostsFollowLayers) {
  const auto profile = ParseChunkProfile(kGood, "p.json");
  ASSERT_TRUE(profile.ok());
  const StageCost half = profile->stages[1].OfLayers(2);
  EXPECT_DOUBLE_EQ(half.Micros(100, 64), profile->stages[1].cost.Micros(100, 64) / 2);
}

TEST(ChunkProfileTest, LayersOfTwoKindsTakeTheirPartOfAStagesCost) {
  const StageCost cost = {.overhead_us = 100, .prefix_us = 2, .token_us = 10, .attention_us = 1};
  ChunkProfile profile;
  profile.stages = {{.layers = 2, .cost = cost}, {.layers = 2, .cost = cost}};
  const std::vector<double> work = {1, 1, 3, 3};
  const std::vector<StageCost> same = profile.CostsOf({{0, 2}, {2, 4}}, work);
  EXPECT_EQ(same, (std::vector<StageCost>{cost, cost}));
  const std::vector<StageCost> moved = profile.CostsOf({{0, 3}, {3, 4}}, work);
  EXPECT_DOUBLE_EQ(moved[0].token_us, 10 * 5.0 / 2) << "two of its layers and one three times that";
  EXPECT_DOUBLE_EQ(moved[0].overhead_us, 100 * 5.0 / 2);
  EXPECT_DOUBLE_EQ(moved[0].attention_us, 1.5);
  EXPECT_DOUBLE_EQ(moved[0].prefix_us, 3);
  EXPECT_DOUBLE_EQ(moved[1].token_us, 5);
  EXPECT_DOUBLE_EQ(moved[1].attention_us, 0.5);
}

}  // namespace
}  // namespace baton
