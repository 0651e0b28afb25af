// Every page of every rank of a decode service has the bytes that one process would have, whatever
// the numbers of ranks on both sides.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "tests/hand_off/hand_off_fixture.h"

namespace baton::hand_off {
namespace {

// Four decode ranks and two stages of four.
constexpr int kMostPlanes = 12;

Planes& SharedPlanes() {
  static Planes* const planes = new Planes(kMostPlanes);
  return *planes;
}

class HandOffTest : public testing::Test {
 protected:
  // Three prompts at a time: of many pages that are no neighbours, with a tail; of neighbours, to
  // the last token; and of one token.
  static std::vector<Prompt> Prompts(int page_size) {
    return {{5 * page_size + 3, {9, 3, 4, 12, 1, 7}, {2, 8, 3, 15, 4, 0}},
            {3 * page_size, {13, 14, 15}, {5, 6, 7}},
            {1, {0}, {11}}};
  }
  static void HandOver(const Shape& shape) {
    SCOPED_TRACE(absl::StrCat(shape.prefill_ranks, " to ", shape.decode_ranks, " ranks, ",
                              shape.kv_heads, " heads of ", ElementTypeName(shape.type),
                              shape.on_devices ? " on devices" : ""));
    HandOff hand_off(shape, SharedPlanes());
    const std::vector<Prompt> prompts = Prompts(shape.page_size);
    std::vector<Ticket> tickets;
    tickets.reserve(prompts.size());
    for (const Prompt& prompt : prompts) {
      tickets.push_back(hand_off.Begin(tickets.size() + 1, prompt));
    }
    for (const Ticket& ticket : tickets) ASSERT_EQ(hand_off.AwaitEnd(ticket), "");
    EXPECT_EQ(hand_off.Compare(prompts), "");
  }
};

TEST_F(HandOffTest, EveryByteIsWhereOneProcessWouldHaveIt) {
  for (const int prefill_ranks : {1, 2, 4}) {
    for (const int decode_ranks : {1, 2, 4}) {
      for (const int kv_heads : {2, 4}) {
        for (const ElementType type : kElementTypes) {
          HandOver({.prefill_ranks = prefill_ranks,
                    .decode_ranks = decode_ranks,
                    .kv_heads = kv_heads,
                    .type = type});
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

// One row of each token, which every rank of both sides has whole.
TEST_F(HandOffTest, EveryByteOfLatentRowsIsThere) {
  for (const int prefill_ranks : {1, 2, 4}) {
    for (const int decode_ranks : {1, 2, 4}) {
      for (const bool on_devices : {false, true}) {
        HandOver({.prefill_ranks = prefill_ranks,
                  .decode_ranks = decode_ranks,
                  .kv_heads = 1,
                  .type = ElementType::kBFloat16,
                  .head_dim = 9,
                  .planes = 1,
                  .on_devices = on_devices});
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(HandOffTest, ExecutorsOnDevicesHandOverTheSame) {
  for (const int prefill_ranks : {1, 4}) {
    for (const int decode_ranks : {1, 2, 4}) {
      HandOver({.prefill_ranks = prefill_ranks,
                .decode_ranks = decode_ranks,
                .kv_heads = 4,
                .on_devices = true});
      if (HasFatalFailure()) return;
    }
  }
}

// What a rank of decode has of a page is more than one message: 3 MiB of the first stage's and 4.5
// of the second's, so that a part ends within a head.
TEST_F(HandOffTest, LargePagesTravelInParts) {
  const Shape shape{.decode_ranks = 2, .head_dim = 128, .page_size = 1536, .page_count = 2};
  HandOff hand_off(shape, SharedPlanes());
  const Prompt prompt{2000, {1, 0}, {0, 1}};
  const Ticket ticket = hand_off.Begin(1, prompt);
  ASSERT_EQ(hand_off.AwaitEnd(ticket), "");
  EXPECT_EQ(hand_off.Compare({prompt}), "");
}

// A follower that cannot be reached ends the hand-off of every writer that writes to it, by its
// name, and no peer waits.
TEST_F(HandOffTest, ARankThatIsNotConnectedIsNamed) {
  HandOff hand_off({.prefill_ranks = 1, .decode_ranks = 2}, SharedPlanes());
  hand_off.Disconnect(1);
  hand_off.Begin(1, Prompts(8)[0]);
  const absl::Status failure = hand_off.AwaitFailure();
  EXPECT_TRUE(absl::IsUnavailable(failure)) << failure;
  EXPECT_EQ(LegOf(failure), "decode");
  EXPECT_EQ(InstanceOf(failure), "decode-0-1");
}

}  // namespace
}  // namespace baton::hand_off
