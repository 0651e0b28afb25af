// A communicator over a library's stream, with the library's part played: order, ends, deadlines.
#include "common/collective/device_communicator.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/sync.h"

namespace baton {
namespace {

constexpr int kDevice = 2;

// What the test sees and says of the stream.
struct Played {
  Mutex mutex;
  std::vector<CollectiveKind> begun ABSL_GUARDED_BY(mutex);
  int done ABSL_GUARDED_BY(mutex) = 0;  // How many have ended, in order.
  int told ABSL_GUARDED_BY(mutex) = 0;
  int marks ABSL_GUARDED_BY(mutex) = 0;
  std::vector<std::thread::id> marked_by ABSL_GUARDED_BY(mutex);
  absl::Status begin ABSL_GUARDED_BY(mutex);
  absl::Status state ABSL_GUARDED_BY(mutex);
  bool aborted ABSL_GUARDED_BY(mutex) = false;
  bool left ABSL_GUARDED_BY(mutex) = false;
};

class PlayedStream final : public CollectiveStream {
 public:
  explicit PlayedStream(std::shared_ptr<Played> played) : played_(std::move(played)) {}
  ~PlayedStream() override {
    MutexLock lock(&played_->mutex);
    played_->left = true;
  }

  int device() const override { return kDevice; }
  absl::StatusOr<Point> Mark() override {
    MutexLock lock(&played_->mutex);
    played_->marked_by.push_back(std::this_thread::get_id());
    return std::make_shared<int>(played_->marks++);
  }
  absl::Status Begin(const Collective& collective, const Point& point) override {
    MutexLock lock(&played_->mutex);
    if (!played_->begin.ok()) return played_->begin;
    EXPECT_EQ(*static_cast<const int*>(point.get()), static_cast<int>(played_->begun.size()));
    played_->begun.push_back(collective.kind);
    return absl::OkStatus();
  }
  absl::StatusOr<bool> OldestDone() override {
    MutexLock lock(&played_->mutex);
    if (!played_->state.ok()) return played_->state;
    if (played_->told == played_->done) return false;
    ++played_->told;
    return true;
  }
  void Abort() override {
    MutexLock lock(&played_->mutex);
    EXPECT_FALSE(played_->aborted);
    played_->aborted = true;
  }

 private:
  const std::shared_ptr<Played> played_;
};

class DeviceCommunicatorTest : public testing::Test {
 protected:
  void Create(const CommunicatorOptions& options) {
    const GroupDescription group = {"stage 1", 7, 1, {"prefill-1-0", "prefill-1-1"}};
    communicator_ =
        DeviceCommunicator::Create(group, options, std::make_unique<PlayedStream>(played_)).value();
  }
  // Nothing is late before a test is.
  void Create() { Create({.operation_timeout_ms = 3'600'000}); }

  static TensorView OnGpu(int device = kDevice, int64_t columns = 4) {
    static std::byte memory[64];  // The pointer is never followed.
    const auto bytes = static_cast<size_t>(columns) * 4;
    return {{memory, bytes, MemoryKind::kCuda, device}, ElementType::kFloat32, 1, columns};
  }
  Communicator::Done Tell(int number) {
    return [this, number](const absl::Status& status) {
      MutexLock lock(&mutex_);
      ended_.emplace_back(number, status);
    };
  }
  // Returns the ends when there are `count`, in their order.
  std::vector<std::pair<int, absl::Status>> Ends(size_t count) {
    MutexLock lock(&mutex_);
    mutex_.Await([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return ended_.size() >= count; });
    return ended_;
  }
  void AwaitBegun(size_t count) {
    MutexLock lock(&played_->mutex);
    played_->mutex.Await([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(played_->mutex) {
      return played_->begun.size() >= count;
    });
  }
  void SetDone(int count) {
    MutexLock lock(&played_->mutex);
    played_->done = count;
  }

  const std::shared_ptr<Played> played_ = std::make_shared<Played>();
  Mutex mutex_;
  std::vector<std::pair<int, absl::Status>> ended_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<DeviceCommunicator> communicator_;
};

TEST_F(DeviceCommunicatorTest, BeginsInOrderAtOnceAndTellsEndsInOrder) {
  Create();
  communicator_->AllReduce(OnGpu(), Tell(1));
  communicator_->Send(OnGpu(), 0, Tell(2));
  communicator_->AllGather(OnGpu(kDevice, 2), OnGpu(kDevice, 4), Tell(3));
  AwaitBegun(3);  // None of them is done.
  SetDone(3);
  const auto ends = Ends(3);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(ends[i].first, i + 1);
    EXPECT_TRUE(ends[i].second.ok()) << ends[i].second;
  }
  MutexLock lock(&played_->mutex);
  EXPECT_EQ(played_->begun,
            (std::vector<CollectiveKind>{CollectiveKind::kAllReduce, CollectiveKind::kSend,
                                         CollectiveKind::kAllGather}));
  const std::vector<std::thread::id> here(3, std::this_thread::get_id());
  EXPECT_EQ(played_->marked_by, here) << "the point is behind the submitter's work";
}

TEST_F(DeviceCommunicatorTest, ACompletionMaySubmit) {
  Create();
  communicator_->AllReduce(OnGpu(), [this](const absl::Status& status) {
    EXPECT_TRUE(status.ok()) << status;
    communicator_->Receive(OnGpu(), 0, Tell(2));
  });
  SetDone(2);
  EXPECT_TRUE(Ends(1)[0].second.ok());
}

TEST_F(DeviceCommunicatorTest, WhatIsNotOnItsDeviceIsRefusedAndTheGroupGoesOn) {
  Create();
  float host[4] = {};
  communicator_->AllReduce(HostTensor(host, 4), Tell(1));
  communicator_->AllReduce(OnGpu(kDevice + 1), Tell(2));
  communicator_->Send(OnGpu(), 1, Tell(3));
  const auto refused = Ends(3);
  for (const auto& [number, status] : refused) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << number;
  }
  EXPECT_EQ(refused[1].second.message(),
            "all-reduce: [1, 4] float32 in CUDA memory of device 3, expected CUDA memory of "
            "device 2");
  communicator_->AllReduce(OnGpu(), Tell(4));
  SetDone(1);
  EXPECT_TRUE(Ends(4)[3].second.ok());
}

TEST_F(DeviceCommunicatorTest, NoMoreArePendingThanMayBe) {
  Create({.operation_timeout_ms = 3'600'000, .pending_max = 2});
  for (int i = 1; i <= 3; ++i) communicator_->AllReduce(OnGpu(), Tell(i));
  const auto refused = Ends(1);
  EXPECT_EQ(refused[0].first, 3);
  EXPECT_EQ(refused[0].second.code(), absl::StatusCode::kResourceExhausted);
  SetDone(2);
  Ends(3);
}

TEST_F(DeviceCommunicatorTest, AnAbortEndsAllBeforeItReturnsAndTheFirstReasonStands) {
  Create();
  for (int i = 1; i <= 3; ++i) communicator_->AllReduce(OnGpu(), Tell(i));
  SetDone(1);
  Ends(1);
  communicator_->Abort(WithRank(absl::InternalError("the step has failed"), 1));
  {
    MutexLock lock(&mutex_);
    ASSERT_EQ(ended_.size(), 3u);
    for (int i = 1; i < 3; ++i) {
      EXPECT_EQ(ended_[i].first, i + 1);
      EXPECT_EQ(ended_[i].second.message(), "the step has failed");
      EXPECT_EQ(RankOf(ended_[i].second), 1);
    }
  }
  communicator_->Abort(absl::InternalError("later"));
  communicator_->AllReduce(OnGpu(), Tell(4));
  EXPECT_EQ(Ends(4)[3].second.message(), "the step has failed");
  MutexLock lock(&played_->mutex);
  EXPECT_TRUE(played_->aborted);
}

TEST_F(DeviceCommunicatorTest, AnAbortByACompletionEndsTheRest) {
  Create();
  communicator_->AllReduce(OnGpu(), [this](const absl::Status& /*status*/) {
    communicator_->Abort(absl::AbortedError("enough"));
  });
  communicator_->AllReduce(OnGpu(), Tell(2));
  SetDone(1);
  EXPECT_EQ(Ends(1)[0].second.message(), "enough");
}

TEST_F(DeviceCommunicatorTest, ACollectiveThatIsNotDoneInTimeEndsTheGroupWithItsName) {
  Create({.operation_timeout_ms = 20});
  communicator_->AllReduce(OnGpu(), Tell(1));
  communicator_->Broadcast(OnGpu(), 0, Tell(2));
  for (const auto& [number, status] : Ends(2)) {
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << number;
    EXPECT_EQ(status.message(),
              "all-reduce 1 of stage 1, epoch 7, was not done within 20 ms at rank 1 of stage 1 "
              "(prefill-1-1)");
  }
  MutexLock lock(&played_->mutex);
  EXPECT_TRUE(played_->aborted);
}

TEST_F(DeviceCommunicatorTest, TheLibrarysErrorsEndTheGroup) {
  {
    MutexLock lock(&played_->mutex);
    played_->state = absl::UnavailableError("NCCL: remote process exited");
  }
  Create();
  communicator_->AllReduce(OnGpu(), Tell(1));
  EXPECT_EQ(Ends(1)[0].second.message(), "NCCL: remote process exited");
}

TEST_F(DeviceCommunicatorTest, WhatDoesNotBeginFailsWithWhatIsBehindIt) {
  Create();
  communicator_->AllReduce(OnGpu(), Tell(1));
  AwaitBegun(1);
  {
    MutexLock lock(&played_->mutex);
    played_->begin = absl::InternalError("no memory for the parts");
  }
  communicator_->AllReduce(OnGpu(), Tell(2));
  communicator_->AllReduce(OnGpu(), Tell(3));
  const auto ends = Ends(3);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(ends[i].first, i + 1);
    EXPECT_EQ(ends[i].second.message(), "no memory for the parts");
  }
}

TEST_F(DeviceCommunicatorTest, LeavesInGoodOrderWhenNothingIsPending) {
  Create();
  communicator_->AllReduce(OnGpu(), Tell(1));
  SetDone(1);
  Ends(1);
  communicator_.reset();
  MutexLock lock(&played_->mutex);
  EXPECT_TRUE(played_->left);
  EXPECT_FALSE(played_->aborted);
}

TEST_F(DeviceCommunicatorTest, WhoLeavesWithCollectivesPendingCancelsThem) {
  Create();
  communicator_->AllReduce(OnGpu(), Tell(1));
  communicator_.reset();
  EXPECT_EQ(Ends(1)[0].second.code(), absl::StatusCode::kCancelled);
  MutexLock lock(&played_->mutex);
  EXPECT_TRUE(played_->aborted && played_->left);
}

TEST_F(DeviceCommunicatorTest, AGroupThatNobodyIsInIsRefused) {
  const GroupDescription group = {"stage 1", 7, 2, {"prefill-1-0", "prefill-1-1"}};
  EXPECT_EQ(DeviceCommunicator::Create(group, {}, std::make_unique<PlayedStream>(played_))
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace baton
