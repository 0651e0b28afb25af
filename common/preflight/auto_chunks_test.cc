#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/preflight/chunk_costs.h"
#include "common/preflight/preflight_fixture.h"

namespace baton {
namespace {

using preflight_testing::Check;
using preflight_testing::kGib;
using preflight_testing::Make;
using ::testing::Contains;
using ::testing::StartsWith;
using v1::OptionSpec;

constexpr int64_t kContext = 131072;

// Qwen3-235B's stages, as far as chunks and KV are concerned.
ModelFacts Qwen() {
  ModelFacts facts;
  facts.config.hidden_size = 4096;
  facts.config.intermediate_size = 1536;
  facts.config.num_hidden_layers = 94;
  facts.config.num_attention_heads = 64;
  facts.config.num_key_value_heads = 4;
  facts.config.head_dim = 128;
  facts.config.vocab_size = 151936;
  facts.config.max_position_embeddings = 262144;
  facts.dtype = facts.kv_dtype = ElementType::kBFloat16;
  return facts;
}

v1::Options Options(int64_t stages, int64_t kv_tokens) {
  v1::Options options;
  options.set_pp_size(stages);
  options.set_tp_size(1);
  options.set_pp_send_slice(true);
  options.set_page_size(64);
  options.set_kv_cache_tokens(kv_tokens);
  options.set_max_prefill_requests(16);
  options.set_max_running_requests(64);
  options.set_activation_credits(2);
  options.set_plans_in_flight(2);
  return options;
}

AutoChunks Find(const v1::Options& options, int64_t context = kContext) {
  const auto chunks = FindAutoChunks(options, Qwen(), context);
  EXPECT_TRUE(chunks.ok()) << chunks.status();
  return *chunks;
}

TEST(AutoChunksTest, ChunksHaveAFifthOfTheCacheAndNoMore) {
  for (const auto& [stages, kv_tokens, tokens] :
       {std::tuple(8, 65536, 4096), {8, 262144, 16384}, {4, 262144, 32768}, {8, 4096, 2048}}) {
    const v1::Options options = Options(stages, kv_tokens);
    const AutoChunk found = Find(options).optimal;
    EXPECT_EQ(found.tokens, tokens) << stages << " stages, " << kv_tokens;
    // By the memory plan itself, of every process.
    const auto memory = [&](int64_t chunk) {
      v1::Options sized = options;
      sized.set_chunked_prefill_size(chunk);
      sized.set_prefill_chains(1);
      sized.set_decode_pp_size(1);
      sized.set_decode_tp_size(1);
      return *PlanMemory(sized, OptionSpec::UP, Qwen(), kContext);
    };
    const HostMemory least = memory(2048);
    const auto worst = [&](int64_t chunk) {
      const HostMemory larger = memory(chunk);
      double share = 0;
      for (size_t i = 0; i < larger.processes.size(); ++i) {
        const ProcessMemory& process = larger.processes[i];
        if (process.kv == 0) continue;
        const auto more = static_cast<double>(process.buffers - least.processes[i].buffers);
        share = std::max(share, more / static_cast<double>(process.kv));
      }
      return share;
    };
    EXPECT_LE(worst(found.tokens), 0.2);
    if (found.tokens == kMostAutoChunk) continue;
    EXPECT_GT(worst(2 * found.tokens), 0.2);
  }
}

TEST(AutoChunksTest, IsTheSameForEveryProcessOfAChain) {
  v1::Options options = Options(8, 262144);
  const int64_t tokens = Find(options).optimal.tokens;
  options.set_pp_rank(7);
  options.set_threads(16);
  options.set_prefill_chains(3);
  options.set_decodes(5);
  options.set_memory_check("off");
  EXPECT_EQ(Find(options).optimal.tokens, tokens);
  options.set_executor("timed");
  EXPECT_EQ(Find(options).optimal.tokens, tokens) << "a play of it is cut alike";
}

TEST(AutoChunksTest, RulesThatFixTheirSizesHaveTheirOwn) {
  const AutoChunks chunks = Find(Options(8, 262144));
  EXPECT_EQ(chunks.Of(ChunkRule::kFixed).tokens, 2048);
  EXPECT_EQ(chunks.Of(ChunkRule::kSglang).tokens, 8192);
  EXPECT_EQ(chunks.Of(ChunkRule::kOptimal).tokens, chunks.optimal.tokens);
  const AutoChunk alone = Find(Options(1, 262144)).optimal;
  EXPECT_EQ(alone.tokens, 2048) << "one stage has no bubbles, and others wait for its chunks";
  EXPECT_EQ(alone.source, "--pp-size 1");
}

TEST(AutoChunksTest, StaysWithinContextAndCap) {
  EXPECT_EQ(Find(Options(8, 262144), 10000).optimal.tokens, 10048) << "whole pages";
  EXPECT_EQ(Find(Options(8, 262144), 100).fixed.tokens, 128);
  v1::Options capped = Options(8, 262144);
  capped.set_max_prefill_tokens(3000);
  EXPECT_EQ(Find(capped).optimal.tokens, 2944);
  EXPECT_EQ(Find(capped).optimal.source, "--max-prefill-tokens");
  EXPECT_EQ(Find(capped).fixed.tokens, 2048);
}

// A pool that is sized by this machine's memory must not move what others have to agree with.
TEST(AutoChunksTest, PreflightSettlesItWhateverTheMachine) {
  const model_testing::ModelDirectory model = Make("auto_chunks");
  const auto tokens = [&](int64_t gib, std::vector<std::string> args) {
    args.insert(args.end(), {"--model-path=" + model.path, "--disaggregation-mode=prefill",
                             "--pp-size=2", "--kv-cache-tokens=200000"});
    const PreflightReport report =
        Check(config::Command::kWorker, args, {gib * kGib, "MemAvailable"});
    EXPECT_TRUE(report.status().ok()) << report.status();
    EXPECT_EQ(report.chunks.here.max_chunk_tokens, report.values.chunked_prefill_size());
    return report.values.chunked_prefill_size();
  };
  const int64_t expected = tokens(64, {});
  EXPECT_EQ(expected, 16384);
  EXPECT_EQ(tokens(1, {"--mem-fraction-static=0.01", "--pp-rank=1"}), expected);
  EXPECT_EQ(tokens(64, {"--chunked-prefill-size=auto"}), expected);
  EXPECT_EQ(tokens(64, {"--chunked-prefill-size=256"}), 256);
}

TEST(AutoChunksTest, ChildrenAreToldWhatWasFound) {
  const model_testing::ModelDirectory model = Make("auto_children");
  const auto parsed = config::ParseOptions(
      config::Command::kUp, {{"--model-path=" + model.path, "--pp-size=2"}, {}, nullptr});
  ASSERT_TRUE(parsed.ok());
  const PreflightReport report = Preflight(*parsed, preflight_testing::kRoomy);
  ASSERT_TRUE(report.status().ok()) << report.status();
  const config::ParsedOptions planned = PlannedOptions(*parsed, report);
  const std::string flag =
      absl::StrCat("--chunked-prefill-size=", report.values.chunked_prefill_size());
  EXPECT_THAT(config::ChildArguments(planned, OptionSpec::PREFILL), Contains(flag));
  EXPECT_THAT(config::ChildArguments(planned, OptionSpec::DECODE),
              Not(Contains(StartsWith("--chunked-prefill-size"))));
  EXPECT_THAT(config::ChildArguments(*parsed, OptionSpec::PREFILL),
              Not(Contains(StartsWith("--chunked-prefill-size"))));
}

}  // namespace
}  // namespace baton
