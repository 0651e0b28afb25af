#include "common/tracing/otlp_exporter.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/tracing/span_destination.h"
#include "common/tracing/testing/fake_collector.h"

namespace baton::tracing {
namespace {

class OtlpExporterTest : public testing::Test {
 protected:
  void SetUp() override {
    port_ = collector_.Start();
    ASSERT_NE(port_, 0);
    options_.to = CollectorAt("127.0.0.1:" + std::to_string(port_));
    options_.resource = {{"service.name", "test"}};
    options_.limits.queue_spans = 8;
    options_.limits.batch_spans = 4;
    options_.limits.interval_us = 1'000;
    options_.limits.first_pause_us = 1'000;
    options_.limits.longest_pause_us = 10'000;
    options_.limits.flush_us = 30'000'000;  // Only a bound: a busy machine takes its time.
    options_.limits.call_timeout_us = 30'000'000;
    options_.count = [this](SpanFate fate, size_t spans) {
      MutexLock lock(&mutex_);
      counts_[fate] += spans;
    };
  }

  void Start() { exporter_ = std::make_unique<OtlpExporter>(std::move(options_)); }
  void Take(const std::string& name) {
    Span span;
    span.name = name;
    span.context.trace = {1, 2};
    span.context.span = 3;
    exporter_->Take(std::move(span));
  }
  size_t Count(SpanFate fate) {
    MutexLock lock(&mutex_);
    return counts_[fate];
  }
  // Waits for what an exporter's thread counts.
  bool WaitForCount(SpanFate fate, size_t spans) {
    MutexLock lock(&mutex_);
    return mutex_.AwaitFor(std::chrono::seconds(30), [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return counts_[fate] >= spans;
    });
  }

  int port_ = 0;
  OtlpExporterOptions options_;
  Mutex mutex_;
  std::map<SpanFate, size_t> counts_ ABSL_GUARDED_BY(mutex_);
  FakeCollector collector_;
  std::unique_ptr<OtlpExporter> exporter_;  // Ends before what it counts into.
};

TEST_F(OtlpExporterTest, SpansArriveInOrderInBatches) {
  options_.limits.interval_us = 3'600'000'000;  // A full batch does not wait for it.
  Start();
  for (int i = 0; i < 4; ++i) Take("s" + std::to_string(i));
  EXPECT_EQ(collector_.WaitForSpans(4), 4u);
  EXPECT_EQ(collector_.names(), (std::vector<std::string>{"s0", "s1", "s2", "s3"}));
  ASSERT_EQ(collector_.requests().size(), 1u);
  const auto requests = collector_.requests();
  const auto& all = requests[0].resource_spans(0);
  EXPECT_EQ(all.resource().attributes(0).key(), "service.name");
  EXPECT_EQ(all.resource().attributes(0).value().string_value(), "test");
  EXPECT_EQ(all.scope_spans(0).scope().name(), "baton");
  EXPECT_TRUE(WaitForCount(SpanFate::kExported, 4));
}

TEST_F(OtlpExporterTest, FewerLeaveAfterTheInterval) {
  Start();
  Take("alone");
  EXPECT_EQ(collector_.WaitForSpans(1), 1u);
}

TEST_F(OtlpExporterTest, TheEndSendsWhatIsLeft) {
  options_.limits.interval_us = 3'600'000'000;
  options_.limits.flush_us = 3'600'000'000;  // The end comes when everything is sent, not then.
  Start();
  Take("a");
  Take("b");
  exporter_->Shutdown();
  EXPECT_EQ(collector_.names(), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(Count(SpanFate::kExported), 2u);
}

TEST_F(OtlpExporterTest, ASlowCollectorCostsSpansAndNobodyWaits) {
  collector_.Hold();
  Start();
  for (int i = 0; i < 4; ++i) Take("first");
  ASSERT_EQ(collector_.WaitForCalls(1), 1u);
  for (int i = 0; i < 20; ++i) Take("later");
  EXPECT_EQ(Count(SpanFate::kQueueFull), 12u) << "eight have room";
  collector_.Release();
  EXPECT_EQ(collector_.WaitForSpans(12), 12u);
  EXPECT_TRUE(WaitForCount(SpanFate::kExported, 12));
}

TEST_F(OtlpExporterTest, WhatFailsForAMomentIsSentAgain) {
  int failures = 3;
  collector_.SetAnswer([&failures](const auto&, auto&) {
    return --failures >= 0 ? grpc::Status(grpc::StatusCode::UNAVAILABLE, "starting")
                           : grpc::Status::OK;
  });
  Start();
  Take("patient");
  EXPECT_EQ(collector_.WaitForSpans(1), 1u);
  EXPECT_EQ(collector_.WaitForCalls(4), 4u);
  EXPECT_TRUE(WaitForCount(SpanFate::kExported, 1));
  EXPECT_EQ(Count(SpanFate::kFailed), 0u);
}

TEST_F(OtlpExporterTest, WhatIsRefusedIsLostOnce) {
  collector_.SetAnswer(
      [](const auto&, auto&) { return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "no"); });
  Start();
  Take("refused");
  EXPECT_TRUE(WaitForCount(SpanFate::kFailed, 1));
  collector_.SetAnswer(nullptr);
  Take("taken");
  EXPECT_EQ(collector_.WaitForSpans(1), 1u);
  EXPECT_EQ(collector_.names(), std::vector<std::string>{"taken"});
  EXPECT_EQ(collector_.WaitForCalls(2), 2u);
}

TEST_F(OtlpExporterTest, PartOfABatchMayBeRefused) {
  collector_.SetAnswer([](const auto&, FakeCollector::Response& response) {
    response.mutable_partial_success()->set_rejected_spans(3);
    return grpc::Status::OK;
  });
  options_.limits.interval_us = 3'600'000'000;
  Start();
  for (int i = 0; i < 4; ++i) Take("s");
  EXPECT_TRUE(WaitForCount(SpanFate::kFailed, 3));
  EXPECT_TRUE(WaitForCount(SpanFate::kExported, 1));
}

TEST_F(OtlpExporterTest, ACollectorThatComesBackIsFoundAgain) {
  options_.limits.max_tries = 1'000'000;
  Start();
  Take("before");
  ASSERT_EQ(collector_.WaitForSpans(1), 1u);
  collector_.Stop();
  Take("meanwhile");
  ASSERT_EQ(collector_.Start(port_), port_);
  EXPECT_EQ(collector_.WaitForSpans(2), 2u);
  EXPECT_EQ(collector_.names().back(), "meanwhile");
}

TEST_F(OtlpExporterTest, ACollectorThatIsAwayDoesNotHoldUpTheEnd) {
  collector_.Stop();
  Start();
  for (int i = 0; i < 6; ++i) Take("lost");
  exporter_->Shutdown();
  EXPECT_EQ(Count(SpanFate::kFailed) + Count(SpanFate::kExported), 6u);
  EXPECT_EQ(Count(SpanFate::kExported), 0u);
}

TEST_F(OtlpExporterTest, ACollectorThatHangsDoesNotHoldUpTheEndForLong) {
  options_.limits.flush_us = 50'000;
  options_.limits.call_timeout_us = 3'600'000'000;
  collector_.Hold();
  Start();
  for (int i = 0; i < 8; ++i) Take("stuck");
  ASSERT_EQ(collector_.WaitForCalls(1), 1u);
  exporter_->Shutdown();  // An hour later, if the call's own deadline counted.
  EXPECT_EQ(Count(SpanFate::kFailed), 8u);
}

std::vector<std::string> LinesOf(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

std::string FreshFile(const char* name) {
  std::string path = testing::TempDir() + "/" + name;
  std::remove(path.c_str());
  return path;
}

TEST_F(OtlpExporterTest, AFileGetsALineForEachBatch) {
  const std::string path = FreshFile("spans.jsonl");
  options_.to = FileAt(path);
  options_.limits.interval_us = 3'600'000'000;
  Start();
  for (int i = 0; i < 6; ++i) Take("s" + std::to_string(i));
  exporter_->Shutdown();
  EXPECT_EQ(Count(SpanFate::kExported), 6u);
  const std::vector<std::string> lines = LinesOf(path);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_NE(lines[0].find("\"name\":\"s3\""), std::string::npos) << lines[0];
  EXPECT_NE(lines[1].find("\"name\":\"s5\""), std::string::npos) << lines[1];
}

TEST_F(OtlpExporterTest, SeveralWriteToOneFile) {
  const std::string path = FreshFile("shared.jsonl");
  const auto to = [&path] { return FileAt(path); };
  OtlpExporterOptions second{to(), {}, options_.limits};
  options_.to = to();
  Start();
  OtlpExporter other(std::move(second));
  for (int i = 0; i < 4; ++i) Take("one");
  Span span;
  span.name = "two";
  for (int i = 0; i < 4; ++i) other.Take(span);
  exporter_->Shutdown();
  other.Shutdown();
  std::string all;
  for (const std::string& line : LinesOf(path)) {
    EXPECT_EQ(line.rfind("{\"resourceSpans\":", 0), 0u) << line;
    all += line;
  }
  EXPECT_NE(all.find("\"one\""), std::string::npos);
  EXPECT_NE(all.find("\"two\""), std::string::npos);
}

TEST_F(OtlpExporterTest, AFullFileLosesSpansAndSaysSoByCount) {
  const std::string path = FreshFile("full.jsonl");
  options_.to = FileAt(path, /*bytes_max=*/100);
  Start();
  Take("lost");
  EXPECT_TRUE(WaitForCount(SpanFate::kFailed, 1));
  EXPECT_TRUE(LinesOf(path).empty());
}

TEST_F(OtlpExporterTest, AFileThatCannotBeOpenedLosesSpans) {
  options_.to = FileAt(testing::TempDir() + "/no/such/directory/spans.jsonl");
  Start();
  Take("lost");
  EXPECT_TRUE(WaitForCount(SpanFate::kFailed, 1));
}

}  // namespace
}  // namespace baton::tracing
