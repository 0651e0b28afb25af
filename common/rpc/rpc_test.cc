#include <gtest/gtest.h>

#include "common/base/status.h"
#include "common/rpc/convert.h"
#include "common/rpc/grpc_status.h"

namespace baton::rpc {
namespace {

TEST(GrpcStatusTest, FieldLegAndInstanceSurviveTheHop) {
  const absl::Status sent = WithLeg(InvalidField("top_p", "1.5 is above 1"), "decode", "decode-0");
  const absl::Status got = FromGrpc(ToGrpc(sent));
  EXPECT_EQ(got.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(got.message(), "top_p: 1.5 is above 1");
  EXPECT_EQ(FieldOf(got), "top_p");
  EXPECT_EQ(LegOf(got), "decode");
  EXPECT_EQ(InstanceOf(got), "decode-0");
  EXPECT_TRUE(FromGrpc(ToGrpc(absl::OkStatus())).ok());
}

TEST(GrpcStatusTest, WhatIsUnconnectedIsSaidToBe) {
  const absl::Status sent = WithLeg(Unconnected(absl::UnavailableError("no way")), "decode", "d0");
  const absl::Status got = FromGrpc(ToGrpc(sent));
  EXPECT_TRUE(absl::IsUnavailable(got) && IsUnconnected(got)) << got;
  EXPECT_EQ(InstanceOf(got), "d0");
  EXPECT_FALSE(IsUnconnected(FromGrpc(ToGrpc(absl::UnavailableError("another reason")))));
}

TEST(GrpcStatusTest, GarbageInTheDetailsIsIgnored) {
  const grpc::Status garbage(grpc::StatusCode::UNAVAILABLE, "gone", "\xff\x01garbage");
  EXPECT_EQ(FromGrpc(garbage), absl::UnavailableError("gone"));
}

TEST(GrpcStatusTest, LongMessagesAreCutBetweenCharacters) {
  std::string text = "x";
  while (text.size() < 4 * kMaxStatusMessageBytes) text += "\u00e4";
  const grpc::Status status = ToGrpc(absl::InternalError(text));
  EXPECT_LE(status.error_message().size(), kMaxStatusMessageBytes + 3);
  const std::string kept = status.error_message().substr(0, status.error_message().size() - 3);
  EXPECT_EQ(kept.size() % 2, 1u) << "half a character was kept";
}

TEST(ConvertTest, RoundTrips) {
  const KvWriter writer{{"prefill-0", 7}, {0, 3}};
  EXPECT_EQ(*FromProto(ToProto(writer), "writer"), writer);
  const Ticket ticket{{"decode-0", 9}, 3, 77, 130, 3};
  EXPECT_EQ(*FromProto(ToProto(ticket), "ticket"), ticket);
  Ticket of_ranks = ticket;
  of_ranks.followers = {{"decode-2", 4}, {"decode-1", 9}};
  of_ranks.first_page = 2;
  EXPECT_EQ(*FromProto(ToProto(of_ranks), "ticket"), of_ranks);
  EXPECT_EQ(of_ranks.ranks(), 3);
  EXPECT_EQ(of_ranks.place(0), of_ranks.decode);
  EXPECT_EQ(of_ranks.place(2), (InstanceRef{"decode-1", 9}));
  const KvLayout layout{6, 4, 64, 16, 4};
  EXPECT_EQ(*FromProto(ToProto(layout), "layout"), layout);
}

TEST(ConvertTest, RefusesAndNamesTheField) {
  const auto field_of = [](const auto& result) { return FieldOf(result.status()).value_or("ok"); };
  v1::KvWriter writer = ToProto(KvWriter{{"p", 1}, {0, 3}});
  writer.mutable_layers()->set_end(0);
  EXPECT_EQ(field_of(FromProto(writer, "writers[2]")), "writers[2].layers");
  writer.mutable_layers()->set_end(kMaxLayers + 1);
  EXPECT_EQ(field_of(FromProto(writer, "w")), "w.layers");
  v1::InstanceRef instance = ToProto(InstanceRef{"p", 1});
  instance.set_instance_id("a b");
  EXPECT_EQ(field_of(FromProto(instance, "i")), "i.instance_id");
  instance.set_instance_id(std::string(129, 'a'));
  EXPECT_EQ(field_of(FromProto(instance, "i")), "i.instance_id");
  instance = ToProto(InstanceRef{"p", 0});
  EXPECT_EQ(field_of(FromProto(instance, "i")), "i.incarnation");
  EXPECT_EQ(field_of(FromProto(ToProto(Ticket{{"d", 1}, 0, 0, 1, 1}), "t")), "t.generation");
  EXPECT_EQ(field_of(FromProto(ToProto(Ticket{{"d", 1}, 0, 1, 1, 2}), "t")), "t.prompt_pages");
  EXPECT_EQ(field_of(FromProto(ToProto(Ticket{{"d", 1}, 0, 1, 0, 0}), "t")), "t.prompt_tokens");
  EXPECT_EQ(field_of(FromProto(ToProto(Ticket{{"d", 1}, 0, 1, 9, 2, {}, 2}), "t")), "t.first_page");
  EXPECT_EQ(field_of(FromProto(ToProto(Ticket{{"d", 1}, 0, 1, 9, 2, {}, -1}), "t")),
            "t.first_page");
  Ticket ranks{{"d", 1}, 0, 1, 1, 1};
  for (int i = 1; i < kMaxTensorRanks; ++i) ranks.followers.push_back({absl::StrCat("d", i), 1});
  EXPECT_EQ(field_of(FromProto(ToProto(ranks), "t")), "ok");
  ranks.followers.push_back({"one-too-many", 1});
  EXPECT_EQ(field_of(FromProto(ToProto(ranks), "t")), "t.followers");
  ranks.followers = {{"e", 1}, {"", 1}};
  EXPECT_EQ(field_of(FromProto(ToProto(ranks), "t")), "t.followers[1].instance_id");
  ranks.followers = {{"e", 0}};
  EXPECT_EQ(field_of(FromProto(ToProto(ranks), "t")), "t.followers[0].incarnation");
  ranks.followers = {{"e", 1}, {"f", 1}, {"e", 2}};
  EXPECT_EQ(field_of(FromProto(ToProto(ranks), "t")), "t.followers[2]");
  ranks.followers = {{"d", 2}};
  EXPECT_EQ(field_of(FromProto(ToProto(ranks), "t")), "t.followers[0]");
  Ticket stages{{"d", 1}, 0, 1, 1, 1, {{"e", 1}}};
  stages.stages = {{0, 2}, {2, 6}};
  EXPECT_EQ(field_of(FromProto(ToProto(stages), "t")), "ok");
  EXPECT_EQ(FromProto(ToProto(stages), "t")->stages, stages.stages);
  stages.stages = {{0, 2}, {3, 6}};
  EXPECT_EQ(field_of(FromProto(ToProto(stages), "t")), "t.stages");
  stages.stages = {{0, 2}, {2, 4}, {4, 6}};
  EXPECT_EQ(field_of(FromProto(ToProto(stages), "t")), "t.followers") << "two for three stages";
  const KvLayout huge{1 << 30, 1 << 30, 1 << 30, 1 << 30, 4};
  EXPECT_EQ(field_of(FromProto(ToProto(huge), "l")), "l");
  EXPECT_EQ(field_of(FromProto(ToProto(KvLayout{1, 0, 1, 1, 4}), "l")), "l.kv_heads");
  EXPECT_EQ(field_of(FromProto(ToProto(KvLayout{1, 1, 1, 1, 4, 3}), "l")), "l.planes");
  EXPECT_EQ(field_of(FromProto(ToProto(KvLayout{1, 1, 1, 1, 4, -1}), "l")), "l.planes");
  for (const int planes : {1, 2}) {
    const KvLayout layout{2, 1, 48, 16, 2, planes};
    EXPECT_EQ(*FromProto(ToProto(layout), "l"), layout);
  }
  EXPECT_EQ(ToProto(KvLayout{1, 1, 1, 1, 4}).planes(), 0) << "absent: keys and values";
}

}  // namespace
}  // namespace baton::rpc
