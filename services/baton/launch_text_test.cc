#include "services/baton/launch_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baton {
namespace {

v1::ListedWorker Worker(const std::string& name, v1::Role role, int begin, int end) {
  v1::ListedWorker worker;
  worker.mutable_worker()->mutable_instance()->set_instance_id(name);
  worker.mutable_worker()->set_role(role);
  worker.mutable_worker()->mutable_layers()->set_begin(begin);
  worker.mutable_worker()->mutable_layers()->set_end(end);
  worker.mutable_worker()->set_page_count(1024);
  worker.mutable_worker()->mutable_fingerprint()->mutable_kv_layout()->set_page_size(64);
  worker.mutable_worker()->set_grpc_address("[::1]:4000");
  return worker;
}

v1::Options OptionsOf(const std::string& model_name, const std::string& api_key = "") {
  v1::Options options;
  options.set_served_model_name(model_name);
  options.set_api_key(api_key);
  return options;
}

LaunchPlan PlanOf() {
  LaunchPlan plan;
  plan.advertise_host = "::1";
  plan.router = {.http_port = 30000, .certificate = "", .grpc_port = 30001};
  plan.metrics_ports = {{"prefill-0-0", 9100}, {"decode-0", 9101}};
  plan.children = {{"router", {}, {}}, {"prefill-0-0", {}, {}}, {"decode-0", {}, {}}};
  return plan;
}

TEST(LaunchTextTest, ShowsProcessesInTheirOrderAndALineToCopy) {
  const std::string text = ClusterReadyText(
      OptionsOf("austen"), PlanOf(),
      {Worker("decode-0", v1::ROLE_DECODE, 0, 6), Worker("prefill-0-0", v1::ROLE_PREFILL, 0, 6)},
      1.25);
  EXPECT_EQ(
      text,
      "cluster ready: http=[::1]:30000 grpc=[::1]:30001 after 1.2 s\n"
      "\n"
      "  process      role     layers  KV tokens  grpc         metrics\n"
      "  router       router   -               -  [::1]:30001  [::1]:30000\n"
      "  prefill-0-0  prefill  0 to 5      65536  [::1]:4000   [::1]:9100\n"
      "  decode-0     decode   0 to 5      65536  [::1]:4000   [::1]:9101\n"
      "\n"
      "  curl -s http://[::1]:30000/v1/completions -H 'Content-Type: application/json' \\\n"
      "    -d '{\"model\": \"austen\", \"prompt\": \"It is a truth\", \"max_tokens\": 32}'\n");
}

TEST(LaunchTextTest, AChainThatDecodesIsColocated) {
  v1::ListedWorker worker = Worker("prefill-0-0", v1::ROLE_PREFILL, 0, 6);
  worker.mutable_worker()->set_decodes(true);
  EXPECT_THAT(ClusterReadyText(OptionsOf("austen"), PlanOf(), {worker}, 1),
              testing::HasSubstr("  prefill-0-0  colocated  0 to 5"));
}

TEST(LaunchTextTest, TheLineNamesTheKeyAndSurvivesOddNames) {
  const std::string text = ClusterReadyText(OptionsOf("it's \"x\"", "key"), PlanOf(), {}, 1);
  EXPECT_THAT(text, testing::HasSubstr("-H \"Authorization: Bearer $BATON_API_KEY\""));
  EXPECT_THAT(text, testing::HasSubstr(R"(-d '{"model": "it'\''s \"x\"", )"));
}

}  // namespace
}  // namespace baton
