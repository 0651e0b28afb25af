#include "common/transport/gate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace baton {
namespace {

const GreetingSender kGreetingSender{1, 2, 3, 4};
const std::vector<std::byte> kAddress(100, std::byte{7});

TEST(GateTest, AdmitsWhoHasTheSecretOnce) {
  Gate gate("secret");
  EXPECT_FALSE(gate.Knows(5));
  EXPECT_TRUE(
      gate.Admit(5, kGreetingSender, kAddress, ProofOf("secret", 5, kGreetingSender, kAddress)));
  EXPECT_TRUE(gate.Knows(5));
  EXPECT_FALSE(
      gate.Admit(5, kGreetingSender, kAddress, ProofOf("secret", 5, kGreetingSender, kAddress)))
      << "a greeting that is played again";
}

TEST(GateTest, AProofIsOfAllThatIsSaid) {
  Gate gate("secret");
  const Proof proof = ProofOf("secret", 5, kGreetingSender, kAddress);
  EXPECT_FALSE(
      gate.Admit(5, kGreetingSender, kAddress, ProofOf("Secret", 5, kGreetingSender, kAddress)));
  EXPECT_FALSE(gate.Admit(6, kGreetingSender, kAddress, proof));
  EXPECT_FALSE(gate.Admit(5, {1, 2, 3, 5}, kAddress, proof));
  EXPECT_FALSE(gate.Admit(5, kGreetingSender, std::span(kAddress).first(99), proof));
  EXPECT_FALSE(gate.Admit(5, kGreetingSender, kAddress, Proof{}));
  EXPECT_FALSE(gate.Knows(5));
}

TEST(GateTest, APassComesOffAsItWasPutOn) {
  const std::vector<std::byte> message = {std::byte{1}, std::byte{2}};
  const std::vector<std::byte> whole = WithPass(9, message);
  std::span<const std::byte> rest = whole;
  EXPECT_EQ(TakePass(rest), 9u);
  EXPECT_TRUE(std::equal(rest.begin(), rest.end(), message.begin(), message.end()));
  rest = std::span(whole).first(sizeof(Pass) - 1);
  EXPECT_FALSE(TakePass(rest).has_value());
  rest = message;
  EXPECT_FALSE(TakePass(rest).has_value());
}

TEST(GateTest, RemembersABoundedNumberOfSessions) {
  Gate gate("secret");
  for (uint64_t session = 1; session <= Gate::kMaxSessions + 1; ++session) gate.Begin(session);
  EXPECT_FALSE(gate.Knows(1));
  EXPECT_TRUE(gate.Knows(2));
  EXPECT_TRUE(gate.Knows(Gate::kMaxSessions + 1));
}

}  // namespace
}  // namespace baton
