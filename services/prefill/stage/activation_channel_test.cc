// Activations on their way from one stage to the next: pieces, the checksum that follows them, and
// the credit that comes back; what is lost or damaged on it.
#include "services/prefill/stage/activation_channel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <utility>

#include "common/engine/testing/fake_device.h"
#include "common/transport/testing/stub_data_plane.h"
#include "services/prefill/testing/fake_model.h"

namespace baton::prefill {
namespace {

constexpr uint64_t kEpoch = 7;
constexpr int kTokens = 300'000;  // Three pieces.
constexpr int kCredits = 2;

// Holds what is sent until the test delivers or loses it. Any thread.
class HeldMessages final : public StubDataPlane {
 public:
  void Send(PeerId, Outgoing message) override {
    MutexLock lock(&mutex_);
    messages_.push_back(std::move(message));
  }
  bool Post(std::function<void()> task) override { return PostReserved(std::move(task)); }
  bool PostReserved(std::function<void()> task) override {
    task();
    return true;
  }

  // Waits for the next message.
  Outgoing Take() {
    MutexLock lock(&mutex_);
    mutex_.Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !messages_.empty(); });
    Outgoing message = std::move(messages_.front());
    messages_.pop_front();
    return message;
  }
  size_t held() {
    MutexLock lock(&mutex_);
    return messages_.size();
  }

 private:
  Mutex mutex_;
  std::deque<Outgoing> messages_ ABSL_GUARDED_BY(mutex_);
};

// One of the two stages, and what it says.
struct Side {
  explicit Side(int stage)
      : executor(MakeTestExecutor(std::make_unique<FakeModel>(3 * stage, 3 * stage + 3, 1),
                                  "prefill.compute")),
        channel({executor.get(), &plane, &metrics,
                 [this](StageEvent event) { Heard(std::move(event)); },
                 [this](uint64_t epoch, const absl::Status& status) {
                   EXPECT_EQ(epoch, kEpoch);
                   MutexLock lock(&mutex);
                   errors.push_back(status);
                 }}) {
    ActivationEpoch epoch{kEpoch, kTokens, kCredits, 2, std::nullopt, std::nullopt};
    (stage == 0 ? epoch.next : epoch.previous) = Neighbour{1, {"other", 5}};
    EXPECT_TRUE(channel.Begin(epoch).ok());
  }
  void Heard(StageEvent event) {
    MutexLock lock(&mutex);
    if (const auto* sent = std::get_if<ActivationsSent>(&event)) sent_plans.push_back(sent->number);
    if (std::holds_alternative<ActivationsArrived>(event)) ++arrived;
    if (std::holds_alternative<CreditReturned>(event)) ++credits;
  }
  void AwaitErrors(size_t count) {
    MutexLock lock(&mutex);
    mutex.Await([this, count]()
                    ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) { return errors.size() >= count; });
  }

  HeldMessages plane;
  Metrics metrics{{MetricRole::kPrefill, "fake", "stage", 0}};
  Mutex mutex;
  std::vector<uint64_t> sent_plans ABSL_GUARDED_BY(mutex);
  std::vector<absl::Status> errors ABSL_GUARDED_BY(mutex);
  int arrived ABSL_GUARDED_BY(mutex) = 0;
  int credits ABSL_GUARDED_BY(mutex) = 0;
  std::unique_ptr<Executor> executor;
  ActivationChannel channel;
};

class ActivationChannelTest : public testing::Test {
 protected:
  // Sends plan `number`, of which every byte says where it is and of which plan.
  void Send(uint64_t number) {
    const ActivationBuffers buffers = from_->channel.Buffers(number, kTokens).value();
    const std::span<std::byte> bytes = buffers.out.memory.Host();
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = Byte(number, i);
    from_->channel.Send({kEpoch, number, kTokens});
  }
  static std::byte Byte(uint64_t number, size_t at) {
    return static_cast<std::byte>(number * 31 + at + (at >> 16));
  }

  // A message arrives as it was sent, or with a bit of its payload turned.
  static void Deliver(Outgoing message, ActivationChannel& to, bool damaged = false) {
    std::vector<std::byte> payload;
    for (const auto& run : message.runs) payload.insert(payload.end(), run.begin(), run.end());
    if (damaged) payload.back() ^= std::byte{1};
    const auto placement = to.OnHeader(message.header, payload.size());
    if (placement.has_value()) {
      if (!payload.empty()) {
        ASSERT_EQ(placement->runs.size(), 1u);
        ASSERT_EQ(placement->runs[0].size(), payload.size());
        std::memcpy(placement->runs[0].data(), payload.data(), payload.size());
      }
      to.OnPlaced(placement->receipt, absl::OkStatus());
    }
    message.on_sent(absl::OkStatus());
  }
  // The three pieces of a plan and, as it stands at the end, its checksum.
  void DeliverPieces(bool damaged = false) {
    for (int piece = 0; piece < 3; ++piece) {
      Deliver(from_->plane.Take(), to_->channel, damaged && piece == 1);
    }
  }
  static std::vector<absl::Status> ErrorsOf(Side& side) {
    MutexLock lock(&side.mutex);
    return side.errors;
  }
  int arrived() {
    MutexLock lock(&to_->mutex);
    return to_->arrived;
  }
  std::vector<uint64_t> sent() {
    MutexLock lock(&from_->mutex);
    return from_->sent_plans;
  }
  int credits() {
    MutexLock lock(&from_->mutex);
    return from_->credits;
  }
  static Outgoing Message(const ActivationMessage& message) {
    Outgoing outgoing;
    outgoing.header = EncodeActivationMessage(message);
    outgoing.on_sent = [](const absl::Status&) {};
    return outgoing;
  }

  std::unique_ptr<Side> from_ = std::make_unique<Side>(0);
  std::unique_ptr<Side> to_ = std::make_unique<Side>(1);
};

TEST_F(ActivationChannelTest, AllOfAPlanArrivesAndTheChecksumFollows) {
  Send(1);
  DeliverPieces();
  EXPECT_EQ(arrived(), 1) << "the computation begins before anything is hashed";
  EXPECT_TRUE(sent().empty()) << "its buffer is still being hashed";
  Outgoing sum = from_->plane.Take();
  EXPECT_TRUE(sum.runs.empty());
  Deliver(std::move(sum), to_->channel);
  EXPECT_EQ(sent(), (std::vector<uint64_t>{1}));
  const ActivationBuffers buffers = to_->channel.Buffers(1, kTokens).value();
  EXPECT_TRUE(buffers.check->Await().ok());
  const std::span<const std::byte> bytes = buffers.in.memory.Host();
  ASSERT_EQ(bytes.size(), size_t{kTokens} * kFakeHidden * sizeof(float));
  size_t wrong = 0;
  for (size_t i = 0; i < bytes.size(); ++i) wrong += bytes[i] != Byte(1, i) ? 1 : 0;
  EXPECT_EQ(wrong, 0u);
  to_->channel.Return({kEpoch, 1});
  Deliver(to_->plane.Take(), from_->channel);
  EXPECT_EQ(credits(), 1);
  EXPECT_TRUE(ErrorsOf(*to_).empty() && ErrorsOf(*from_).empty());
}

TEST_F(ActivationChannelTest, WhatIsDamagedOnTheWayEndsTheEpochAndItsComputation) {
  Send(1);
  DeliverPieces(/*damaged=*/true);
  EXPECT_EQ(arrived(), 1);
  Deliver(from_->plane.Take(), to_->channel);
  const absl::Status damaged = DamagedInput(1);
  EXPECT_EQ(to_->channel.Buffers(1, kTokens).value().check->Await(), damaged);
  to_->AwaitErrors(1);
  EXPECT_EQ(ErrorsOf(*to_), (std::vector<absl::Status>{damaged}));
}

// A message reported sent may be lost. The plan's progress deadline ends the epoch then.
TEST_F(ActivationChannelTest, WhoWaitsForAChecksumThatIsLostWaitsNoLongerThanTheEpoch) {
  Send(1);
  DeliverPieces();
  Outgoing lost = from_->plane.Take();
  lost.on_sent(absl::OkStatus());
  const auto check = to_->channel.Buffers(1, kTokens).value().check;
  to_->channel.End();
  EXPECT_EQ(check->Await(), absl::CancelledError("the epoch is over"));
}

TEST_F(ActivationChannelTest, AChecksumMayComeFirst) {
  Send(1);
  std::deque<Outgoing> pieces;
  for (int piece = 0; piece < 3; ++piece) {
    pieces.push_back(from_->plane.Take());
    pieces.back().on_sent(absl::OkStatus());
    pieces.back().on_sent = [](const absl::Status&) {};
  }
  Deliver(from_->plane.Take(), to_->channel);
  EXPECT_EQ(arrived(), 0);
  for (Outgoing& piece : pieces) Deliver(std::move(piece), to_->channel);
  EXPECT_EQ(arrived(), 1);
  EXPECT_TRUE(to_->channel.Buffers(1, kTokens).value().check->Await().ok());
}

TEST_F(ActivationChannelTest, ChecksumsThatBelongNowhereAreRefused) {
  Deliver(Message(ActivationSum{kEpoch - 1, 1, 5}), to_->channel);
  EXPECT_TRUE(ErrorsOf(*to_).empty()) << "of an older epoch";
  Deliver(Message(ActivationSum{kEpoch, 1, 5}), to_->channel);
  Deliver(Message(ActivationSum{kEpoch, 1, 5}), to_->channel);
  Deliver(Message(ActivationSum{kEpoch, 1 + kCredits, 5}), to_->channel);
  Deliver(Message(ActivationSum{kEpoch, 0, 5}), to_->channel);
  Deliver(Message(ActivationSum{kEpoch, 1, 5}), from_->channel);
  EXPECT_THAT(
      ErrorsOf(*to_),
      testing::ElementsAre(
          absl::FailedPreconditionError("activations of plan 1: their checksum came twice"),
          absl::FailedPreconditionError("activations of plan 3: plan 1 has the buffer"),
          absl::FailedPreconditionError("activations of plan 0: plans are counted from 1 on")));
  EXPECT_THAT(ErrorsOf(*from_), testing::ElementsAre(absl::FailedPreconditionError(
                                    "activations of plan 1: this stage takes none")));
}

}  // namespace
}  // namespace baton::prefill
