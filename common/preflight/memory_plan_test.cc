#include "common/preflight/memory_plan.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "common/base/status.h"
#include "common/preflight/memory_plan_fixture.h"

namespace baton {
namespace {

TEST(MemoryPlanTest, CountsAKnownModelAsItLiesInMemory) {
  const auto memory = PlanFor(Options(), OptionSpec::DECODE, Llama8B(), kContext);
  ASSERT_TRUE(memory.ok()) << memory.status();
  ASSERT_EQ(memory->processes.size(), 1u);
  const ProcessMemory& decode = memory->processes[0];
  // All in float32 but for the embeddings, which stay as they are in the file.
  const int64_t embeddings = int64_t{128256} * 4096;
  EXPECT_EQ(decode.weights, 4 * (8030261248 - embeddings) + 2 * embeddings);
  EXPECT_EQ(decode.kv_per_token, 262144);  // 2 * 32 * 8 * 128 * 4
  EXPECT_EQ(decode.kv, int64_t{32} << 30);
  EXPECT_EQ(memory->kv_tokens, 131072);
  // At least the logits of a full batch.
  EXPECT_GT(decode.buffers, int64_t{64} * 128256 * 4);
}

TEST(MemoryPlanTest, UpIsTheSumOfAllItsProcesses) {
  const auto up = PlanFor(Options(), OptionSpec::UP, Llama8B(), kContext);
  ASSERT_TRUE(up.ok()) << up.status();
  const auto total_of = [](const v1::Options& options, config::Role role) {
    return PlanFor(options, role, Llama8B(), kContext)->total();
  };
  int64_t sum = total_of(Options(), OptionSpec::ROUTER);
  for (int64_t stage = 0; stage < 3; ++stage) {
    v1::Options options = Options();
    options.set_pp_rank(stage);
    sum += 2 * total_of(options, OptionSpec::PREFILL);
  }
  sum += 4 * total_of(Options(), OptionSpec::DECODE);
  EXPECT_EQ(up->total(), sum);
  EXPECT_EQ(up->processes.size(), 5u);
}

TEST(MemoryPlanTest, AColocatedChainHasOnePoolAndDraws) {
  v1::Options options = Options();
  options.set_disaggregation_mode("null");
  const auto up = PlanFor(options, OptionSpec::UP, Llama8B(), kContext);
  ASSERT_TRUE(up.ok()) << up.status();
  std::vector<std::string> names;
  for (const ProcessMemory& process : up->processes) names.push_back(process.name);
  EXPECT_EQ(names,
            (std::vector<std::string>{"router", "colocated 0", "colocated 1", "colocated 2"}));
  const auto apart = PlanFor(Options(), OptionSpec::UP, Llama8B(), kContext);
  // The pool is shared out as a prefill chain's is; there is no other.
  EXPECT_EQ(up->processes[1].kv, apart->processes[1].kv);
  EXPECT_EQ(up->kv_per_token(), 2 * 262144);
  // A plan has its chunk and a token of each request that decodes, and all of those may be drawn.
  EXPECT_GT(up->processes[1].buffers, apart->processes[1].buffers);
  const int64_t drawn = up->processes[3].buffers - apart->processes[3].buffers;
  EXPECT_GE(drawn, (64 - 16) * int64_t{128256} * 4);
  options.set_pp_rank(2);
  EXPECT_EQ(PlanFor(options, OptionSpec::COLOCATED, Llama8B(), kContext)->total(),
            up->processes[3].total());
}

TEST(MemoryPlanTest, StagesSplitTheModelAndItsKv) {
  v1::Options options = Options();
  options.set_prefill_chains(1);
  options.set_decodes(1);
  const auto up = PlanFor(options, OptionSpec::UP, Llama8B(), kContext);
  ASSERT_TRUE(up.ok());
  int64_t weights = 0;
  int64_t kv = 0;
  for (const ProcessMemory& process : up->processes) {
    if (process.name == "decode") continue;
    weights += process.weights;
    kv += process.kv;
  }
  EXPECT_EQ(weights, up->processes.back().weights);
  EXPECT_EQ(kv, up->processes.back().kv);
}

TEST(MemoryPlanTest, TiedEmbeddingsAreTheHeadsRowsWhereBothAre) {
  ModelFacts tied = Llama8B();
  tied.config.tie_word_embeddings = true;
  const auto weights = [](const ModelFacts& facts, config::Role role) {
    return PlanFor(Options(), role, facts, kContext)->weights();
  };
  EXPECT_EQ(weights(Llama8B(), OptionSpec::DECODE) - weights(tied, OptionSpec::DECODE),
            int64_t{2} * 128256 * 4096);
  // The first of three stages has no head.
  EXPECT_EQ(weights(tied, OptionSpec::PREFILL), weights(Llama8B(), OptionSpec::PREFILL));
}

TEST(MemoryPlanTest, TypesAreCountedAsTheyLie) {
  ModelFacts facts = Llama8B();
  facts.config.tie_word_embeddings = true;
  const int64_t wide_kv = PlanFor(Options(), OptionSpec::DECODE, facts, kContext)->kv();
  facts.dtype = ElementType::kBFloat16;
  const auto memory = PlanFor(Options(), OptionSpec::DECODE, facts, kContext);
  ASSERT_TRUE(memory.ok());
  EXPECT_EQ(memory->kv(), wide_kv);
  const int64_t matrices = 8030261248 - int64_t{128256} * 4096 - int64_t{65} * 4096;
  EXPECT_EQ(memory->weights(), 2 * matrices + int64_t{4} * 65 * 4096) << "norms are float32";
  facts.kv_dtype = ElementType::kBFloat16;
  EXPECT_EQ(PlanFor(Options(), OptionSpec::DECODE, facts, kContext)->kv(), wide_kv / 2);
  // A middle stage has the residual stream in float32 beside its five buffers of half the size.
  const auto buffers = [&](ElementType dtype) {
    v1::Options middle = Options();
    middle.set_pp_rank(1);
    facts.dtype = dtype;
    return PlanFor(middle, OptionSpec::PREFILL, facts, kContext)->processes[0].buffers;
  };
  EXPECT_EQ(buffers(ElementType::kFloat32) - buffers(ElementType::kBFloat16),
            int64_t{2048} * 4096 * (5 * 2 - 4));
  v1::Options torch = Options();
  torch.set_linear_backend("torch");
  EXPECT_EQ(PlanFor(torch, OptionSpec::DECODE, facts, kContext)->weights(),
            4 * (matrices + int64_t{65} * 4096));
}

TEST(MemoryPlanTest, BuffersGrowWithTheChunk) {
  const auto buffers = [](int64_t chunk) {
    v1::Options options = Options();
    options.set_pp_rank(1);
    options.set_chunked_prefill_size(chunk);
    return PlanFor(options, OptionSpec::PREFILL, Llama8B(), kContext)->processes[0].buffers;
  };
  // A middle stage: two inputs and two outputs of [tokens, hidden].
  EXPECT_GE(buffers(4096) - buffers(2048), int64_t{4} * 2048 * 4096 * 4);
  EXPECT_EQ(buffers(-1), buffers(kContext));
}

TEST(MemoryPlanTest, WhoDrawsTokensHoldsSamplersAndWhoTellsPromptsTheirLogits) {
  const auto buffers = [](config::Role role, int64_t rank, int64_t threads) {
    v1::Options options = Options();
    options.set_pp_rank(rank);
    options.set_threads(threads);
    return PlanFor(options, role, Llama8B(), kContext)->processes[0].buffers;
  };
  constexpr int64_t kVocab = 128256;
  EXPECT_EQ(buffers(OptionSpec::DECODE, 0, 9) - buffers(OptionSpec::DECODE, 0, 1),
            int64_t{8} * 22 * kVocab);
  EXPECT_EQ(buffers(OptionSpec::PREFILL, 2, 9) - buffers(OptionSpec::PREFILL, 2, 1),
            int64_t{8} * 22 * kVocab);
  EXPECT_EQ(buffers(OptionSpec::PREFILL, 1, 9), buffers(OptionSpec::PREFILL, 1, 1));
  // The last stage beside a middle one: its logits of 32 rows of a prompt.
  EXPECT_GE(buffers(OptionSpec::PREFILL, 2, 1), int64_t{32} * kVocab * 4);
}

TEST(MemoryPlanTest, RanksSplitTheStagesWeightsAndKv) {
  const auto plan = [](int64_t ranks, config::Role role, int64_t rank = 0) {
    v1::Options options = Options();
    options.set_pp_rank(2);
    options.set_tp_size(ranks);
    options.set_tp_rank(rank);
    return *PlanFor(options, role, Llama8B(), kContext);
  };
  const ProcessMemory whole = plan(1, OptionSpec::PREFILL).processes[0];
  const ProcessMemory first = plan(4, OptionSpec::PREFILL, 0).processes[0];
  const ProcessMemory other = plan(4, OptionSpec::PREFILL, 3).processes[0];
  const int64_t norms = int64_t{4} * (2 * whole.layers.size() + 1) * 4096;
  EXPECT_EQ(4 * (first.weights - norms), whole.weights - norms);
  EXPECT_EQ(first.weights, other.weights);
  EXPECT_EQ(4 * first.kv, whole.kv);
  EXPECT_EQ(first.name, "prefill 2.0");
  EXPECT_EQ(other.name, "prefill 2.3");
  EXPECT_GT(first.buffers, other.buffers) << "rank 0 draws";
  EXPECT_GT(first.runtime, whole.runtime) << "what is under way to the other ranks";
  // 16 ranks hold two copies of each of 8 heads.
  EXPECT_EQ(8 * plan(16, OptionSpec::PREFILL).kv(), whole.kv);

  const HostMemory up = plan(4, OptionSpec::UP);
  std::vector<std::string> names;
  std::vector<int64_t> counts;
  for (const ProcessMemory& process : up.processes) {
    names.push_back(process.name);
    counts.push_back(process.count);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"router", "prefill 0", "prefill 1", "prefill 2.0",
                                             "prefill 2.>0", "decode"}));
  EXPECT_EQ(counts, (std::vector<int64_t>{1, 8, 8, 2, 6, 4}));
  EXPECT_EQ(up.kv(), plan(1, OptionSpec::UP).kv());
  EXPECT_EQ(up.processes.back().runtime, plan(1, OptionSpec::UP).processes.back().runtime);
}

TEST(MemoryPlanTest, ANodeIsItsPlacesEachAsOneWorkerWouldBe) {
  v1::Options options = Options();
  options.set_tp_size(4);
  const auto worker = [&](int64_t stage, int64_t rank) {
    v1::Options one = options;
    one.set_pp_rank(stage);
    one.set_tp_rank(rank);
    return PlanFor(one, OptionSpec::PREFILL, Llama8B(), kContext)->processes[0];
  };
  v1::Options node = options;
  node.set_nnodes(2);
  node.set_node_rank(1);
  const HostMemory memory = *PlanFor(node, OptionSpec::PREFILL, Llama8B(), kContext);
  std::vector<std::string> names;
  for (const ProcessMemory& process : memory.processes) names.push_back(process.name);
  EXPECT_EQ(names, (std::vector<std::string>{"prefill 1.2", "prefill 1.3", "prefill 2.0",
                                             "prefill 2.1", "prefill 2.2", "prefill 2.3"}));
  const ProcessMemory& draws = memory.processes[2];
  const ProcessMemory alone = worker(2, 0);
  EXPECT_EQ(draws.weights, alone.weights);
  EXPECT_EQ(draws.kv, alone.kv);
  EXPECT_EQ(draws.buffers, alone.buffers);
  EXPECT_EQ(draws.runtime, alone.runtime);
  EXPECT_EQ(memory.processes[0].layers, worker(1, 2).layers);
}

TEST(MemoryPlanTest, ANodeOfADecodeServiceIsItsRanks) {
  v1::Options node = Options();
  node.set_disaggregation_mode("decode");
  node.set_tp_size(4);
  node.set_nnodes(2);
  node.set_node_rank(1);
  const HostMemory memory = *PlanFor(node, OptionSpec::DECODE, Llama8B(), kContext);
  ASSERT_EQ(memory.processes.size(), 2u);
  EXPECT_EQ(memory.processes[0].name, "decode.2");
  EXPECT_EQ(memory.processes[1].name, "decode.3");
  v1::Options one = node;
  one.set_nnodes(0);
  one.set_tp_rank(3);
  const HostMemory alone = *PlanFor(one, OptionSpec::DECODE, Llama8B(), kContext);
  EXPECT_EQ(memory.processes[1].kv, alone.processes[0].kv);
  EXPECT_EQ(memory.processes[1].buffers, alone.processes[0].buffers);
}

TEST(MemoryPlanTest, StagesSplitADecodeServicesLayers) {
  v1::Options worker = Options();
  worker.set_disaggregation_mode("decode");
  worker.set_pp_size(2);
  const ProcessMemory first =
      PlanMemory(worker, OptionSpec::DECODE, Llama8B(), kContext)->processes[0];
  worker.set_pp_rank(1);
  const ProcessMemory last =
      PlanMemory(worker, OptionSpec::DECODE, Llama8B(), kContext)->processes[0];
  EXPECT_EQ(first.name, "decode 0");
  EXPECT_EQ(last.name, "decode 1");
  EXPECT_EQ(first.layers, (LayerRange{0, 16}));
  EXPECT_EQ(first.kv, last.kv);
  const ProcessMemory whole =
      PlanFor(Options(), OptionSpec::DECODE, Llama8B(), kContext)->processes[0];
  EXPECT_EQ(first.kv + last.kv, whole.kv);
  EXPECT_EQ(first.weights + last.weights, whole.weights);
  EXPECT_GT(last.buffers, first.buffers) << "it draws";

  v1::Options cluster = Options();
  cluster.set_decode_pp_size(2);
  cluster.set_decode_tp_size(2);
  const HostMemory up = *PlanMemory(cluster, OptionSpec::UP, Llama8B(), kContext);
  std::vector<std::string> decodes;
  for (const ProcessMemory& process : up.processes) {
    if (process.name.rfind("decode", 0) == 0) decodes.push_back(process.name);
  }
  EXPECT_EQ(decodes, (std::vector<std::string>{"decode 0", "decode 1.0", "decode 1.>0"}));
  EXPECT_EQ(up.processes.back().layers, (LayerRange{16, 32}));
  EXPECT_EQ(up.processes.back().places, (std::vector<int64_t>{9, 13, 17, 21}));
  EXPECT_EQ(up.kv(), PlanFor(Options(), OptionSpec::UP, Llama8B(), kContext)->kv());
  cluster.set_decode_pp_layer_partition("30,2");
  const HostMemory uneven = *PlanMemory(cluster, OptionSpec::UP, Llama8B(), kContext);
  EXPECT_EQ(uneven.processes.back().layers, (LayerRange{30, 32}));
  EXPECT_EQ(uneven.kv(), up.kv());
}

TEST(MemoryPlanTest, RanksSplitADecodeServicesWeightsAndKv) {
  const auto plan = [](int64_t ranks, config::Role role, int64_t rank = 0) {
    v1::Options options = Options();
    options.set_tp_size(role == OptionSpec::UP ? 1 : ranks);
    options.set_decode_tp_size(role == OptionSpec::UP ? ranks : 1);
    options.set_tp_rank(rank);
    return *PlanFor(options, role, Llama8B(), kContext);
  };
  const ProcessMemory whole = plan(1, OptionSpec::DECODE).processes[0];
  const ProcessMemory first = plan(4, OptionSpec::DECODE, 0).processes[0];
  const ProcessMemory other = plan(4, OptionSpec::DECODE, 3).processes[0];
  EXPECT_EQ(4 * first.kv, whole.kv);
  EXPECT_EQ(first.weights, other.weights);
  EXPECT_LT(first.weights, whole.weights / 3);
  EXPECT_EQ(first.name, "decode.0");
  EXPECT_EQ(other.name, "decode.3");
  EXPECT_GT(first.buffers, other.buffers) << "rank 0 draws";
  EXPECT_GT(first.runtime, whole.runtime) << "what is under way to the other ranks";
  const HostMemory up = plan(4, OptionSpec::UP);
  const ProcessMemory& followers = up.processes.back();
  EXPECT_EQ(followers.name, "decode.>0");
  EXPECT_EQ(followers.count, 12);
  EXPECT_EQ(up.kv(), plan(1, OptionSpec::UP).kv());
}

TEST(MemoryPlanTest, RanksThatSendSlicesHaveSmallerActivations) {
  const auto buffers = [](bool slices) {
    v1::Options options = Options();
    options.set_pp_rank(1);
    options.set_tp_size(4);
    options.set_pp_send_slice(slices);
    return PlanFor(options, OptionSpec::PREFILL, Llama8B(), kContext)->processes[0].buffers;
  };
  // The plan has a quarter of each of five buffers, and one buffer that gathers the slices.
  const int64_t whole = int64_t{2048} * 4096 * 4;
  EXPECT_EQ(buffers(false) - buffers(true), 5 * whole - 5 * whole / 4 - whole);
}

TEST(MemoryPlanTest, ExpertsAreDealtOutToRanks) {
  const ModelFacts model = Qwen235B();
  const double whole = 2.0 * static_cast<double>(model.config.Parameters());
  const auto weights_of = [&](int64_t ranks, const char* executor) {
    v1::Options options = Options();
    options.set_executor(executor);
    options.set_pp_size(8);
    options.set_tp_size(ranks);
    double total = 0;
    double largest = 0;
    const auto memory = PlanFor(options, OptionSpec::UP, model, 40960);
    EXPECT_TRUE(memory.ok()) << memory.status();
    for (const ProcessMemory& process : memory->processes) {
      if (process.name.starts_with("decode") || process.name == "router") continue;
      total += static_cast<double>(process.weights * process.count) / 2;  // Two chains.
      largest = std::max(largest, static_cast<double>(process.weights));
    }
    EXPECT_NEAR(total, whole, 0.01 * whole) << ranks;
    return largest;
  };
  for (const char* executor : {"native", "torch"}) {
    const double alone = weights_of(1, executor);
    EXPECT_NEAR(alone, whole / 8, 0.05 * whole / 8);
    EXPECT_NEAR(weights_of(4, executor), alone / 4, 0.01 * alone);
  }
}

TEST(MemoryPlanTest, TorchIsHeldByWorkersAloneAndItsLibrariesOnce) {
  const auto added = [](v1::Options options, config::Role role) {
    const int64_t native = PlanFor(options, role, Llama8B(), kContext)->total();
    options.set_linear_backend("torch");
    return PlanFor(options, role, Llama8B(), kContext)->total() - native;
  };
  EXPECT_EQ(added(Options(), OptionSpec::ROUTER), 0);
  const int64_t alone = added(Options(), OptionSpec::DECODE);
  EXPECT_GT(alone, int64_t{150} << 20);
  const int64_t ten = added(Options(), OptionSpec::UP);  // Six stages and four decodes.
  EXPECT_GT(ten, int64_t{600} << 20);
  EXPECT_LT(ten, 10 * alone - (int64_t{1} << 30));
}

// Nothing is packed or padded; what attention holds at once is bounded, whatever the context.
TEST(MemoryPlanTest, ATorchExecutorHoldsTheWeightsAsTheyAreAndBoundedScores) {
  v1::Options options = Options();
  options.set_executor("torch");
  ModelFacts model = Llama8B();
  const auto decode = [&](int64_t context) {
    return PlanFor(options, OptionSpec::DECODE, model, context)->processes[0];
  };
  EXPECT_EQ(decode(kContext).weights,
            model.config.Parameters() * static_cast<int64_t>(ElementBytes(model.dtype)));
  options.set_max_running_requests(4096);
  EXPECT_LT(decode(int64_t{1} << 20).buffers, int64_t{40} << 30);
  EXPECT_EQ(decode(int64_t{1} << 20).buffers, decode(int64_t{1} << 14).buffers);
}

TEST(MemoryPlanTest, WeightsOnAGpuAreNotTheHosts) {
  v1::Options options = Options();
  options.set_executor("torch");
  const ProcessMemory host =
      PlanFor(options, OptionSpec::DECODE, Llama8B(), kContext)->processes[0];
  options.set_device("cuda:1");
  const ProcessMemory gpu = PlanFor(options, OptionSpec::DECODE, Llama8B(), kContext)->processes[0];
  EXPECT_EQ(gpu.weights, 0);
  EXPECT_LT(gpu.buffers, host.buffers);
  EXPECT_EQ(gpu.kv, host.kv) << "what lands has its place in host memory";
}

TEST(MemoryPlanTest, TheLargestPoolFitsAndOnePageMoreDoesNot) {
  v1::Options options = Options();
  const auto memory = PlanFor(options, OptionSpec::UP, Llama8B(), kContext);
  ASSERT_TRUE(memory.ok());
  const int64_t static_bytes = int64_t{400} << 30;
  const int64_t tokens = LargestKvTokens(*memory, 64, static_bytes);
  ASSERT_GT(tokens, 0);
  EXPECT_EQ(tokens % 64, 0);
  EXPECT_LE(memory->weights() + memory->kv_per_token() * tokens, static_bytes);
  EXPECT_GT(memory->weights() + memory->kv_per_token() * (tokens + 64), static_bytes);
  EXPECT_EQ(LargestKvTokens(*memory, 64, memory->weights()), 0);
  EXPECT_EQ(LargestKvTokens(*memory, 64, int64_t{1} << 60), int64_t{1} << 30);
}

TEST(MemoryPlanTest, HugeShapesSaturate) {
  ModelFacts huge = Llama8B();
  huge.config.num_hidden_layers = 1 << 12;
  huge.config.num_key_value_heads = 1 << 12;
  huge.config.num_attention_heads = 1 << 12;
  huge.config.head_dim = 1 << 10;
  v1::Options options = Options();
  options.set_kv_cache_tokens(int64_t{1} << 30);
  EXPECT_GE(PlanFor(options, OptionSpec::DECODE, huge, kContext)->total(), int64_t{1} << 60);
}

TEST(MemoryPlanTest, LongestPromptIsTheTightestLimit) {
  HostMemory memory;
  memory.kv_tokens = 960;
  EXPECT_EQ(LongestPrompt(memory, 8192), 960);
  EXPECT_EQ(LongestPrompt(memory, 512), 511);
  EXPECT_EQ(LongestPrompt(memory, 0), 0);
}

TEST(MemoryPlanTest, AnImpossibleSplitNamesItsOption) {
  v1::Options options = Options();
  options.set_pp_size(33);
  const auto memory = PlanFor(options, OptionSpec::UP, Llama8B(), kContext);
  EXPECT_EQ(FieldOf(memory.status()), "pp_size");
}

}  // namespace
}  // namespace baton
