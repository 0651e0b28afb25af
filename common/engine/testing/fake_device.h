// An executor that wraps another one and behaves like a remote device. Its pages are reachable only
// through copies, which end later, on another thread and in another order; there is little memory
// for them; and steps end late. It fails where a test asks it to.
#ifndef COMMON_ENGINE_TESTING_FAKE_DEVICE_H_
#define COMMON_ENGINE_TESTING_FAKE_DEVICE_H_

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/base/sync.h"
#include "common/engine/executor.h"
#include "common/engine/stage_model.h"

namespace baton {

class FakeDevice final : public Executor, private KvMemory {
 public:
  struct Options {
    size_t export_slots = 64;  // More exports at once are refused.
    // The first copies wait until so many can go, the last one first; so some are overtaken.
    size_t first_copies = 1;
    // What becomes of the submission of that number, counted from 1. Any thread.
    std::function<absl::Status(int submission)> verdict;
  };
  FakeDevice(std::unique_ptr<Executor> inner, Options options);
  ~FakeDevice() override { FakeDevice::Stop(); }

  const ModelConfig& config() const override { return inner_->config(); }
  const KvGeometry& kv() const override { return inner_->kv(); }
  KvMemory& kv_memory() override { return *this; }
  ElementType activation_type() const override { return inner_->activation_type(); }
  int activation_columns() const override { return inner_->activation_columns(); }
  TensorRank tensor_rank() const override { return inner_->tensor_rank(); }
  void JoinGroup(std::shared_ptr<Communicator> group,
                 const std::function<void(absl::Status)>& done) override {
    inner_->JoinGroup(std::move(group), done);
  }
  absl::StatusOr<MemoryBuffer> AllocateActivations(size_t bytes) override;
  void Submit(Step step, std::function<void(StepResult)> done) override;
  int64_t running_since_us() const override { return inner_->running_since_us(); }
  void Stop() override;

  // Exports that have not been ended.
  size_t exported() const;
  int submissions() const { return submissions_; }
  // Copies that ended behind one that was asked for later.
  int overtaken() const { return overtaken_; }

 private:
  void ClearTail(int page, int valid_tokens) override;
  void Export(const std::vector<KvPiece>& pieces, Exported done) override;
  void EndExport(uint64_t export_id) override;
  MemorySpan Landing(const KvPiece& piece) override;
  void FinishLanding(const std::vector<KvPiece>& pieces, Landed done) override;

  std::span<std::byte> OnDevice(const KvPiece& piece);
  // A copy and its number.
  struct NumberedCopy {
    int number;
    std::function<void()> copy;
  };
  void Copy(std::function<void()> copy);
  void RunCopy(const NumberedCopy& copy);
  void Run();

  const Options options_;
  const std::unique_ptr<Executor> inner_;
  std::vector<std::byte> landing_;  // A place for every page.
  std::atomic<int> submissions_{0};
  mutable Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<std::function<void()>> ends_ ABSL_GUARDED_BY(mutex_);  // The ends of steps, in order.
  std::vector<NumberedCopy> copies_ ABSL_GUARDED_BY(mutex_);        // The last one goes first.
  size_t copies_wanted_ ABSL_GUARDED_BY(mutex_) = 1;                // Before any of them goes.
  int next_copy_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<uint64_t, std::vector<std::byte>> exports_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_export_ ABSL_GUARDED_BY(mutex_) = 1;
  int latest_copy_ = 0;  // The latest that has ended; the thread's.
  std::atomic<int> overtaken_{0};
  std::thread thread_;  // Last: it uses the rest.
};

// What a service's test puts around its model: an executor with its pages in host memory, or, where
// the environment says BATON_TEST_EXECUTOR=device, a fake device; so that the tests run with both.
std::unique_ptr<Executor> MakeTestExecutor(std::unique_ptr<StageModel> model,
                                           const std::string& failpoint);

}  // namespace baton

#endif  // COMMON_ENGINE_TESTING_FAKE_DEVICE_H_
