#include "services/router/discovery/core/pod_watch.h"

#include <gtest/gtest.h>

#include <set>

#include "absl/strings/str_cat.h"

namespace baton::router {
namespace {

constexpr int64_t kSecond = 1'000'000;

Pod MakePod(const std::string& name) {
  Pod pod;
  pod.name = name;
  pod.uid = name + "-uid";
  pod.ip = "10.0.0.1";
  return pod;
}

class PodWatchTest : public testing::Test {
 protected:
  void Do(const PodWatchEvent& event) {
    std::vector<PodWatchAction> actions;
    watch_.Handle(event, now_us_, actions);
    for (const PodWatchAction& action : actions) {
      if (const auto* list = std::get_if<ListPods>(&action)) {
        asked_ = absl::StrCat("list", list->continue_token);
      } else if (const auto* watch = std::get_if<WatchPods>(&action)) {
        asked_ = absl::StrCat("watch ", watch->resource_version);
      } else {
        ++abandoned_;
        asked_ = "";
      }
    }
  }
  void List(std::vector<Pod> pods, const std::string& version, const std::string& more = "") {
    Do(PodsListed{{std::move(pods), version, more}});
    End();
  }
  void End(int http_status = 200, absl::Status status = absl::OkStatus(), int64_t retry_us = 0) {
    asked_ = "";
    Do(ApiRequestEnded{http_status, std::move(status), retry_us});
  }
  void Change(PodChange::Type type, const Pod& pod, const std::string& version) {
    PodChange change;
    change.type = type;
    change.pod = pod;
    change.resource_version = version;
    Do(PodChanged{change});
  }
  void Error(int code) {
    PodChange change;
    change.type = PodChange::Type::kError;
    change.error_code = code;
    Do(PodChanged{change});
  }
  void Pass(int64_t duration_us) {
    now_us_ += duration_us;
    Do(PodWatchTick{});
  }
  // Until it asks again; how long that was.
  int64_t Wait() {
    const int64_t from_us = now_us_;
    EXPECT_EQ(asked_, "");
    now_us_ = watch_.NextDeadlineUs();
    Do(PodWatchTick{});
    EXPECT_NE(asked_, "");
    return now_us_ - from_us;
  }
  void Begin() {
    Do(PodWatchTick{});
    List({MakePod("a"), MakePod("b")}, "100");
    ASSERT_EQ(asked_, "watch 100");
    now_us_ += 10 * kSecond;
  }
  std::set<std::string> Names() const {
    std::set<std::string> names;
    for (const auto& [uid, pod] : watch_.pods()) names.insert(pod.name);
    return names;
  }

  using Set = std::set<std::string>;
  int64_t now_us_ = kSecond;
  std::string asked_;
  int abandoned_ = 0;
  PodWatch watch_;
};

TEST_F(PodWatchTest, ListsPageByPageThenWatches) {
  Do(PodWatchTick{});
  EXPECT_EQ(asked_, "list");
  List({MakePod("a")}, "100", "/more");
  EXPECT_EQ(asked_, "list/more");
  EXPECT_TRUE(Names().empty()) << "half a list is none";
  List({MakePod("b")}, "100");
  EXPECT_EQ(asked_, "watch 100");
  EXPECT_EQ(Names(), (Set{"a", "b"}));
}

TEST_F(PodWatchTest, FollowsChanges) {
  Begin();
  const uint64_t before = watch_.version();
  Change(PodChange::Type::kUpsert, MakePod("c"), "101");
  Change(PodChange::Type::kDeleted, MakePod("a"), "102");
  EXPECT_EQ(Names(), (Set{"b", "c"}));
  EXPECT_EQ(watch_.version(), before + 2);
  Change(PodChange::Type::kUpsert, MakePod("c"), "103");
  EXPECT_EQ(watch_.version(), before + 2) << "nothing that matters has changed";
}

TEST_F(PodWatchTest, GoesOnWhereABookmarkWas) {
  Begin();
  Change(PodChange::Type::kBookmark, {}, "200");
  End();  // As the API ends every watch after a while.
  EXPECT_EQ(asked_, "watch 200");
}

TEST_F(PodWatchTest, GoesOnAfterADroppedConnection) {
  Begin();
  Change(PodChange::Type::kUpsert, MakePod("c"), "101");
  End(200, absl::UnavailableError("the connection broke"));
  EXPECT_GT(Wait(), 0);
  EXPECT_EQ(asked_, "watch 101");
  EXPECT_EQ(Names().size(), 3u) << "nobody is lost meanwhile";
}

TEST_F(PodWatchTest, ListsAgainWhenItsVersionIsGone) {
  Begin();
  Error(410);
  EXPECT_EQ(abandoned_, 1);
  EXPECT_EQ(asked_, "list");
  EXPECT_EQ(Names(), (Set{"a", "b"})) << "until the list says otherwise";
  List({MakePod("b"), MakePod("d")}, "300");
  EXPECT_EQ(asked_, "watch 300");
  EXPECT_EQ(Names(), (Set{"b", "d"}));
  now_us_ += 10 * kSecond;
  End(410);  // As the answer to the request instead of an event.
  EXPECT_EQ(asked_, "list");
}

TEST_F(PodWatchTest, AnApiThatFindsEveryVersionTooOldIsNotAskedInARow) {
  Begin();
  int64_t pauses_us = 0;
  Error(410);
  for (int i = 0; i < 8; ++i) {
    List({}, "300");
    Error(410);
    pauses_us += Wait();
  }
  EXPECT_GT(pauses_us, kSecond / 2);
}

TEST_F(PodWatchTest, APageThatIsGoneBeginsTheListAnew) {
  Do(PodWatchTick{});
  List({MakePod("a")}, "100", "/more");
  End(410);
  EXPECT_GT(Wait(), 0);
  EXPECT_EQ(asked_, "list");
  List({MakePod("b")}, "101");
  EXPECT_EQ(Names(), (Set{"b"}));
}

TEST_F(PodWatchTest, FailuresWaitLongerAndLongerAndAreForgottenBySuccess) {
  Do(PodWatchTick{});
  int64_t last_us = 0;
  for (int i = 0; i < 12; ++i) {
    End(i % 2 == 0 ? 500 : 0, i % 2 == 0 ? absl::OkStatus() : absl::UnavailableError("refused"));
    const int64_t pause_us = Wait();
    EXPECT_GE(pause_us, last_us);
    EXPECT_LE(pause_us, 30 * kSecond);
    last_us = pause_us;
  }
  EXPECT_EQ(last_us, 30 * kSecond);
  List({MakePod("a")}, "100");
  EXPECT_EQ(asked_, "watch 100");
  EXPECT_EQ(watch_.failures(), 0);
}

TEST_F(PodWatchTest, HasThePatienceThatTheApiAsksFor) {
  Do(PodWatchTick{});
  End(429, absl::OkStatus(), 7 * kSecond);
  EXPECT_EQ(Wait(), 7 * kSecond);
  End(503, absl::OkStatus(), 3600 * kSecond);
  EXPECT_EQ(Wait(), 60 * kSecond);
}

TEST_F(PodWatchTest, GarbageWaitsAndAtLastListsAnew) {
  Begin();
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(asked_, "watch 100");
    End(200, absl::InvalidArgumentError("no JSON"));
    EXPECT_GT(Wait(), 0);
  }
  EXPECT_EQ(asked_, "list") << "the version itself may be the trouble";
  EXPECT_EQ(Names(), (Set{"a", "b"}));
}

TEST_F(PodWatchTest, AWatchThatEndsAtOnceIsNotReopenedInARow) {
  Do(PodWatchTick{});
  List({}, "100");
  int64_t pauses_us = 0;
  for (int i = 0; i < 5; ++i) {
    End();
    pauses_us += Wait();
    if (asked_ == "list") List({}, "100");
  }
  EXPECT_GT(pauses_us, kSecond);
}

TEST_F(PodWatchTest, WhatComesAfterTheEndMeansNothing) {
  Begin();
  End(500);
  Change(PodChange::Type::kUpsert, MakePod("late"), "999");
  EXPECT_EQ(Names(), (Set{"a", "b"}));
  Wait();
  EXPECT_EQ(asked_, "watch 100");
}

TEST_F(PodWatchTest, KeepsNoMorePodsThanARouterTakesWorkers) {
  Do(PodWatchTick{});
  std::vector<Pod> pods;
  pods.reserve(5000);
  for (int i = 0; i < 5000; ++i) pods.push_back(MakePod(absl::StrCat("pod-", i)));
  List(std::move(pods), "100");
  EXPECT_EQ(watch_.pods().size(), 4096u);
  EXPECT_TRUE(watch_.overfull());
}

// ---- What the API says ----

TEST(PodTest, ReadsAListAndLeavesOutWhatHasNoName) {
  const auto page = ParsePodPage(R"({"kind":"PodList","metadata":{"resourceVersion":"7",
      "continue":"next"},"items":[{"metadata":{"name":"w-0","uid":"u0"},
      "spec":{"containers":[{"ports":[{"name":"metrics","containerPort":1},
                                       {"name":"grpc","containerPort":30010}]}]},
      "status":{"phase":"Running","podIP":"10.1.2.3",
                "containerStatuses":[{"restartCount":2},{"restartCount":1}]}},
      {"metadata":{}},{"spec":7}]})");
  ASSERT_TRUE(page.ok()) << page.status();
  EXPECT_EQ(page->resource_version, "7");
  EXPECT_EQ(page->continue_token, "next");
  ASSERT_EQ(page->pods.size(), 1u);
  EXPECT_EQ(page->pods[0], (Pod{"w-0", "u0", "10.1.2.3", 30010, 3, false}));
}

TEST(PodTest, KnowsWhoLeaves) {
  const auto type_of = [](const std::string& metadata, const std::string& phase) {
    const auto change = ParsePodChange(absl::StrCat(
        R"({"type":"MODIFIED","object":{"metadata":{"name":"a","uid":"b","resourceVersion":"1")",
        metadata, R"(},"status":{"phase":")", phase, R"("}}})"));
    return change.ok() && change->pod.leaving;
  };
  EXPECT_FALSE(type_of("", "Running"));
  EXPECT_TRUE(type_of("", "Succeeded"));
  EXPECT_TRUE(type_of("", "Failed"));
  EXPECT_TRUE(type_of(R"(,"deletionTimestamp":"2026-11-22T00:00:00Z")", "Running"));
}

TEST(PodTest, RefusesWhatIsNone) {
  EXPECT_FALSE(ParsePodPage("").ok());
  EXPECT_FALSE(ParsePodPage("<html>").ok());
  EXPECT_FALSE(ParsePodPage(R"({"kind":"Status"})").ok());
  EXPECT_FALSE(ParsePodPage(R"({"kind":"PodList","metadata":{}})").ok());
  EXPECT_FALSE(
      ParsePodPage(R"({"kind":"PodList","metadata":{"resourceVersion":"1"},"items":3})").ok());
  EXPECT_FALSE(ParsePodChange("{").ok());
  EXPECT_FALSE(ParsePodChange("[]").ok());
  EXPECT_FALSE(ParsePodChange(R"({"type":"ADDED","object":{}})").ok());
  EXPECT_FALSE(
      ParsePodChange(R"({"type":"WHAT","object":{"metadata":{"resourceVersion":"1"}}})").ok());
  EXPECT_FALSE(
      ParsePodChange(R"({"type":"ADDED","object":{"metadata":{"resourceVersion":"1"}}})").ok());
}

TEST(PodTest, ReadsErrorsAndBookmarks) {
  const auto error =
      ParsePodChange(R"({"type":"ERROR","object":{"code":410,"message":"too old"}})");
  ASSERT_TRUE(error.ok());
  EXPECT_EQ(error->error_code, 410);
  EXPECT_EQ(error->error_message, "too old");
  const auto bookmark =
      ParsePodChange(R"({"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9"}}})");
  ASSERT_TRUE(bookmark.ok());
  EXPECT_EQ(bookmark->type, PodChange::Type::kBookmark);
  EXPECT_EQ(bookmark->resource_version, "9");
  EXPECT_EQ(ParseApiError(R"({"kind":"Status","message":"forbidden"})"), "forbidden");
  EXPECT_EQ(ParseApiError("<html>"), "");
}

}  // namespace
}  // namespace baton::router
