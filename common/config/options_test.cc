#include "common/config/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "absl/strings/match.h"
#include "common/config/option_table.h"
#include "common/config/testing/given.h"

namespace baton::config {
namespace {

using testing::ExpectRefused;
using testing::Given;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::Parse;
using testing::Refusal;

Given Worker(std::vector<std::string> args) {
  args.insert(args.begin(), "--disaggregation-mode=prefill");
  return {.args = std::move(args), .command = Command::kWorker};
}

TEST(OptionsTest, EveryOptionIsCompleteAndItsNamesAreUnique) {
  std::set<std::string> flags;
  for (const Option& option : OptionTable()) {
    SCOPED_TRACE(option.name);
    EXPECT_FALSE(option.spec->group().empty());
    EXPECT_GT(option.spec->help().size(), 10u);
    EXPECT_EQ(option.spec->help().back(), '.');
    EXPECT_FALSE(option.spec->roles().empty());
    EXPECT_TRUE(flags.insert(option.flag).second);
    for (const std::string& alias : option.spec->alias()) EXPECT_TRUE(flags.insert(alias).second);
    // Shells complete what names a file by it.
    if (absl::EndsWith(option.name, "file")) {
      EXPECT_EQ(option.spec->path(), v1::OptionSpec::FILE);
    }
    if (absl::EndsWith(option.name, "_path")) {
      EXPECT_EQ(option.spec->path(), v1::OptionSpec::DIRECTORY);
    }
    if (option.is_number()) {
      EXPECT_TRUE(option.spec->has_minimum() || !option.spec->allowed().empty());
    }
    v1::Options values;
    for (int role = v1::OptionSpec::ROUTER; role <= v1::OptionSpec::COLOCATED; ++role) {
      const std::string text = DefaultText(option, static_cast<Role>(role));
      if (text.empty()) continue;
      EXPECT_TRUE(SetOption(option, text, "the table", &values).ok()) << text;
    }
  }
}

TEST(OptionsTest, DefaultsDependOnTheRole) {
  const auto router = Parse({});
  ASSERT_TRUE(router.ok()) << router.status();
  EXPECT_EQ(router->role, v1::OptionSpec::ROUTER);
  EXPECT_EQ(router->values.port(), 30000);
  EXPECT_EQ(router->values.grpc_port(), 30001);
  EXPECT_EQ(router->values.host(), "127.0.0.1");
  EXPECT_EQ(router->sources.count("pp_rank"), 0u);

  const auto worker = Parse(Worker({}));
  ASSERT_TRUE(worker.ok()) << worker.status();
  EXPECT_EQ(worker->role, v1::OptionSpec::PREFILL);
  EXPECT_EQ(worker->values.grpc_port(), 0);
  EXPECT_EQ(worker->values.page_size(), 64);
  EXPECT_EQ(SourceText(worker->sources.at("page_size")), "default");
}

TEST(OptionsTest, DerivesWhatFollowsFromOtherOptions) {
  const auto worker = Parse(Worker({"--pp-size=3"}));
  ASSERT_TRUE(worker.ok()) << worker.status();
  EXPECT_EQ(worker->values.served_model_name(), "tiny");
  EXPECT_EQ(worker->values.tokenizer_path(), "/models/tiny");

  const auto slash = Parse({.args = {"--model-path", "/models/other/"}});
  ASSERT_TRUE(slash.ok());
  EXPECT_EQ(slash->values.served_model_name(), "other");
}

TEST(OptionsTest, ReadsEveryNotation) {
  struct Row {
    std::vector<std::string> args;
    std::string name;
    std::string value;
  };
  const Row rows[] = {
      {{"--model", "/m"}, "model_path", "/m"},
      {{"--pp", "2"}, "pp_size", "2"},
      {{"--pipeline-parallel-size=2"}, "pp_size", "2"},
      {{"--tp", "2"}, "tp_size", "2"},
      {{"--tensor-parallel-size=4", "--tp-rank=3"}, "tp_rank", "3"},
      {{"--pp-send-slice=false"}, "pp_send_slice", "false"},
      {{"--row-parallel-chunks=0"}, "row_parallel_chunks", "0"},
      {{"--row-parallel-chunk-threshold=4K"}, "row_parallel_chunk_threshold", "4096"},
      {{"--chunked-prefill-size", "-1"}, "chunked_prefill_size", "-1"},
      {{"--chunked-prefill-size=4K"}, "chunked_prefill_size", "4096"},
      {{"--chunked-prefill-size=auto"}, "chunked_prefill_size", "auto"},
      {{"--linear-backend=auto"}, "linear_backend", "native"},
      {{"--max-prefill-tokens=1000"}, "chunked_prefill_size", "auto"},
      {{"--max-total-tokens=25k"}, "kv_cache_tokens", "25000"},
      {{"--prefill-max-requests=3"}, "max_prefill_requests", "3"},
      {{"--max-model-len=4K"}, "context_length", "4096"},
      {{"--gpu-memory-utilization=0.9"}, "mem_fraction_static", "0.9"},
      {{"--block-size", "16"}, "page_size", "16"},
      {{"--max-num-batched-tokens=8192"}, "chunked_prefill_size", "8192"},
      {{"--no-enable-chunked-prefill"}, "chunked_prefill_size", "-1"},
      {{"--dtype=float"}, "dtype", "float32"},
      {{"--kv-cache-dtype=bf16"}, "kv_cache_dtype", "bfloat16"},
      {{"--mem-fraction-static", "0.85"}, "mem_fraction_static", "0.85"},
      {{"--mem-fraction-static="}, "mem_fraction_static", ""},
      {{"--otlp-traces-endpoint=http://collector:4317"},
       "otlp_traces_endpoint",
       "http://collector:4317"},
      {{"--disable-radix-cache"}, "disable_radix_cache", "true"},
      {{"--kv-cache-tokens=25k"}, "kv_cache_tokens", "25000"},
      {{"--kv-cache-tokens=1m"}, "kv_cache_tokens", "1000000"},
      {{"--kv-cache-tokens=1M"}, "kv_cache_tokens", "1048576"},
      {{"--kv-cache-tokens=1g"}, "kv_cache_tokens", "1000000000"},
      {{"--enable-dynamic-chunking=false"}, "enable_dynamic_chunking", "false"},
      {{"--enable-dynamic-chunking=false"}, "chunk_policy", "optimal"},
      {{"--enable-dynamic-chunking"}, "chunk_policy", "sglang"},
      {{"--enable-dynamic-chunking", "--chunk-policy=fixed"}, "chunk_policy", "fixed"},
      {{"--dynamic-chunking-smooth-factor=0"}, "dynamic_chunking_smooth_factor", "0"},
      {{"--served-model-name="}, "served_model_name", "tiny"},
      {{"--chain-id=a=b"}, "chain_id", "a=b"},
      {{"--pp-size=2", "--pp-layer-partition", "3,4"}, "pp_layer_partition", "3,4"},
      {{"--pp-layer-partition=auto", "--chunk-profile=p.json"}, "pp_layer_partition", "auto"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.args[0]);
    const auto parsed = Parse(Worker(row.args));
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(ValueText(*FindByName(row.name), parsed->values), row.value);
  }
}

TEST(OptionsTest, APrefillWorkersNumberSaysItsStageAndChain) {
  struct Row {
    std::string index;
    int64_t rank;
    std::string chain;
  };
  const Row rows[] = {{"0", 0, "p-0"}, {"2", 2, "p-0"}, {"3", 0, "p-1"}, {"7", 1, "p-2"}};
  for (const Row& row : rows) {
    SCOPED_TRACE(row.index);
    const auto parsed =
        Parse(Worker({"--pp-size=3", "--chain-id=p", "--prefill-index=" + row.index}));
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(parsed->values.pp_rank(), row.rank);
    EXPECT_EQ(parsed->values.chain_id(), row.chain);
    EXPECT_EQ(SourceText(parsed->sources.at("pp_rank")), "derived from --prefill-index");
    EXPECT_EQ(SourceText(parsed->sources.at("chain_id")), "derived from --prefill-index");
  }
  const auto ranked =
      Parse(Worker({"--pp-size=3", "--tp-size=2", "--chain-id=p", "--prefill-index=9"}));
  ASSERT_TRUE(ranked.ok()) << ranked.status();
  EXPECT_EQ(ranked->values.chain_id(), "p-1");  // 9 is (1 * 3 + 1) * 2 + 1.
  EXPECT_EQ(ranked->values.pp_rank(), 1);
  EXPECT_EQ(ranked->values.tp_rank(), 1);
  EXPECT_EQ(SourceText(ranked->sources.at("tp_rank")), "derived from --prefill-index");
  const auto decode = Parse({.args = {"--model-path=m", "--disaggregation-mode=decode",
                                      "--tp-size=4", "--decode-id=d", "--decode-index=6"},
                             .command = Command::kWorker});
  ASSERT_TRUE(decode.ok()) << decode.status();
  EXPECT_EQ(decode->values.decode_id(), "d-1");
  EXPECT_EQ(decode->values.tp_rank(), 2);
  const auto unnumbered = Parse(Worker({"--pp-size=3", "--pp-rank=1"}));
  ASSERT_TRUE(unnumbered.ok()) << unnumbered.status();
  EXPECT_EQ(unnumbered->values.pp_rank(), 1);
  EXPECT_EQ(unnumbered->values.chain_id(), "chain-0");
}

TEST(OptionsTest, EnableTraceAloneMeansTheUsualPort) {
  const auto alone = Parse(Worker({"--enable-trace"}));
  ASSERT_TRUE(alone.ok()) << alone.status();
  EXPECT_EQ(alone->values.otlp_traces_endpoint(), "localhost:4317");
  EXPECT_EQ(SourceText(alone->sources.at("otlp_traces_endpoint")), "derived from --enable-trace");
  const auto both = Parse(Worker({"--enable-trace", "--otlp-traces-endpoint=collector:1"}));
  EXPECT_EQ(both->values.otlp_traces_endpoint(), "collector:1");
  EXPECT_EQ(Parse(Worker({}))->values.otlp_traces_endpoint(), "");
}

TEST(OptionsTest, MaxPrefillTokensCapsTheChunk) {
  const auto capped = Parse(Worker({"--max-prefill-tokens=1000", "--chunked-prefill-size=2048"}));
  ASSERT_TRUE(capped.ok()) << capped.status();
  EXPECT_EQ(capped->values.chunked_prefill_size(), 960);
  EXPECT_EQ(SourceText(capped->sources.at("chunked_prefill_size")),
            "derived from --max-prefill-tokens");
  const auto roomy = Parse(Worker({"--max-prefill-tokens=16384", "--chunked-prefill-size=2048"}));
  EXPECT_EQ(roomy->values.chunked_prefill_size(), 2048);
  const auto whole = Parse(Worker({"--max-prefill-tokens=1000", "--chunked-prefill-size=-1"}));
  EXPECT_EQ(whole->values.chunked_prefill_size(), -1);
}

TEST(OptionsTest, YamlNotation) {
  Given given = Worker({});
  given.args = {};
  given.file =
      "# one file for all roles\n"
      "disaggregation_mode: decode\n"
      "api_key: for-the-router-alone\n"
      "pp_layer_partition: [3, 3, 4]\n"
      "pp_size: 3\n"
      "kv_cache_tokens: 128K\n";
  const auto decode = Parse(given);
  ASSERT_TRUE(decode.ok()) << decode.status();
  EXPECT_EQ(decode->role, v1::OptionSpec::DECODE);
  EXPECT_EQ(decode->values.kv_cache_tokens(), 131072);
  EXPECT_EQ(decode->values.api_key(), "");
  given.args = {"--disaggregation-mode=prefill"};
  const auto prefill = Parse(given);
  ASSERT_TRUE(prefill.ok()) << prefill.status();
  EXPECT_EQ(prefill->values.pp_layer_partition(), "3,3,4");
  EXPECT_TRUE(Parse({.file = "# nothing but a comment\n"}).ok());
}

TEST(OptionsTest, RefusesUnknownNamesWithASuggestion) {
  const Refusal rows[] = {
      {{.args = {"--prot=1"}}, "prot", {"unknown flag", "'--port'"}},
      {{.args = {"--log"}}, "log", {"'--log-level'"}},
      {Worker({"--pagesize=64"}), "pagesize", {"'--page-size'"}},
      {{.args = {"--zzzzzz=1"}}, "zzzzzz", {"unknown flag"}},
      {{.args = {"port"}}, "port", {"unexpected argument"}},
      {{.args = {"-p"}}, "-p", {"unexpected argument"}},
      {{.args = {"-tp", "2"}}, "-tp", {"two dashes: --tp"}},
      {{.args = {"models/tiny"}}, "models/tiny", {"--model-path models/tiny"}},
      {{.args = {"--prometheus-port=1"}},
       "prometheus-port",
       {"a flag of SGLang or vLLM", "use --metrics-port"}},
      {{.args = {"--trust-remote-cod"}}, "trust-remote-cod", {"'--trust-remote-code'"}},
      {{.args = {"--max-runing-requests=8"}}, "max-runing-requests", {"'--max-running-requests'"}},
      {{.args = {"--seed=1"}, .command = Command::kSimulate, .bare = true},
       "seed",
       {"not an option of simulate", "applies to model"}},
      {{.args = {"--trust-remote-code"}, .command = Command::kModelInfo},
       "trust-remote-code",
       {"a flag of SGLang or vLLM"}},
      {{.args = {"--speculative-algorithm=EAGLE"}},
       "speculative-algorithm",
       {"Baton has nothing like it"}},
      {{.args = {"--"}}, "--", {"unexpected argument"}},
      {{.environment = {"BATON_PAGESIZE=64"}}, "BATON_PAGESIZE", {"'BATON_PAGE_SIZE'", "'64'"}},
      {{.environment = {"BATON_=1"}}, "BATON_", {"unknown"}},
      {{.file = "port: 1\npage-size: 64\n"}, "page-size", {"conf.yaml:2", "'page_size'"}},
  };
  for (const Refusal& row : rows) ExpectRefused(row);
  EXPECT_THAT(std::string(Parse({.args = {"--zzzzzz=1"}}).status().message()),
              Not(HasSubstr("did you mean")));
}

TEST(OptionsTest, ExplainsKubernetesServiceLinks) {
  const Refusal rows[] = {
      {{.environment = {"BATON_PORT=tcp://10.0.0.1:80"}}, "BATON_PORT", {"enableServiceLinks"}},
      {{.environment = {"BATON_SERVICE_HOST=10.0.0.1"}},
       "BATON_SERVICE_HOST",
       {"enableServiceLinks"}},
      {{.environment = {"BATON_PORT_80_TCP_PORT=80"}},
       "BATON_PORT_80_TCP_PORT",
       {"enableServiceLinks"}},
  };
  for (const Refusal& row : rows) ExpectRefused(row);
}

TEST(OptionsTest, RefusesValuesNamingOptionValueRangeAndSource) {
  const Refusal rows[] = {
      {{.args = {"--port=65536"}},
       "port",
       {"port: got '65536' from flag --port", "from 0 to 65535"}},
      {{.args = {"--port=-1"}}, "port", {"'-1'"}},
      {{.args = {"--port=1.5"}}, "port", {"'1.5'"}},
      {{.args = {"--port="}}, "port", {"''"}},
      {{.args = {"--port=k"}}, "port", {"'k'"}},
      {{.args = {"--port=0x10"}}, "port", {"'0x10'"}},
      {{.args = {"--port= 1"}}, "port", {"' 1'"}},
      {{.args = {"--port=99999999999999999999"}}, "port", {"whole number"}},
      {{.args = {"--port=9999999999999999999g"}}, "port", {"whole number"}},
      {{.args = {"--port"}}, "port", {"--port needs a value"}},
      {{.args = {"--port", "--host", "a"}}, "port", {"--port needs a value"}},
      {{.environment = {"BATON_PORT=x"}}, "port", {"variable BATON_PORT", "'x'"}},
      {{.file = "host: a\n\nport: many\n"}, "port", {"conf.yaml:3", "'many'"}},
      {{.file = "port: [1, 2]\n"}, "port", {"list", "conf.yaml:1"}},
      {{.file = "port:\n"}, "port", {"no value", "conf.yaml:1"}},
      {{.file = "port: 1\nport: 2\n"}, "port", {"twice", "conf.yaml:1", "conf.yaml:2"}},
      {{.file = "host: {a: b}\n"}, "host", {"mapping"}},
      {{.file = "host: [[a], b]\n"}, "host", {"list"}},
      {{.file = "- port\n"}, "config", {"expected a mapping"}},
      {{.file = "[a]: 1\n"}, "config", {"conf.yaml:1", "a key must be"}},
      {{.file = "port: [1, 2\n"}, "config", {"conf.yaml:"}},
      {{.file = "config: other.yaml\n"}, "config", {"another file"}},
      {{.args = {"--config=absent.yaml"}}, "config", {"absent.yaml", "no such file"}},
      {{.args = {"--log-level=loud"}}, "log_level", {"one of debug, info, warning, error"}},
      {Worker({"--page-size=48"}), "page_size", {"'48'", "one of 16, 32, 64, 128"}},
      {Worker({"--enable-dynamic-chunking=yes"}), "enable_dynamic_chunking", {"true or false"}},
      {Worker({"--chunk-policy=best"}), "chunk_policy", {"one of fixed, sglang, optimal"}},
      {Worker({"--dynamic-chunking-smooth-factor=1.5"}),
       "dynamic_chunking_smooth_factor",
       {"'1.5'", "from 0 to 1"}},
      {Worker({"--mem-fraction-static=0"}), "mem_fraction_static", {"'0'", "above 0"}},
      {Worker({"--mem-fraction-static=1.1"}), "mem_fraction_static", {"'1.1'", "at most 1"}},
      {Worker({"--mem-fraction-static=nan"}), "mem_fraction_static", {"'nan'"}},
      {Worker({"--mem-fraction-static=90%"}), "mem_fraction_static", {"'90%'"}},
      {{.args = {"--otlp-sample-ratio=1.5"}}, "otlp_sample_ratio", {"'1.5'", "from 0 to 1"}},
      {{.args = {"--otlp-sample-ratio="}}, "otlp_sample_ratio", {"''", "from 0 to 1"}},
      {{.args = {"--otlp-sample-ratio=-0.1"}}, "otlp_sample_ratio", {"'-0.1'"}},
      {Worker({"--otlp-traces-endpoint=https://collector"}),
       "otlp_traces_endpoint",
       {"https://collector", "not encrypted"}},
      {Worker({"--otlp-traces-endpoint=http://collector:4318/v1/traces"}),
       "otlp_traces_endpoint",
       {"over gRPC", "no path"}},
      // Options of other roles: passed over, but still checked.
      {{.args = {"--pp-rank=x"}}, "pp_rank", {"'x'"}},
      {{.environment = {"BATON_PP_RANK=x"}}, "pp_rank", {"'x'"}},
      {{.args = {"--hidden-size=64"}}, "hidden_size", {"not an option of router", "model"}},
  };
  for (const Refusal& row : rows) ExpectRefused(row);
  EXPECT_TRUE(Parse({.environment = {"BATON_PP_RANK=0"}}).ok());
}

TEST(OptionsTest, RulesOverSeveralOptions) {
  const Refusal rows[] = {
      {{.bare = true}, "model_path", {"required"}},
      {Worker({"--pp-size=2", "--pp-rank=2"}), "pp_rank", {"pp_size = 2", "flag --pp-rank"}},
      {Worker({"--pp-size=2", "--pp-rank=1", "--prefill-index=3"}),
       "prefill_index",
       {"pp_rank = 1", "flag --prefill-index"}},
      {Worker({"--pp-size=2", "--pp-layer-partition=3"}), "pp_layer_partition", {"1 stages"}},
      {Worker({"--pp-layer-partition=x"}), "pp_layer_partition", {"'x'"}},
      {Worker({"--pp-layer-partition=auto"}), "pp_layer_partition", {"--chunk-profile"}},
      {{.args = {"--decode-pp-size=2", "--decode-pp-layer-partition=3"}, .command = Command::kUp},
       "decode_pp_layer_partition",
       {"1 stages", "decode_pp_size = 2", "flag --decode-pp-layer-partition"}},
      {{.args = {"--decode-pp-layer-partition=0"}, .command = Command::kUp},
       "decode_pp_layer_partition",
       {"'0'"}},
      {{.args = {"--decode-pp-layer-partition=auto"}, .command = Command::kUp},
       "decode_pp_layer_partition",
       {"got auto", "decode service"}},
      {Worker({"--chunked-prefill-size=100"}), "chunked_prefill_size", {"page_size = 64"}},
      {Worker({"--chunked-prefill-size=0"}), "chunked_prefill_size", {"'0'", "or auto"}},
      {Worker({"--dtype=float16"}), "dtype", {"got float16", "float32 (auto takes it)"}},
      {Worker({"--device=tpu"}), "device", {"'tpu'", "cpu, cuda or cuda:N"}},
      {Worker({"--executor=torch", "--device=cuda:x"}), "device", {"'cuda:x'"}},
      {Worker({"--device=cuda"}), "device", {"native", "--executor torch"}},
      {Worker({"--executor=jax"}), "executor", {"'jax'", "native", "torch"}},
      {Worker({"--dtype=half"}), "dtype", {"got float16", "bfloat16"}},
      {Worker({"--kv-cache-dtype=fp8_e5m2"}), "kv_cache_dtype", {"fp8_e5m2", "bfloat16"}},
      {{.args = {"--service-discovery=kubernetes"}},
       "service_discovery_selector",
       {"required", "service_discovery = kubernetes"}},
      {Worker({"--cluster-tls-cert=c", "--cluster-tls-key=k"}),
       "cluster_tls_ca",
       {"cluster_tls_cert"}},
      {Worker({"--cluster-tls-ca=a"}), "cluster_tls_cert", {"required beside cluster_tls_ca"}},
      {Worker({"--router-address=a:1,b"}), "router_address", {"'b'", "flag --router-address"}},
      {{.args = {"--router-address=routers"}, .command = Command::kValidate},
       "router_address",
       {"'routers'; expected HOST:PORT"}},
      {Worker({"--lease-ms=999"}), "lease_ms", {"heartbeat_interval_ms = 500"}},
      {{.args = {"--disaggregation-mode=decode", "--tp-size=2", "--tp-rank=1", "--decode-index=3"},
        .command = Command::kWorker},
       "decode_index",
       {"tp_rank = 1", "flag --decode-index"}},
      {Worker({"--tp-size=2", "--tp-rank=2"}), "tp_rank", {"tp_size = 2", "flag --tp-rank"}},
      {Worker({"--tp-size=2", "--tp-rank=1", "--prefill-index=3"}),
       "prefill_index",
       {"tp_rank = 1", "flag --prefill-index"}},
      {Worker({"--executor=torch", "--device=cuda:1", "--base-gpu-id=2"}),
       "base_gpu_id",
       {"cuda:1 is one GPU for all", "flag --base-gpu-id"}},
      {Worker({"--executor=torch", "--device=cuda:1", "--gpu-id-step=2"}),
       "gpu_id_step",
       {"cuda:1 is one GPU for all"}},
      {Worker({"--executor=torch", "--device=cuda", "--gpu-id-step=0"}),
       "gpu_id_step",
       {"got '0'"}},
      {Worker({"--max-prefill-tokens=63"}), "max_prefill_tokens", {"page_size = 64"}},
      {{.args = {"--disaggregation-mode=both"}, .command = Command::kWorker},
       "disaggregation_mode",
       {"'both'", "null, prefill, decode"}},
      {{.command = Command::kModelMake, .bare = true}, "out", {"required"}},
      {{.args = {"--out=d", "--heads=6"}, .command = Command::kModelMake, .bare = true},
       "kv_heads",
       {"heads = 6"}},
      {{.args = {"--out=d", "--hidden-size=100"}, .command = Command::kModelMake, .bare = true},
       "head_dim",
       {"multiple of heads = 8"}},
      {{.args = {"--out=d", "--head-dim=33"}, .command = Command::kModelMake, .bare = true},
       "head_dim",
       {"even"}},
  };
  for (const Refusal& row : rows) ExpectRefused(row);
}

TEST(OptionsTest, HelpComesBeforeEverythingElse) {
  const auto parsed = Parse({.args = {"--no-such-flag", "--help=page"}, .bare = true});
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->help, "page");
  EXPECT_EQ(Parse({.args = {"-h"}})->help, "");
  EXPECT_FALSE(Parse({})->help.has_value());
}

}  // namespace
}  // namespace baton::config
