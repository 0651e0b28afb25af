#include "common/tracing/export_core.h"

#include <gtest/gtest.h>

#include <vector>

#include "common/tracing/otlp_exporter.h"

namespace baton::tracing {
namespace {

ExportLimits Limits() {
  ExportLimits limits;
  limits.batch_spans = 10;
  limits.interval_us = 1000;
  limits.first_pause_us = 100;
  limits.longest_pause_us = 250;
  limits.max_tries = 4;
  return limits;
}

TEST(ExportCoreTest, ABatchLeavesAtOnceAndFewerSpansSoon) {
  const ExportCore core(Limits());
  EXPECT_EQ(core.NextLookUs(10, 5000), 5000);
  EXPECT_EQ(core.NextLookUs(9, 5000), 6000);
  EXPECT_EQ(core.NextLookUs(0, 5000), 6000);
}

TEST(ExportCoreTest, WhatMayPassIsTriedAgainWithPausesThatDouble) {
  ExportCore core(Limits());
  const absl::Status down = absl::UnavailableError("connection refused");
  EXPECT_EQ(core.OnResult(down, 1000, false), AfterExport::kRetry);
  EXPECT_EQ(core.retry_at_us(), 1100);
  EXPECT_EQ(core.OnResult(down, 2000, false), AfterExport::kRetry);
  EXPECT_EQ(core.retry_at_us(), 2200);
  EXPECT_EQ(core.OnResult(down, 3000, false), AfterExport::kRetry);
  EXPECT_EQ(core.retry_at_us(), 3250);
  EXPECT_EQ(core.OnResult(down, 4000, false), AfterExport::kGiveUp);
  // The next batch has its own tries; the pause goes on where it was.
  EXPECT_EQ(core.OnResult(down, 5000, false), AfterExport::kRetry);
  EXPECT_EQ(core.retry_at_us(), 5250);
  EXPECT_EQ(core.OnResult(absl::OkStatus(), 6000, false), AfterExport::kDone);
  EXPECT_EQ(core.OnResult(down, 7000, false), AfterExport::kRetry);
  EXPECT_EQ(core.retry_at_us(), 7100);
}

TEST(ExportCoreTest, WhatCannotPassIsGivenUpAtOnce) {
  for (const absl::Status& status :
       {absl::UnimplementedError("no such service"), absl::InvalidArgumentError("bad span"),
        absl::UnauthenticatedError("who?"), absl::InternalError("oops")}) {
    ExportCore core(Limits());
    EXPECT_EQ(core.OnResult(status, 1000, false), AfterExport::kGiveUp) << status;
  }
}

TEST(ExportCoreTest, NothingIsTriedAgainWhileStopping) {
  ExportCore core(Limits());
  EXPECT_EQ(core.OnResult(absl::UnavailableError("down"), 1000, true), AfterExport::kGiveUp);
}

TEST(ExportCoreTest, TheLogHearsOfChangesAlone) {
  ExportCore core(Limits());
  EXPECT_EQ(core.TakeNews(), ExportNews::kNone);
  (void)core.OnResult(absl::OkStatus(), 1, false);
  EXPECT_EQ(core.TakeNews(), ExportNews::kNone) << "that it works from the start is no news";
  (void)core.OnResult(absl::UnavailableError("down"), 2, false);
  EXPECT_EQ(core.TakeNews(), ExportNews::kFailing);
  (void)core.OnResult(absl::UnavailableError("down"), 3, false);
  EXPECT_EQ(core.TakeNews(), ExportNews::kNone);
  (void)core.OnResult(absl::OkStatus(), 4, false);
  EXPECT_EQ(core.TakeNews(), ExportNews::kWorking);
  EXPECT_EQ(core.TakeNews(), ExportNews::kNone);
}

Span Named(const std::string& name) {
  Span span;
  span.name = name;
  return span;
}

TEST(SpanQueueTest, TheNewestAreDroppedWhenItIsFull) {
  SpanQueue queue(/*limit=*/3, /*batch=*/2);
  EXPECT_EQ(queue.Push(Named("a")), SpanQueue::Pushed::kTaken);
  EXPECT_EQ(queue.Push(Named("b")), SpanQueue::Pushed::kBatchFull);
  EXPECT_EQ(queue.Push(Named("c")), SpanQueue::Pushed::kTaken);
  EXPECT_EQ(queue.Push(Named("d")), SpanQueue::Pushed::kDropped);
  std::vector<Span> batch;
  queue.Take(batch);
  ASSERT_EQ(batch.size(), 2u);
  EXPECT_EQ(batch[0].name, "a");
  EXPECT_EQ(batch[1].name, "b");
  queue.Take(batch);
  ASSERT_EQ(batch.size(), 3u);
  EXPECT_EQ(batch[2].name, "c");
  EXPECT_EQ(queue.size(), 0u);
}

}  // namespace
}  // namespace baton::tracing
