#include "common/config/node_share.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/config/options.h"
#include "common/config/testing/given.h"

namespace baton::config {
namespace {

using ::testing::ElementsAre;
using testing::ExpectRefused;
using testing::Given;
using ::testing::HasSubstr;
using testing::Parse;

Given Node(std::vector<std::string> args) {
  args.insert(args.begin(), "--disaggregation-mode=prefill");
  return {.args = std::move(args), .command = Command::kWorker};
}

Given DecodeNode(std::vector<std::string> args) {
  args.insert(args.begin(), "--disaggregation-mode=decode");
  return {.args = std::move(args), .command = Command::kWorker};
}

std::vector<std::string> Places(int64_t stages, int64_t ranks, int64_t nodes, int64_t node) {
  v1::Options options;
  options.set_pp_size(stages);
  options.set_tp_size(ranks);
  options.set_nnodes(nodes);
  options.set_node_rank(node);
  std::vector<std::string> texts;
  for (const StageRank& place : PlacesHere(options)) {
    texts.push_back(std::to_string(place.stage) + "." + std::to_string(place.rank));
  }
  return texts;
}

TEST(NodeShareTest, NodesHaveEqualRunsStageByStage) {
  // Whole stages, parts of stages, and runs that cross from one stage to the next.
  EXPECT_THAT(Places(2, 2, 1, 0), ElementsAre("0.0", "0.1", "1.0", "1.1"));
  EXPECT_THAT(Places(4, 2, 2, 1), ElementsAre("2.0", "2.1", "3.0", "3.1"));
  EXPECT_THAT(Places(2, 4, 4, 1), ElementsAre("0.2", "0.3"));
  EXPECT_THAT(Places(3, 2, 2, 0), ElementsAre("0.0", "0.1", "1.0"));
  EXPECT_THAT(Places(3, 2, 2, 1), ElementsAre("1.1", "2.0", "2.1"));
}

TEST(NodeShareTest, EveryPlaceIsOneNodes) {
  for (const int64_t nodes : {1, 2, 3, 4, 6, 12}) {
    std::vector<std::string> all;
    for (int64_t node = 0; node < nodes; ++node) {
      for (std::string& place : Places(3, 4, nodes, node)) all.push_back(std::move(place));
    }
    EXPECT_EQ(all, Places(3, 4, 1, 0)) << nodes;
  }
}

TEST(NodeShareTest, ADecodeServiceIsDealtOutLikeAChain) {
  v1::Options options;
  options.set_disaggregation_mode("decode");
  options.set_pp_size(1);
  options.set_tp_size(4);
  options.set_nnodes(2);
  options.set_node_rank(1);
  EXPECT_THAT(PlacesHere(options), ElementsAre(StageRank{0, 2}, StageRank{0, 3}));
  options.set_pp_size(2);
  EXPECT_THAT(PlacesHere(options),
              ElementsAre(StageRank{1, 0}, StageRank{1, 1}, StageRank{1, 2}, StageRank{1, 3}));
  options.set_nnodes(1);
  options.set_node_rank(0);
  EXPECT_EQ(PlacesHere(options).size(), 8u);
}

TEST(NodeShareTest, OneWorkerIsItsOwnPlace) {
  const auto worker = Parse(Node({"--pp-size=2", "--tp-size=2", "--pp-rank=1", "--tp-rank=0"}));
  ASSERT_TRUE(worker.ok()) << worker.status();
  EXPECT_FALSE(IsNode(worker->values));
  EXPECT_THAT(PlacesHere(worker->values), ElementsAre(StageRank{1, 0}));
}

TEST(NodeShareTest, TheAddressNamesTheChainUnlessSomethingElseDoes) {
  const std::vector<std::string> nodes = {"--pp-size=2", "--nnodes=2", "--node-rank=1"};
  const auto parse = [&](std::vector<std::string> more) {
    more.insert(more.begin(), nodes.begin(), nodes.end());
    const auto parsed = Parse(Node(std::move(more)));
    EXPECT_TRUE(parsed.ok()) << parsed.status();
    return *parsed;
  };
  const ParsedOptions named = parse({"--dist-init-addr=10.0.0.2:25000"});
  EXPECT_EQ(named.values.chain_id(), "10.0.0.2-25000");
  EXPECT_EQ(SourceText(named.sources.at("chain_id")), "derived from --dist-init-addr");
  EXPECT_EQ(parse({"--dist-init-addr=[fd00::2]:25000"}).values.chain_id(), "fd00--2-25000");
  EXPECT_EQ(parse({"--dist-init-addr=node-0:1", "--chain-id=c"}).values.chain_id(), "c");
  EXPECT_EQ(parse({"--dist-init-addr=10.0.0.2"}).values.chain_id(), "10.0.0.2");
  EXPECT_EQ(parse({"--dist-init-addr=node_0.example"}).values.chain_id(), "node_0.example");
  EXPECT_EQ(parse({"--dist-init-addr=fd00::2"}).values.chain_id(), "fd00--2");
  EXPECT_EQ(parse({"--master-addr=10.0.0.2"}).values.chain_id(), "10.0.0.2");
  EXPECT_EQ(parse({}).values.chain_id(), "chain-0");
}

TEST(NodeShareTest, TheAddressNamesTheDecodeServiceUnlessSomethingElseDoes) {
  const auto parse = [](std::vector<std::string> more) {
    more.insert(more.begin(), {"--tp-size=4", "--nnodes=2", "--node-rank=1"});
    const auto parsed = Parse(DecodeNode(std::move(more)));
    EXPECT_TRUE(parsed.ok()) << parsed.status();
    return *parsed;
  };
  const ParsedOptions named = parse({"--dist-init-addr=10.0.0.2:25000"});
  EXPECT_EQ(named.values.decode_id(), "10.0.0.2-25000");
  EXPECT_EQ(named.values.chain_id(), "chain-0");
  EXPECT_EQ(SourceText(named.sources.at("decode_id")), "derived from --dist-init-addr");
  EXPECT_EQ(parse({"--dist-init-addr=node-0:1", "--decode-id=d"}).values.decode_id(), "d");
  EXPECT_EQ(parse({}).values.decode_id(), "0");
}

TEST(NodeShareTest, AnAddressWithoutNodesIsOneNodesGroup) {
  const auto parsed = Parse(Node({"--pp-size=2", "--dist-init-addr=10.0.0.2:1"}));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->values.nnodes(), 1);
  EXPECT_EQ(parsed->values.node_rank(), 0);
  EXPECT_EQ(SourceText(parsed->sources.at("nnodes")), "derived from --dist-init-addr");
}

TEST(NodeShareTest, OneNodeNeedsNoRank) {
  const auto parsed = Parse(Node({"--pp-size=2", "--nnodes=1"}));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->values.node_rank(), 0);
  EXPECT_EQ(SourceText(parsed->sources.at("node_rank")), "derived from --nnodes");
}

struct Row {
  std::vector<std::string> args;
  std::string field;
  std::vector<std::string> words;
};

TEST(NodeShareTest, WhatCannotBeIsRefusedNamingBothSides) {
  const Row rows[] = {
      {{"--pp-size=2", "--tp-size=2", "--nnodes=3", "--node-rank=0"},
       "nnodes",
       {"got 3", "the 4 processes", "pp_size = 2 times tp_size = 2", "flag --nnodes"}},
      {{"--pp-size=2", "--nnodes=4", "--node-rank=0"}, "nnodes", {"got 4", "the 2 processes"}},
      {{"--pp-size=2", "--nnodes=2", "--node-rank=2"},
       "node_rank",
       {"got 2", "less than nnodes = 2", "flag --node-rank"}},
      {{"--pp-size=2", "--nnodes=2"}, "node_rank", {"required beside nnodes = 2", "nodes 0 to 1"}},
      {{"--pp-size=2", "--node-rank=1"}, "node_rank", {"got 1", "give --nnodes"}},
      {{"--nnodes=-1"}, "nnodes", {"'-1'", "from 0 to 4096"}},
      {{"--node-rank=-2"}, "node_rank", {"'-2'"}},
      {{"--pp-size=2", "--nnodes=2", "--node-rank=0", "--pp-rank=0"},
       "nnodes",
       {"got 2", "pp_rank = 0 (flag --pp-rank)", "flag --nnodes"}},
      {{"--tp-size=2", "--nnodes=2", "--node-rank=0", "--tp-rank=1"},
       "nnodes",
       {"tp_rank = 1 (flag --tp-rank)"}},
      {{"--pp-size=2", "--nnodes=2", "--node-rank=0", "--prefill-index=1"},
       "nnodes",
       {"prefill_index = 1 (flag --prefill-index)"}},
      {{"--dist-init-addr=10.0.0.2:1", "--pp-rank=0"},
       "dist_init_addr",
       {"'10.0.0.2:1'", "--nnodes"}},
      {{"--nnodes=1", "--dist-init-addr=10.0.0.2:0"}, "dist_init_addr", {"from 1 to 65535"}},
      {{"--nnodes=1", "--dist-init-addr=10.0.0.2:many"},
       "dist_init_addr",
       {"'10.0.0.2:many'; expected HOST or HOST:PORT", "flag --dist-init-addr"}},
      {{"--nnodes=1", "--dist-init-addr=tcp://10.0.0.2:1"}, "dist_init_addr", {"expected HOST"}},
      {{"--nnodes=1", "--dist-init-addr=[]"}, "dist_init_addr", {"expected HOST"}},
  };
  for (const Row& row : rows) ExpectRefused({Node(row.args), row.field, row.words});
}

TEST(NodeShareTest, WhatCannotBeOfADecodeServiceIsRefusedNamingBothSides) {
  const Row rows[] = {
      {{"--tp-size=4", "--nnodes=3", "--node-rank=0"},
       "nnodes",
       {"got 3", "the 4 processes of a decode service: pp_size = 1 times tp_size = 4",
        "flag --nnodes"}},
      {{"--nnodes=2", "--node-rank=0"}, "nnodes", {"got 2", "the 1 processes"}},
      {{"--tp-size=2", "--nnodes=2"}, "node_rank", {"required beside nnodes = 2"}},
      {{"--tp-size=2", "--nnodes=2", "--node-rank=0", "--tp-rank=1"},
       "nnodes",
       {"tp_rank = 1 (flag --tp-rank)"}},
      {{"--tp-size=2", "--nnodes=2", "--node-rank=0", "--decode-index=1"},
       "nnodes",
       {"decode_index = 1 (flag --decode-index)"}},
  };
  for (const Row& row : rows) ExpectRefused({DecodeNode(row.args), row.field, row.words});
}

TEST(NodeShareTest, NodesAreThoseOfAChainOrADecodeService) {
  const auto refusal = [](const Given& given) {
    return std::string(Parse(given).status().message());
  };
  EXPECT_THAT(refusal({.environment = {"BATON_NNODES=x"}, .command = Command::kUp}),
              HasSubstr("'x'"));
  // A cluster on one machine passes over nodes, and says so.
  for (const Command command : {Command::kUp, Command::kValidate}) {
    const auto up =
        Parse({.args = {"--nnodes=4", "--node-rank=1", "--dist-init-addr=a"}, .command = command});
    ASSERT_TRUE(up.ok()) << up.status();
    EXPECT_EQ(up->values.nnodes(), 0);
    EXPECT_EQ(up->values.node_rank(), -1);
    EXPECT_EQ(up->values.dist_init_addr(), "");
    EXPECT_THAT(up->notes, ::testing::SizeIs(3));
    EXPECT_THAT(up->notes, ::testing::Each(HasSubstr("one node's share")));
  }
  for (const char* mode : {"prefill", "decode", "null"}) {
    const auto valid = Parse({.args = {std::string("--disaggregation-mode=") + mode, "--nnodes=1"},
                              .command = Command::kValidate});
    EXPECT_TRUE(valid.ok()) << valid.status();
  }
}

}  // namespace
}  // namespace baton::config
