#include "services/baton/chunk_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace baton {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

PreflightReport ReportOf(int64_t tokens, int stages) {
  PreflightReport report;
  report.role = v1::OptionSpec::UP;
  report.context_tokens = 8192;
  report.model.emplace().num_hidden_layers = 4;
  v1::Options& values = report.values;
  values.set_chunk_plan(tokens);
  values.set_pp_size(stages);
  values.set_page_size(64);
  values.set_chunked_prefill_size(1024);
  values.set_chunk_policy("fixed");
  values.set_dynamic_chunking_smooth_factor("0.75");
  report.chunks.stages.assign(static_cast<size_t>(stages), {.token_us = 1000});
  report.chunks.source = "p.json";
  return report;
}

TEST(ChunkReportTest, ShowsEveryRuleBesideTheBoundAndEveryStage) {
  // Two chunks of 1024 ms on two stages: three steps, of which each stage works two.
  const std::string text = ChunkReportText(ReportOf(2048, 2));
  EXPECT_THAT(text,
              HasSubstr("a prompt of 2048 tokens alone in a chain of 2 stages; costs by p.json"));
  EXPECT_THAT(
      text,
      HasSubstr("\nfixed *             2      1024      1024       3072.0    1.5000   0.3333\n"));
  EXPECT_THAT(text, HasSubstr("\nsglang "));
  EXPECT_THAT(text, HasSubstr("\noptimal "));
  EXPECT_THAT(text,
              HasSubstr("\nbound                                           2048.0    1.0000\n"));
  EXPECT_THAT(text, HasSubstr("* --chunk-policy fixed cuts it into 2 x 1024 tokens\n"));
  EXPECT_THAT(text, HasSubstr("\n0                [0, 2)       2048.0       1024.0   0.3333\n"));
  EXPECT_THAT(text, HasSubstr("\n1                [2, 4)       2048.0       1024.0   0.3333\n"));
}

TEST(ChunkReportTest, EachRuleHasTheChunksThatItWouldHaveByDefault) {
  PreflightReport report = ReportOf(4096, 2);
  report.auto_chunks = AutoChunks{{512, ""}, {2048, ""}, {1024, ""}};
  const std::string text = ChunkReportText(report);
  EXPECT_THAT(text, HasSubstr("\nfixed *             8       512 "));
  EXPECT_THAT(text, HasSubstr("\nsglang              2      2048 "));
}

TEST(ChunkReportTest, OneStageHasFixedChunksBySglangsRule) {
  PreflightReport report = ReportOf(2048, 1);
  report.values.set_chunk_policy("sglang");
  const std::string text = ChunkReportText(report);
  EXPECT_THAT(text, HasSubstr("\nfixed *             2      1024 "));
  EXPECT_THAT(text, Not(HasSubstr("sglang")));
}

TEST(ChunkReportTest, ShowsNothingUnasked) { EXPECT_EQ(ChunkReportText(ReportOf(0, 2)), ""); }

TEST(ChunkReportTest, SaysWhatIsMissingAndWhereToGetIt) {
  PreflightReport report = ReportOf(3000, 2);
  report.chunks.stages.clear();
  report.chunks.missing = "--chunk-profile names no file of them";
  const std::string text = ChunkReportText(report);
  EXPECT_THAT(text, HasSubstr("is not known: --chunk-profile names no file of them"));
  EXPECT_THAT(text, HasSubstr("writes to --chunk-profile FILE"));
  EXPECT_THAT(text, HasSubstr("cuts it into 2 x 1024, 952 tokens"));
  EXPECT_THAT(text, Not(HasSubstr("TTFT")));
}

TEST(ChunkReportTest, WhereNoPromptIsCutNoOtherRuleApplies) {
  PreflightReport report = ReportOf(5000, 1);
  report.values.set_chunked_prefill_size(-1);
  report.values.set_chunk_policy("optimal");
  const std::string text = ChunkReportText(report);
  EXPECT_THAT(text, HasSubstr("* --chunk-policy fixed cuts it into 5000 tokens"));
  EXPECT_THAT(text, Not(HasSubstr("sglang")));
}

TEST(ChunkReportTest, ManySizesAreCutShort) {
  PreflightReport report = ReportOf(1 << 18, 4);
  report.context_tokens = 1 << 18;
  report.values.set_page_size(16);
  report.values.set_chunked_prefill_size(1 << 16);
  report.values.set_chunk_policy("optimal");
  report.chunks.stages.assign(4, {.overhead_us = 4000, .token_us = 10, .attention_us = 0.001});
  EXPECT_THAT(ChunkReportText(report), HasSubstr(", ..., "));
}

TEST(ChunkReportTest, ADecodeServiceCutsNothing) {
  PreflightReport report = ReportOf(100, 1);
  report.role = v1::OptionSpec::DECODE;
  EXPECT_THAT(ChunkReportText(report), HasSubstr("a decode service cuts no prompts"));
}

}  // namespace
}  // namespace baton
