#include "common/collective/rendezvous.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/collective/bootstrap_store.h"

namespace baton {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

class RendezvousTest : public ::testing::Test {
 protected:
  void Join(uint64_t caller, Rendezvous::Join join, int64_t now_us = 0) {
    if (join.member.empty()) join.member = absl::StrCat("m", join.rank);
    if (join.incarnation == 0) join.incarnation = 0xa0 + static_cast<uint64_t>(join.rank);
    rendezvous_.OnJoin(caller, join, now_us);
    Deliver();
  }
  void Set(uint64_t caller, const std::string& key, const std::string& value) {
    rendezvous_.OnEntry(caller, {key, value});
    Deliver();
  }
  void Connected(uint64_t caller) {
    rendezvous_.OnConnected(caller);
    Deliver();
  }
  void Deliver() {
    for (const Rendezvous::Message& message : rendezvous_.TakeMessages()) {
      EXPECT_EQ(verdicts_.count(message.to), 0) << "something follows a verdict";
      if (message.entry) {
        heard_[message.to].push_back(message.entry->key + "=" + message.entry->value);
      }
      if (message.verdict) verdicts_[message.to] = *message.verdict;
    }
  }
  std::string Verdict(uint64_t caller) {
    const auto found = verdicts_.find(caller);
    return found == verdicts_.end() ? "none" : std::string(found->second.message());
  }

  Rendezvous rendezvous_{"stage 1", 3000};
  std::map<uint64_t, std::vector<std::string>> heard_;
  std::map<uint64_t, absl::Status> verdicts_;
};

TEST_F(RendezvousTest, EverybodyHearsEverythingOnceAllAreThere) {
  Join(10, {.epoch = 7, .rank = 0, .size = 3});
  Set(10, "0", "zero");
  Join(12, {.epoch = 7, .rank = 2, .size = 3});
  EXPECT_TRUE(heard_.empty());
  EXPECT_TRUE(rendezvous_.members().empty());
  Join(11, {.epoch = 7, .rank = 1, .size = 3});
  EXPECT_THAT(heard_[11], ElementsAre("0=zero"));
  Set(11, "1", "one");
  Set(12, "2", "two");
  EXPECT_THAT(heard_[10], ElementsAre("1=one", "2=two"));
  EXPECT_THAT(heard_[11], ElementsAre("0=zero", "2=two"));
  EXPECT_THAT(heard_[12], ElementsAre("0=zero", "1=one"));
  EXPECT_THAT(rendezvous_.members(), ElementsAre("m0", "m1", "m2"));
  Connected(10);
  Connected(12);
  EXPECT_TRUE(verdicts_.empty()) << "half-formed";
  Connected(11);
  EXPECT_TRUE(rendezvous_.formed());
  for (const uint64_t caller : {10, 11, 12}) EXPECT_TRUE(verdicts_.at(caller).ok());
  EXPECT_EQ(rendezvous_.deadline_us(), kNeverUs);
}

TEST_F(RendezvousTest, AnOlderEpochNeverJoinsAndANewerReplaces) {
  Join(10, {.epoch = 7, .rank = 0, .size = 2});
  Join(11, {.epoch = 6, .rank = 1, .size = 2});
  EXPECT_EQ(Verdict(11),
            "rank 1 of stage 1 (m1, incarnation a1) asks for epoch 6, which epoch 7 has replaced");
  EXPECT_EQ(verdicts_.at(11).code(), absl::StatusCode::kFailedPrecondition);
  Join(12, {.epoch = 8, .rank = 1, .size = 2});
  EXPECT_EQ(verdicts_.at(10).code(), absl::StatusCode::kAborted);
  EXPECT_THAT(Verdict(10), HasSubstr("epoch 8, asked for by rank 1"));
  EXPECT_EQ(Verdict(12), "none");
  Join(13, {.epoch = 7, .rank = 0, .size = 2});
  EXPECT_THAT(Verdict(13), HasSubstr("asks for epoch 7, which epoch 8 has replaced"));
}

TEST_F(RendezvousTest, WhoComesToAFormedEpochIsRefused) {
  Join(10, {.epoch = 7, .rank = 0, .size = 1});
  Connected(10);
  ASSERT_TRUE(rendezvous_.formed());
  Join(11, {.epoch = 7, .rank = 0, .size = 1, .member = "m9", .incarnation = 0xb});
  EXPECT_EQ(Verdict(11),
            "rank 0 of stage 1 (m9, incarnation b) comes late: epoch 7 has formed with rank 0 of "
            "stage 1 (m0, incarnation a0)");
}

TEST_F(RendezvousTest, TwoProcessesOfOneRankAreBothNamed) {
  Join(10, {.epoch = 7, .rank = 1, .size = 2, .member = "a", .incarnation = 1});
  Join(11, {.epoch = 7, .rank = 1, .size = 2, .member = "b", .incarnation = 2});
  EXPECT_EQ(Verdict(11),
            "two processes are rank 1: rank 1 of stage 1 (a, incarnation 1) came before rank 1 of "
            "stage 1 (b, incarnation 2)");
  EXPECT_EQ(verdicts_.at(11).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(Verdict(10), "none") << "who was first goes on";
}

TEST_F(RendezvousTest, OtherSizesAreBothNamed) {
  Join(10, {.epoch = 7, .rank = 0, .size = 2});
  Join(11, {.epoch = 7, .rank = 3, .size = 4});
  EXPECT_EQ(Verdict(11),
            "rank 3 of stage 1 (m3, incarnation a3) counts 4 ranks, rank 0 of stage 1 (m0, "
            "incarnation a0) 2");
  for (const auto& [rank, size] : {std::pair(-1, 2), std::pair(2, 2), std::pair(0, 65)}) {
    Join(20, {.epoch = 9, .rank = rank, .size = size});
    EXPECT_EQ(verdicts_.at(20).code(), absl::StatusCode::kInvalidArgument);
    verdicts_.erase(20);
  }
  EXPECT_EQ(Verdict(10), "none") << "what is nonsense replaces nothing";
}

TEST_F(RendezvousTest, WhoeverDoesNotComeIsNamedInTime) {
  Join(10, {.epoch = 7, .rank = 0, .size = 3}, /*now_us=*/500);
  Join(11, {.epoch = 7, .rank = 1, .size = 3}, 900'000);
  EXPECT_EQ(rendezvous_.deadline_us(), 3'000'500);
  rendezvous_.Tick(3'000'499);
  Deliver();
  EXPECT_TRUE(verdicts_.empty());
  rendezvous_.Tick(3'000'500);
  Deliver();
  for (const uint64_t caller : {10, 11}) {
    EXPECT_EQ(Verdict(caller),
              "rank 2 did not join epoch 7 of stage 1 with 3 ranks within 3000 ms");
  }
  Join(12, {.epoch = 7, .rank = 2, .size = 3});
  EXPECT_EQ(Verdict(12), Verdict(10)) << "an epoch forms once";
}

TEST_F(RendezvousTest, WhoeverDoesNotConnectIsNamedInTime) {
  Join(10, {.epoch = 7, .rank = 0, .size = 2});
  Join(11, {.epoch = 7, .rank = 1, .size = 2});
  Connected(10);
  rendezvous_.Tick(3'000'000);
  Deliver();
  EXPECT_EQ(Verdict(10),
            "rank 1 of stage 1 (m1, incarnation a1) did not connect to epoch 7 of stage 1 with 2 "
            "ranks within 3000 ms");
  EXPECT_EQ(Verdict(11), Verdict(10));
}

TEST_F(RendezvousTest, EntriesAreBounded) {
  Join(10, {.epoch = 7, .rank = 0, .size = 2});
  for (size_t i = 0; i < kBootstrapEntriesMax; ++i) Set(10, absl::StrCat(i), "value");
  EXPECT_EQ(Verdict(10), "none");
  Set(10, "one", "more");
  EXPECT_EQ(verdicts_.at(10).code(), absl::StatusCode::kResourceExhausted);
  Join(11, {.epoch = 8, .rank = 0, .size = 2});
  Set(11, "key", std::string(kBootstrapValueBytesMax + 1, 'x'));
  EXPECT_EQ(verdicts_.at(11).code(), absl::StatusCode::kInvalidArgument);
}

// Any order of events: every rank gets one verdict, and an epoch's verdicts are all OK or none.
TEST_F(RendezvousTest, NoEpochIsHalfFormed) {
  for (uint64_t seed = 1; seed <= 500; ++seed) {
    Random random(seed);
    Rendezvous rendezvous("stage 1", 3000);
    std::map<uint64_t, std::vector<uint64_t>> callers_of;  // By epoch.
    std::map<uint64_t, absl::Status> verdicts;
    uint64_t next_caller = 1;
    int64_t now_us = 0;
    const auto deliver = [&] {
      for (const Rendezvous::Message& message : rendezvous.TakeMessages()) {
        EXPECT_EQ(verdicts.count(message.to), 0) << seed;
        if (message.verdict) verdicts[message.to] = *message.verdict;
      }
    };
    for (int event = 0; event < 60; ++event) {
      now_us += random.Between(0, 200'000);
      const uint64_t any = 1 + random.Below(next_caller);
      const uint64_t what = random.Below(10);
      if (what < 4) {
        const uint64_t epoch = 1 + random.Below(4);
        callers_of[epoch].push_back(next_caller);
        rendezvous.OnJoin(next_caller++,
                          {epoch, static_cast<int>(random.Below(2)), 2, "m", random.Next()},
                          now_us);
      } else if (what < 8) {
        rendezvous.OnConnected(any);
      } else if (what == 8) {
        rendezvous.OnEntry(any, {"key", "value"});
      } else if (random.Chance(0.3)) {
        rendezvous.End(absl::UnavailableError("a connection is gone"));
      }
      rendezvous.Tick(now_us);
      deliver();
    }
    rendezvous.Tick(now_us + 3'000'000);
    deliver();
    for (const auto& [epoch, callers] : callers_of) {
      int ok = 0;
      for (const uint64_t caller : callers) {
        ASSERT_EQ(verdicts.count(caller), 1) << "seed " << seed << ": nobody answers " << caller;
        ok += verdicts.at(caller).ok() ? 1 : 0;
      }
      EXPECT_TRUE(ok == 0 || ok == 2) << "seed " << seed << ": " << ok << " of epoch " << epoch;
    }
  }
}

TEST(BootstrapStoreTest, HandsWhatIsSetToTheOthersAndWaitsForTheirs) {
  std::vector<std::string> published;
  BootstrapStore store([&](const std::string& key, const std::string& value) {
    published.push_back(key + "=" + value);
  });
  EXPECT_TRUE(store.Set("0", "zero").ok());
  EXPECT_THAT(published, UnorderedElementsAre("0=zero"));
  EXPECT_EQ(store.Set("0", "again").code(), absl::StatusCode::kAlreadyExists);
  store.Put("1", "one");
  EXPECT_EQ(*store.Get("1", 0), "one");
  EXPECT_EQ(store.Get("2", 1).status().code(), absl::StatusCode::kDeadlineExceeded);
  store.End(absl::AbortedError("epoch 8"));
  EXPECT_EQ(store.Get("2", 60'000).status().message(), "epoch 8");
  EXPECT_EQ(store.Set("3", "").message(), "epoch 8");
}

}  // namespace
}  // namespace baton
