#include "services/router/core/membership.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "common/base/status.h"
#include "services/router/core/test_cluster.h"

namespace baton::router {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class MembershipTest : public ::testing::Test {
 protected:
  absl::Status Join(const WorkerInfo& worker) { return members_.Register(worker, now_us_, lost_); }

  void Beat(const WorkerInfo& worker, bool ready = true, const WorkerLoad& load = {}) {
    members_.Heartbeat(worker.instance, ready, load, now_us_, LinkedBy(members_, worker.instance));
  }

  void JoinAll(const std::vector<WorkerInfo>& workers) {
    for (const WorkerInfo& worker : workers) ASSERT_EQ(Join(worker), absl::OkStatus());
    for (const WorkerInfo& worker : workers) Beat(worker);
  }

  void BeatAll() {
    for (const Worker& worker : members_.Workers()) {
      Beat(worker.info);
    }
  }

  Membership members_{MembershipOptions{.lease_us = 1000}};
  std::vector<Worker> lost_;
  int64_t now_us_ = 100;
};

TEST_F(MembershipTest, PairsNeedEveryStageReadyAndLinked) {
  const auto s0 = TestStage("c0", 0, 2);
  auto s1 = TestStage("c0", 1, 2);
  s1.instance.incarnation = 2;
  const auto d0 = TestDecode("d0");
  EXPECT_THAT(members_.WhatIsMissing(), HasSubstr("no prefill chain is registered"));
  EXPECT_THAT(members_.WhatIsMissing(), HasSubstr("no decode service is registered"));
  ASSERT_EQ(Join(s0), absl::OkStatus());
  ASSERT_EQ(Join(d0), absl::OkStatus());
  Beat(s0);
  Beat(d0);
  EXPECT_THAT(members_.ReadyPairs(), IsEmpty());
  EXPECT_EQ(members_.WhatIsMissing(), "chain c0 lacks rank 1 of 2");

  ASSERT_EQ(Join(s1), absl::OkStatus());
  EXPECT_EQ(members_.WhatIsMissing(), "c0-1 is not ready");
  members_.Heartbeat(s1.instance, false, {}, now_us_, {}, "its KV cache is on fire");
  EXPECT_EQ(members_.WhatIsMissing(), "c0-1 is not ready: its KV cache is on fire");
  Beat(s1);
  // What stage 0 said last, it said of a chain without this stage 1.
  EXPECT_THAT(members_.ReadyPairs(), IsEmpty());
  EXPECT_EQ(members_.WhatIsMissing(), "chain c0 has not linked its processes yet");
  Beat(s0);
  ASSERT_THAT(members_.ReadyPairs(), SizeIs(1));
  const Pair pair = members_.ReadyPairs()[0];
  EXPECT_EQ(pair.chain.stage0, s0.instance);
  EXPECT_THAT(pair.chain.stages,
              ElementsAre(KvWriter{s0.instance, {0, 2}}, KvWriter{s1.instance, {2, 4}}));
  EXPECT_EQ(pair.decode, d0.instance);
  EXPECT_EQ(pair.chain.max_prompt_tokens, 1024);

  Beat(s1, /*ready=*/false);
  EXPECT_THAT(members_.ReadyPairs(), IsEmpty());
}

// Prompt and answer have to fit into the longest context that a decode takes, and into its pool.
TEST_F(MembershipTest, APairTakesNoLongerRequestThanContextAndPoolHold) {
  WorkerInfo short_context = TestDecode("d0");
  short_context.max_context_tokens = 1000;  // Its pool holds 1024.
  WorkerInfo small_pool = TestDecode("d1");
  small_pool.page_count = 32;  // 512 tokens of the context's 1024.
  WorkerInfo stage = TestStage("c0", 0, 1);
  stage.page_count = 16;
  JoinAll({stage, short_context, small_pool});
  BeatAll();
  ASSERT_THAT(members_.ReadyPairs(), SizeIs(2));
  EXPECT_EQ(members_.ReadyPairs()[0].max_context_tokens, 1000);
  EXPECT_EQ(members_.ReadyPairs()[0].decode_capacity_tokens, 1024);
  EXPECT_EQ(members_.ReadyPairs()[1].max_context_tokens, 512);
  EXPECT_EQ(members_.ReadyPairs()[1].chain.max_prompt_tokens, 256);
}

TEST_F(MembershipTest, ADecodeThatNamesAChainTakesNoPlaceInIt) {
  WorkerInfo decode = TestDecode("d0");
  decode.chain_id = "c0";
  JoinAll({TestStage("c0", 0, 2), TestStage("c0", 1, 2), decode});
  WorkerInfo again = TestStage("c0", 1, 2);
  EXPECT_TRUE(members_.Suspect(again.instance, now_us_));
  again.instance.incarnation = 2;
  EXPECT_EQ(Join(again), absl::OkStatus());
  EXPECT_THAT(members_.Workers(), SizeIs(3));
}

TEST_F(MembershipTest, WhoFailsIsLeftAloneLongerEachTimeUntilItServes) {
  const auto d0 = TestDecode("d0");
  JoinAll({TestStage("c0", 0, 1), d0});
  now_us_ = 0;
  const auto fails_for = [&]() -> int64_t {
    members_.FailedToServe(d0.instance, now_us_);
    const int64_t began_us = now_us_;
    while (now_us_ < began_us + 100'000'000) {
      BeatAll();
      if (members_.ReadyPairs().size() == 1) return now_us_ - began_us;
      now_us_ = std::max(now_us_ + 1, members_.NextDeadlineUs());
      BeatAll();
      members_.Expire(now_us_);
    }
    return -1;
  };
  EXPECT_EQ(fails_for(), 100'000) << "though its heartbeats come";
  EXPECT_EQ(fails_for(), 200'000);
  EXPECT_EQ(fails_for(), 400'000);
  members_.Served(d0.instance);
  EXPECT_EQ(fails_for(), 100'000);
  for (int i = 0; i < 10; ++i) fails_for();
  EXPECT_EQ(fails_for(), 5'000'000) << "and no longer";
  // Requests that had begun before count once, and one that is served ends it.
  members_.Served(d0.instance);
  for (int i = 0; i < 5; ++i) members_.FailedToServe(d0.instance, now_us_);
  BeatAll();
  EXPECT_THAT(members_.WhatIsMissing(), HasSubstr("d0 has failed 1 times in a row"));
  members_.Served(d0.instance);
  EXPECT_THAT(members_.ReadyPairs(), SizeIs(1));
  EXPECT_FALSE(members_.FailedToServe({"d0", 7}, now_us_));
}

// The router pairs freely; whether two can connect shows when they try.
TEST_F(MembershipTest, WhoNeverHeardOfOneAnotherIsAPair) {
  const auto d0 = TestDecode("d0");
  JoinAll({TestStage("c0", 0, 1), d0});
  ASSERT_EQ(Join(TestStage("c1", 0, 1)), absl::OkStatus());
  members_.Heartbeat({"c1-0", 1}, true, {}, now_us_);
  EXPECT_THAT(members_.ReadyPairs(), SizeIs(2));
}

TEST_F(MembershipTest, DrainingWorkersTakeNothingNew) {
  JoinAll({TestStage("c0", 0, 1), TestDecode("d0"), TestDecode("d1")});
  ASSERT_THAT(members_.ReadyPairs(), SizeIs(2));
  const absl::StatusOr<InstanceRef> draining = members_.Drain("d0");
  ASSERT_TRUE(draining.ok());
  EXPECT_EQ(*draining, (InstanceRef{"d0", 1}));
  ASSERT_THAT(members_.ReadyPairs(), SizeIs(1));
  EXPECT_EQ(members_.ReadyPairs()[0].decode.id, "d1");
  EXPECT_EQ(members_.Drain("nobody").status().code(), absl::StatusCode::kNotFound);
  members_.SaysDraining({"nobody", 1});
  members_.SaysDraining({"d1", 7});
  EXPECT_THAT(members_.ReadyPairs(), SizeIs(1)) << "another life of it does";
}

TEST_F(MembershipTest, SilentWorkersExpireAndHeartbeatsRenew) {
  const auto s0 = TestStage("c0", 0, 1);
  const auto d0 = TestDecode("d0");
  JoinAll({s0, d0});
  EXPECT_EQ(members_.NextDeadlineUs(), 1100);
  now_us_ = 900;
  Beat(d0);
  const uint64_t version = members_.version();
  const std::vector<Worker> expired = members_.Expire(1100);
  ASSERT_THAT(expired, SizeIs(1));
  EXPECT_EQ(expired[0].info.instance, s0.instance);
  EXPECT_GT(members_.version(), version);
  EXPECT_EQ(members_.NextDeadlineUs(), 1900);
  EXPECT_THAT(members_.Expire(1899), IsEmpty());
  EXPECT_THAT(members_.Expire(1900), SizeIs(1));
  EXPECT_EQ(members_.NextDeadlineUs(), kNeverUs);
}

TEST_F(MembershipTest, ANewIncarnationReplacesOneThatSeemsDead) {
  auto d0 = TestDecode("d0");
  JoinAll({TestStage("c0", 0, 1), d0});
  EXPECT_TRUE(members_.Suspect(d0.instance, now_us_));
  const uint64_t version = members_.version();
  d0.instance.incarnation = 2;
  ASSERT_EQ(Join(d0), absl::OkStatus());
  ASSERT_THAT(lost_, SizeIs(1));
  EXPECT_EQ(lost_[0].info.instance.incarnation, 1);
  EXPECT_GT(members_.version(), version);
  EXPECT_THAT(members_.ReadyPairs(), IsEmpty());  // It is not ready yet.
  const InstanceRef old{"d0", 1};
  EXPECT_EQ(members_.Find(old), nullptr);
  EXPECT_FALSE(members_.Remove(old, now_us_, lost_));
  EXPECT_TRUE(members_.Remove(d0.instance, now_us_, lost_));
}

TEST_F(MembershipTest, ARepeatedRegistrationChangesOnlyItsLease) {
  const auto d0 = TestDecode("d0");
  JoinAll({TestStage("c0", 0, 1), d0});
  const uint64_t version = members_.version();
  const int64_t lease_until_us = members_.Find(d0.instance)->lease_until_us;
  now_us_ += 5;
  ASSERT_EQ(Join(d0), absl::OkStatus());
  EXPECT_EQ(members_.Find(d0.instance)->lease_until_us, lease_until_us + 5);
  EXPECT_THAT(lost_, IsEmpty());
  EXPECT_EQ(members_.version(), version);
  EXPECT_THAT(members_.ReadyPairs(), SizeIs(1));
}

// A second `up`, or a pod that was replaced by force and still runs. Who is here stays.
TEST_F(MembershipTest, ATwinOfOneThatLivesWaits) {
  const WorkerInfo elder = TestDecode("d0");
  JoinAll({TestStage("c0", 0, 1), elder});
  ASSERT_THAT(members_.ReadyPairs(), SizeIs(1));
  const uint64_t version = members_.version();
  WorkerInfo twin = elder;
  twin.instance.incarnation = 2;
  for (int asks = 0; asks < 5; ++asks) {
    now_us_ += 500;
    const absl::Status refusal = Join(twin);
    EXPECT_TRUE(absl::IsFailedPrecondition(refusal)) << refusal;
    EXPECT_THAT(std::string(refusal.message()), HasSubstr("another process of the name d0 lives"));
    BeatAll();
  }
  EXPECT_THAT(lost_, IsEmpty());
  EXPECT_EQ(members_.version(), version) << "no peer hears of it";
  EXPECT_THAT(members_.ReadyPairs(), SizeIs(1));
  EXPECT_TRUE(members_.applicants().contains("d0")) << "an operator sees that it waits";
  // Others that come do not bring it along.
  ASSERT_EQ(Join(TestDecode("d1")), absl::OkStatus());
  EXPECT_EQ(members_.Find(twin.instance), nullptr);

  // Once the elder is silent for its lease, the twin is a successor.
  now_us_ += 1000;
  EXPECT_FALSE(members_.Expire(now_us_).empty());
  EXPECT_EQ(Join(twin), absl::OkStatus());
  // And who was stopped for so long waits in its turn.
  EXPECT_TRUE(absl::IsFailedPrecondition(Join(elder)));
}

TEST_F(MembershipTest, TheSuccessorOfOneThatDrainsWaitsUntilItHasLeft) {
  WorkerInfo d0 = TestDecode("d0");
  JoinAll({TestStage("c0", 0, 1), d0});
  members_.SaysDraining(d0.instance);
  const InstanceRef elder = d0.instance;
  d0.instance.incarnation = 2;
  EXPECT_TRUE(absl::IsFailedPrecondition(Join(d0)));
  ASSERT_TRUE(members_.Remove(elder, now_us_, lost_));
  EXPECT_EQ(Join(d0), absl::OkStatus());
}

TEST_F(MembershipTest, TheNumberOfWorkersIsBounded) {
  Membership small({.lease_us = 1000, .max_workers = 1});
  ASSERT_EQ(small.Register(TestDecode("d0"), 0, lost_), absl::OkStatus());
  EXPECT_EQ(small.Register(TestDecode("d1"), 0, lost_).code(),
            absl::StatusCode::kResourceExhausted);
  auto again = TestDecode("d0");
  EXPECT_TRUE(small.Suspect(again.instance, 0));
  again.instance.incarnation = 2;
  EXPECT_EQ(small.Register(again, 0, lost_), absl::OkStatus());
}

struct Change {
  std::string name;
  std::function<void(WorkerInfo&)> apply;
  std::vector<std::string> message;
};

TEST_F(MembershipTest, WhatDoesNotFitIsRefusedWithBothValues) {
  JoinAll({TestStage("c0", 0, 2), TestDecode("d0")});
  const std::vector<Change> changes = {
      {"config",
       [](auto& w) { w.fingerprint.config_hash = 0xbad; },
       {"model config", "0bad", "00c0"}},
      {"dtype",
       [](auto& w) { w.fingerprint.dtype = "bfloat16"; },
       {"dtype", "bfloat16", "float32"}},
      {"page size",
       [](auto& w) { w.fingerprint.kv_layout.page_size = 64; },
       {"page size", "c0-1 has 64", "has 16"}},
      {"layers",
       [](auto& w) {
         w.fingerprint.kv_layout.layers = 5;
         w.layers = {2, 5};
       },
       {"layer count", "c0-1 has 5", "has 4"}},
      {"embedding",
       [](auto& w) { w.fingerprint.embedding_hash = 0x66; },
       {"embedding", "66", "e0"}},
      {"heads", [](auto& w) { w.fingerprint.kv_layout.kv_heads = 4; }, {"KV heads", "4", "2"}},
      {"planes", [](auto& w) { w.fingerprint.kv_layout.planes = 1; }, {"KV planes", "1", "2"}},
      {"dim", [](auto& w) { w.fingerprint.kv_layout.head_dim = 9; }, {"head dimension", "9", "8"}},
      {"bytes",
       [](auto& w) { w.fingerprint.kv_layout.bytes_per_element = 2; },
       {"bytes per element", "c0-1 has bfloat16 (2)", "has float32 (4)"}},
      {"weights",
       [](auto& w) { w.fingerprint.layer_hashes[3] = 0xabc; },
       {"weights of layer 3", "0abc", "0103", "c0-1", "d0"}},
      {"head", [](auto& w) { w.fingerprint.head_hash = 0x77; }, {"output head", "77", "e1"}},
      {"pp_size",
       [](auto& w) {
         w.pp_size = 3;
         w.layers = {2, 3};
       },
       {"pp_size of chain c0", "3", "2"}},
      {"gap",
       [](auto& w) {
         w.layers = {3, 4};
       },
       {"leave a gap", "[3, 4)", "[0, 2)"}},
      {"overlap",
       [](auto& w) {
         w.layers = {1, 4};
       },
       {"overlap", "[1, 4)", "[0, 2)"}},
      {"rank",
       [](auto& w) {
         w.pp_rank = 0;
         w.layers = {0, 2};
       },
       {"rank 0 of chain c0 is taken: c0-1 wants it, c0-0 has it and is alive"}},
  };
  for (const Change& change : changes) {
    SCOPED_TRACE(change.name);
    WorkerInfo worker = TestStage("c0", 1, 2);
    change.apply(worker);
    const absl::Status status = Join(worker);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    for (const std::string& part : change.message) {
      EXPECT_THAT(std::string(status.message()), HasSubstr(part));
    }
  }
  EXPECT_EQ(Join(TestStage("c0", 1, 2)), absl::OkStatus());
  EXPECT_THAT(members_.applicants(), IsEmpty());
}

TEST_F(MembershipTest, MalformedWorkersAreRefusedByField) {
  const std::vector<std::pair<std::string, std::function<void(WorkerInfo&)>>> changes = {
      {"instance.instance_id", [](auto& w) { w.instance.id.clear(); }},
      {"instance.incarnation", [](auto& w) { w.instance.incarnation = 0; }},
      {"chain_id", [](auto& w) { w.chain_id.clear(); }},
      {"pp_size", [](auto& w) { w.pp_size = 0; }},
      {"pp_size", [](auto& w) { w.pp_size = 1'000'000; }},
      {"pp_rank", [](auto& w) { w.pp_rank = 2; }},
      {"pp_rank", [](auto& w) { w.pp_rank = -1; }},
      {"layers",
       [](auto& w) {
         w.layers = {2, 2};
       }},
      {"layers",
       [](auto& w) {
         w.layers = {-1, 4};
       }},
      {"layers",
       [](auto& w) {
         w.layers = {2, 5};
       }},
      {"layers",
       [](auto& w) {
         w.layers = {2, 3};
       }},  // The last stage must end the model.
      {"fingerprint.kv_layout.layers", [](auto& w) { w.fingerprint.kv_layout.layers = 0; }},
      {"fingerprint.kv_layout", [](auto& w) { w.fingerprint.kv_layout.page_size = 0; }},
      {"fingerprint.kv_layout", [](auto& w) { w.fingerprint.kv_layout.kv_heads = 0; }},
      {"fingerprint.kv_layout", [](auto& w) { w.fingerprint.kv_layout.head_dim = 0; }},
      {"fingerprint.kv_layout", [](auto& w) { w.fingerprint.kv_layout.bytes_per_element = 0; }},
      {"page_count", [](auto& w) { w.page_count = 0; }},
      {"max_running_requests", [](auto& w) { w.max_running_requests = -1; }},
      {"max_context_tokens", [](auto& w) { w.max_context_tokens = 0; }},
  };
  for (const auto& [field, apply] : changes) {
    SCOPED_TRACE(field);
    WorkerInfo worker = TestStage("c0", 1, 2);
    apply(worker);
    const absl::Status status = Join(worker);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_EQ(FieldOf(status), field);
  }
  WorkerInfo half = TestDecode("d0");
  half.layers = {0, 2};
  EXPECT_EQ(FieldOf(Join(half)), "layers");
}

}  // namespace
}  // namespace baton::router
