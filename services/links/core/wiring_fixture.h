// What the tests of Wiring share: stage 0 of a chain of three.
#ifndef SERVICES_LINKS_CORE_WIRING_FIXTURE_H_
#define SERVICES_LINKS_CORE_WIRING_FIXTURE_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "services/links/core/wiring.h"

namespace baton::links {

inline constexpr int64_t kSecondUs = 1'000'000;
inline constexpr uint64_t kWallClockUs = 1'700'000'000'000'000;

inline worker::PeerWorker StageWorker(int rank, uint64_t incarnation = 1) {
  worker::PeerWorker worker;
  worker.instance = {"prefill-" + std::to_string(rank), incarnation};
  worker.role = Role::kPrefill;
  worker.layers = {2 * rank, 2 * rank + 2};
  worker.chain_id = "chain-0";
  worker.pp_rank = rank;
  worker.pp_size = 3;
  return worker;
}

class WiringTest : public testing::Test {
 protected:
  explicit WiringTest(
      const WiringOptions& options = {{"chain-0", 0, 3, 6, {{"prefill-0", 1}, {0, 2}}}, 8, 64, 2})
      : wiring_(options) {}

  void Handle(const WiringEvent& event) {
    actions_.clear();
    wiring_.Handle(event, now_us_, actions_);
    ASSERT_EQ(wiring_.CheckInvariants(), absl::OkStatus());
  }
  template <typename T>
  std::vector<T> All() const {
    std::vector<T> found;
    for (const WiringAction& action : actions_) {
      if (const T* match = std::get_if<T>(&action)) found.push_back(*match);
    }
    return found;
  }
  void See(const std::vector<worker::PeerWorker>& workers) { Handle(MembersSeen{workers}); }
  void SeeAll(uint64_t incarnation = 1) { See({StageWorker(1), StageWorker(2, incarnation)}); }
  // The epoch that a tick leads to, begun by stage 0; 0: none.
  uint64_t TryToWire() {
    Handle(WiringTick{wall_clock_us_});
    if (All<TryOwnEpoch>().empty()) return 0;
    Handle(OwnEpochTried{absl::OkStatus()});
    EXPECT_THAT(All<OpenLinks>(), ::testing::SizeIs(1));
    return All<OpenLinks>().at(0).hello.epoch;
  }
  void BringUp() {
    SeeAll();
    const uint64_t epoch = TryToWire();
    ASSERT_GT(epoch, 0u);
    Handle(StageReady{1, epoch, 7});
    EXPECT_FALSE(wiring_.up());
    Handle(StageReady{2, epoch, 5});
    ASSERT_TRUE(wiring_.up());
  }
  // Fails until the wait between two attempts grows no more; returns it.
  int64_t FailOften() {
    int64_t wait_us = 0;
    for (int i = 0; i < 10; ++i) {
      now_us_ += wait_us;
      TryToWire();
      Handle(ChainFailed{absl::UnavailableError("a test")});
      wait_us = wiring_.NextDeadlineUs() - now_us_;
    }
    return wait_us;
  }

  int64_t now_us_ = kSecondUs;
  uint64_t wall_clock_us_ = kWallClockUs;
  Wiring wiring_;
  std::vector<WiringAction> actions_;
};

}  // namespace baton::links

#endif  // SERVICES_LINKS_CORE_WIRING_FIXTURE_H_
