#include "services/router/worker_convert.h"

#include <gtest/gtest.h>

#include <functional>

#include "common/base/status.h"
#include "services/router/core/test_cluster.h"

namespace baton::router {
namespace {

TEST(WorkerConvertTest, WorkersSurviveTheRoundTrip) {
  for (WorkerInfo worker : {TestStage("c0", 1, 2), TestColocated("c0", 1, 2), TestDecode("d0")}) {
    worker.grpc_address = "127.0.0.1:4000";
    const auto back = WorkerFromProto(ToProto(worker));
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(*back, worker);
  }
}

TEST(WorkerConvertTest, RanksAreSaidWhereThereAreMore) {
  WorkerInfo worker = TestStage("c0", 1, 2);
  worker.grpc_address = "127.0.0.1:4000";
  worker.tensor_rank = {2, 4};
  worker.agreed = {.row_parallel_chunks = 0, .row_parallel_threshold = 64, .sends_slices = true};
  const auto back = WorkerFromProto(ToProto(worker));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, worker);
  worker.tensor_rank = {};
  worker.agreed = {};
  EXPECT_FALSE(ToProto(worker).has_tensor_rank());  // As a version without ranks would say it.
}

TEST(WorkerConvertTest, ARankSaysOfWhichDecodeServiceItIs) {
  WorkerInfo worker = TestDecode("d0");
  worker.grpc_address = "127.0.0.1:4000";
  worker.tensor_rank = {1, 2};
  worker.decode_id = "3";
  const v1::WorkerInfo proto = ToProto(worker);
  EXPECT_EQ(proto.decode_id(), "3");
  const auto back = WorkerFromProto(proto);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, worker);
  for (const std::string& id : {std::string(), std::string("a b"), std::string(129, 'x')}) {
    v1::WorkerInfo wrong = proto;
    wrong.set_decode_id(id);
    EXPECT_EQ(FieldOf(WorkerFromProto(wrong).status()), "worker.decode_id") << id;
    wrong.clear_tensor_rank();  // decode_id is ignored for a single process.
    const auto alone = WorkerFromProto(wrong);
    ASSERT_TRUE(alone.ok()) << alone.status();
    EXPECT_EQ(alone->decode_id, "");
  }
}

TEST(WorkerConvertTest, AStageSaysOfWhichDecodeServiceItIs) {
  WorkerInfo worker = TestDecodeStage(1, "3");
  worker.grpc_address = "127.0.0.1:4000";
  v1::WorkerInfo proto = ToProto(worker);
  const auto back = WorkerFromProto(proto);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, worker);
  proto.clear_decode_id();
  EXPECT_EQ(FieldOf(WorkerFromProto(proto).status()), "worker.decode_id");
}

TEST(WorkerConvertTest, WhatRanksAgreeOnIsWithinTheOptionsRanges) {
  struct Row {
    int chunks;
    int threshold;
    std::string field;  // Empty: it is taken.
  };
  const Row rows[] = {{0, 0, ""},
                      {64, 16'777'216, ""},
                      {-1, 0, "worker.row_parallel_chunks"},
                      {65, 0, "worker.row_parallel_chunks"},
                      {0, -1, "worker.row_parallel_threshold"},
                      {0, 16'777'217, "worker.row_parallel_threshold"}};
  for (const Row& row : rows) {
    WorkerInfo worker = TestStage("c0", 1, 2);
    worker.grpc_address = "host:1";
    worker.tensor_rank = {0, 2};
    worker.agreed = {row.chunks, row.threshold, /*sends_slices=*/true};
    const absl::Status status = WorkerFromProto(ToProto(worker)).status();
    EXPECT_EQ(FieldOf(status).value_or(""), row.field) << row.chunks << " " << row.threshold;
  }
}

TEST(WorkerConvertTest, AddressesAreSocketsAndNothingElse) {
  for (const std::string address : {"127.0.0.1:1", "worker-0.svc.local:65535", "[::1]:80"}) {
    WorkerInfo worker = TestDecode("d0");
    worker.grpc_address = address;
    EXPECT_TRUE(WorkerFromProto(ToProto(worker)).ok()) << address;
  }
  for (const std::string address :
       {"", "host", ":80", "host:", "host:0", "host:65536", "host:x", "unix:/tmp/s", "a/b:80",
        "::1:80", "dns:///host:80", "a b:80"}) {
    WorkerInfo worker = TestDecode("d0");
    worker.grpc_address = address;
    EXPECT_EQ(FieldOf(WorkerFromProto(ToProto(worker)).status()), "worker.grpc_address") << address;
  }
}

TEST(WorkerConvertTest, MalformedMessagesAreRefusedByField) {
  const std::vector<std::pair<std::string, std::function<void(v1::WorkerInfo&)>>> rows = {
      {"worker.role", [](auto& w) { w.set_role(v1::ROLE_UNSPECIFIED); }},
      {"worker.role", [](auto& w) { w.set_role(static_cast<v1::Role>(9)); }},
      {"worker.data_address", [](auto& w) { w.set_data_address(std::string(70'000, 'x')); }},
      {"worker.chain_id", [](auto& w) { w.set_chain_id("a/b"); }},
      {"worker.chain_id", [](auto& w) { w.clear_chain_id(); }},
      {"worker.tensor_rank", [](auto& w) { w.mutable_tensor_rank()->set_size(0); }},
      {"worker.tensor_rank", [](auto& w) { w.mutable_tensor_rank()->set_size(65); }},
      {"worker.tensor_rank",
       [](auto& w) {
         w.mutable_tensor_rank()->set_size(2);
         w.mutable_tensor_rank()->set_rank(2);
       }},
      {"worker.fingerprint.dtype", [](auto& w) { w.mutable_fingerprint()->set_dtype("float 32"); }},
      {"worker.fingerprint.layer_hashes",
       [](auto& w) { w.mutable_fingerprint()->clear_layer_hashes(); }},
      {"worker.fingerprint.layer_hashes",
       [](auto& w) {
         auto& hashes = *w.mutable_fingerprint()->mutable_layer_hashes();
         hashes.erase(2);
         hashes[9] = 1;
       }},
  };
  for (const auto& [field, change] : rows) {
    WorkerInfo worker = TestStage("c0", 1, 2);
    worker.grpc_address = "host:1";
    v1::WorkerInfo proto = ToProto(worker);
    change(proto);
    const absl::Status status = WorkerFromProto(proto).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << field;
    EXPECT_EQ(FieldOf(status), field);
  }
  v1::WorkerLoad load;
  load.set_queued_tokens(-1);
  EXPECT_EQ(FieldOf(LoadFromProto(load).status()), "load");
}

}  // namespace
}  // namespace baton::router
