#include "common/rpc/peer_identity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baton::rpc {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(PeerIdentityTest, ReadsWhatItWrites) {
  for (const PeerIdentity& identity :
       {PeerIdentity{PeerRole::kRouter, ""}, PeerIdentity{PeerRole::kPrefill, "prefill-0-1"},
        PeerIdentity{PeerRole::kDecode, "a/b"}, PeerIdentity{PeerRole::kOperator, ""}}) {
    EXPECT_EQ(ParseIdentity(IdentityUri(identity)), identity) << IdentityUri(identity);
  }
  EXPECT_EQ(IdentityUri({PeerRole::kDecode, "decode-0"}), "baton://decode/decode-0");
}

TEST(PeerIdentityTest, WhatIsNoneNamesNobody) {
  for (const char* uri : {"", "baton://", "baton:///decode", "baton://decoder", "baton://decode/",
                          "Baton://decode", "https://decode", "spiffe://baton/decode"}) {
    EXPECT_FALSE(ParseIdentity(uri).has_value()) << uri;
  }
  EXPECT_THAT(ParseIdentities({"https://x", "baton://decode", "baton://none"}),
              ElementsAre(PeerIdentity{PeerRole::kDecode, ""}));
}

TEST(PeerIdentityTest, CoversTheRoleAndTheNamedInstance) {
  const std::vector<PeerIdentity> any_decode = {{PeerRole::kDecode, ""}};
  const std::vector<PeerIdentity> one_decode = {{PeerRole::kDecode, "d0"}};
  EXPECT_TRUE(Covers(any_decode, {PeerRole::kDecode, "d1"}));
  EXPECT_TRUE(Covers(one_decode, {PeerRole::kDecode, "d0"}));
  EXPECT_TRUE(Covers(one_decode, {PeerRole::kDecode, ""}));
  EXPECT_FALSE(Covers(one_decode, {PeerRole::kDecode, "d1"}));
  EXPECT_FALSE(Covers(any_decode, {PeerRole::kPrefill, "d0"}));
  EXPECT_FALSE(Covers({}, {PeerRole::kDecode, ""}));
}

TEST(PeerIdentityTest, EveryMethodHasItsCallers) {
  EXPECT_THAT(*CallersOf("/baton.v1.Cluster/Lease"),
              ElementsAre(PeerRole::kPrefill, PeerRole::kDecode));
  EXPECT_THAT(*CallersOf("/baton.v1.Cluster/Find"),
              ElementsAre(PeerRole::kPrefill, PeerRole::kDecode));
  EXPECT_THAT(*CallersOf("/baton.v1.Cluster/Drain"), ElementsAre(PeerRole::kOperator));
  EXPECT_THAT(*CallersOf("/baton.v1.Prefill/Start"), ElementsAre(PeerRole::kRouter));
  EXPECT_THAT(*CallersOf("/baton.v1.Prefill/Link"), ElementsAre(PeerRole::kPrefill));
  EXPECT_THAT(*CallersOf("/baton.v1.Decode/Reserve"), ElementsAre(PeerRole::kRouter));
  EXPECT_THAT(*CallersOf("/baton.v1.Relays/Relay"), ElementsAre(PeerRole::kRouter));
  EXPECT_THAT(*CallersOf("/baton.v1.DecodeRanks/Link"), ElementsAre(PeerRole::kDecode));
  EXPECT_THAT(*CallersOf("/baton.v1.Worker/Announce"), ElementsAre(PeerRole::kRouter));
  EXPECT_THAT(*CallersOf("/baton.v1.Cluster/New"), IsEmpty());
  EXPECT_THAT(*CallersOf("/baton.v2.Decode/Reserve"), IsEmpty());
  EXPECT_FALSE(CallersOf("/grpc.health.v1.Health/Check").has_value());
}

}  // namespace
}  // namespace baton::rpc
