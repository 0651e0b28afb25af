#include "common/telemetry/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <thread>

namespace baton {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr MetricRole kRoles[] = {MetricRole::kRouter, MetricRole::kPrefill, MetricRole::kDecode};

MetricsIdentity Identity(MetricRole role) {
  return {.role = role,
          .model_name = "tiny \"quoted\"",
          .instance_id = "it-0",
          .stage = role == MetricRole::kPrefill ? 1 : -1};
}

bool InRole(const MetricInfo& info, MetricRole role) {
  return (info.roles & static_cast<uint8_t>(role)) != 0;
}

const char* TypeText(MetricType type) {
  if (type == MetricType::kCounter) return "counter";
  return type == MetricType::kGauge ? "gauge" : "histogram";
}

TEST(MetricsTest, TheTableIsWellFormed) {
  std::set<std::string> names;
  for (const MetricInfo& info : kMetricsTable) {
    SCOPED_TRACE(info.name);
    const std::string name = info.name;
    EXPECT_TRUE(names.insert(name).second);
    EXPECT_EQ(name.rfind("baton_", 0), 0u);
    EXPECT_EQ(name.ends_with("_total"), info.type == MetricType::kCounter);
    EXPECT_EQ(info.type == MetricType::kHistogram, !info.buckets.empty());
    EXPECT_EQ(name.find("_seconds") != std::string::npos, std::string(info.unit) == "seconds");
    EXPECT_EQ(name.find("_bytes") != std::string::npos, std::string(info.unit) == "bytes");
    EXPECT_NE(info.roles, 0);
    EXPECT_TRUE(std::is_sorted(info.buckets.begin(), info.buckets.end()));
    size_t series = 1;
    for (const MetricLabel& label : info.labels) {
      series *= label.values.size();
      EXPECT_TRUE(label.values.size() == 1 || std::string(label.values.back()) == "other");
    }
    EXPECT_LE(series, 64u) << "a label's values multiply";
  }
}

// "# TYPE name type" lines of a scrape.
std::map<std::string, std::string> TypesOf(const std::string& scrape) {
  std::map<std::string, std::string> types;
  std::istringstream lines(scrape);
  std::string hash, keyword, name, rest;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    if (words >> hash >> keyword >> name && keyword == "TYPE") words >> types[name];
  }
  return types;
}

TEST(MetricsTest, AFreshScrapeEqualsTheTableBothWays) {
  for (const MetricRole role : kRoles) {
    Metrics metrics(Identity(role));
    std::map<std::string, std::string> expected;
    for (const MetricInfo& info : kMetricsTable) {
      if (InRole(info, role) && !info.of_device) expected[info.name] = TypeText(info.type);
    }
    const std::string scrape = metrics.Scrape();
    EXPECT_EQ(TypesOf(scrape), expected);
    EXPECT_EQ(scrape.find("stage=\"1\"") != std::string::npos, role == MetricRole::kPrefill);
  }
}

TEST(MetricsTest, OneOfSeveralProcessesOfAStageHasItsRank) {
  MetricsIdentity identity = Identity(MetricRole::kPrefill);
  EXPECT_EQ(Metrics(identity).Scrape().find("rank="), std::string::npos);
  identity.rank = 0;
  EXPECT_THAT(Metrics(identity).Scrape(), HasSubstr("rank=\"0\""));
}

TEST(MetricsTest, EverySeriesExistsFromTheStart) {
  Metrics metrics(Identity(MetricRole::kPrefill));
  const std::string scrape = metrics.Scrape();
  for (const char* const reason : {"bubble", "no_request", "transfer", "credit", "other"}) {
    EXPECT_THAT(scrape, testing::ContainsRegex(std::string("baton_stage_idle_seconds_total.*\"") +
                                               reason + "\".* 0\n"));
  }
  EXPECT_THAT(scrape, HasSubstr("model_name=\"tiny \\\"quoted\\\"\""));
}

// The value at the end of the one line that contains all of `parts`.
double ValueOf(const std::string& scrape, const std::vector<std::string>& parts) {
  std::istringstream lines(scrape);
  double value = -1;
  int found = 0;
  for (std::string line; std::getline(lines, line);) {
    bool all = line.rfind("# ", 0) != 0;
    for (const std::string& part : parts) all = all && line.find(part) != std::string::npos;
    if (!all) continue;
    ++found;
    value = std::strtod(line.c_str() + line.rfind(' '), nullptr);
  }
  EXPECT_EQ(found, 1) << parts[0];
  return value;
}

TEST(MetricsTest, UpdatesReachTheScrape) {
  Metrics router(Identity(MetricRole::kRouter));
  router.Increment(Metric::kRequestsTotal, 1, {"completions", "ok"});
  router.Increment(Metric::kRequestsTotal, 2, {"completions", "ok"});
  router.Increment(Metric::kRequestsTotal, 5, {"no such endpoint", "ok"});
  router.Set(Metric::kWorkers, 4, {"decode", "ready"});
  router.Set(Metric::kRequestsRunning, 4);
  router.Add(Metric::kRequestsRunning, -1);
  router.Observe(Metric::kTpotSeconds, 0.02);
  router.Observe(Metric::kTpotSeconds, 100);
  const std::string scrape = router.Scrape();
  EXPECT_EQ(ValueOf(scrape, {"baton_requests_total{", "\"completions\"", "\"ok\""}), 3);
  EXPECT_EQ(ValueOf(scrape, {"baton_requests_total{", "endpoint=\"other\"", "\"ok\""}), 5);
  EXPECT_EQ(ValueOf(scrape, {"baton_workers{", "worker_role=\"decode\"", "\"ready\""}), 4);
  EXPECT_EQ(ValueOf(scrape, {"baton_workers{", "worker_role=\"prefill\"", "\"ready\""}), 0);
  EXPECT_EQ(ValueOf(scrape, {"baton_requests_running{"}), 3);
  EXPECT_EQ(ValueOf(scrape, {"baton_time_per_output_token_seconds_bucket", "le=\"0.01\""}), 0);
  EXPECT_EQ(ValueOf(scrape, {"baton_time_per_output_token_seconds_bucket", "le=\"0.025\""}), 1);
  EXPECT_EQ(ValueOf(scrape, {"baton_time_per_output_token_seconds_count"}), 2);
  EXPECT_EQ(ValueOf(scrape, {"baton_up{"}), 1);
  EXPECT_EQ(ValueOf(scrape, {"baton_build_info{", kBatonVersion}), 1);
  EXPECT_GT(ValueOf(scrape, {"baton_process_start_time_seconds{"}), 1.7e9);
  EXPECT_GE(ValueOf(scrape, {"baton_process_uptime_seconds{"}), 0);
}

TEST(MetricsTest, ADevicesSeriesAreThereWhileTheyAreKnown) {
  MetricsIdentity identity = Identity(MetricRole::kDecode);
  identity.device = "cuda:1";
  Metrics metrics(identity);
  EXPECT_THAT(metrics.Scrape(), Not(HasSubstr("baton_device_")));
  for (const double value : {5, 6}) {
    metrics.SetOrRemove(Metric::kDeviceMemoryUsedBytes, value);
    EXPECT_EQ(ValueOf(metrics.Scrape(), {"baton_device_memory_used_bytes{", "device=\"cuda:1\""}),
              value);
  }
  metrics.SetOrRemove(Metric::kDeviceUtilizationRatio, std::nullopt);
  EXPECT_THAT(metrics.Scrape(), Not(HasSubstr("baton_device_utilization_ratio")));
  metrics.SetOrRemove(Metric::kDeviceMemoryUsedBytes, std::nullopt);
  EXPECT_THAT(metrics.Scrape(), Not(HasSubstr("baton_device_")));
  metrics.SetOrRemove(Metric::kDeviceMemoryUsedBytes, 7);
  EXPECT_EQ(ValueOf(metrics.Scrape(), {"baton_device_memory_used_bytes{"}), 7);
}

TEST(MetricsTest, EveryOutcomeIsInTheTable) {
  const MetricLabel& outcome = InfoOf(Metric::kRequestsTotal).labels[1];
  for (int code = 0; code <= static_cast<int>(absl::StatusCode::kUnauthenticated); ++code) {
    EXPECT_THAT(
        outcome.values,
        testing::Contains(testing::StrEq(OutcomeLabel(static_cast<absl::StatusCode>(code)))));
  }
}

TEST(MetricsTest, ThreadsMayUpdateAndScrape) {
  Metrics metrics(Identity(MetricRole::kDecode));
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&metrics] {
      for (int step = 0; step < 1000; ++step) {
        metrics.Increment(Metric::kDecodeStepsTotal);
        if (step % 250 == 0) metrics.Scrape();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ValueOf(metrics.Scrape(), {"baton_decode_steps_total{"}), 4000);
}

TEST(MetricsDeathTest, MisuseIsABrokenInvariant) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  Metrics metrics(Identity(MetricRole::kDecode));
  EXPECT_DEATH(metrics.Set(Metric::kPlanCostsKnown, 1), "not in this role");
  EXPECT_DEATH(metrics.Set(Metric::kDecodeStepsTotal, 1), "of another type");
  EXPECT_DEATH(metrics.SetOrRemove(Metric::kDeviceUtilizationRatio, 1), "of no device here");
  EXPECT_DEATH(metrics.Increment(Metric::kKvMessagesRefusedTotal), "has 1 labels, not 0");
}

TEST(MetricsTest, PromtoolAcceptsEveryRole) {
  if (std::system("command -v promtool > /dev/null") != 0) {
    std::fprintf(stderr, "promtool is not installed: `promtool check metrics` was NOT run\n");
    return;
  }
  for (const MetricRole role : kRoles) {
    MetricsIdentity identity = Identity(role);
    identity.device = "cuda:0";
    Metrics metrics(identity);
    for (const MetricInfo& info : kMetricsTable) {
      if (info.of_device && InRole(info, role)) metrics.SetOrRemove(info.id, 1);
    }
    const std::string path = testing::TempDir() + "/scrape.prom";
    std::ofstream(path) << metrics.Scrape();
    EXPECT_EQ(std::system(("promtool check metrics < " + path + " 1>&2").c_str()), 0);
  }
}

TEST(MetricsTest, DocumentationIsUpToDate) {
  std::ifstream file("docs/metrics.md");
  const std::string text(std::istreambuf_iterator<char>(file), {});
  EXPECT_TRUE(text == MetricsMarkdown()) << "./dev docs writes it anew";
}

}  // namespace
}  // namespace baton
