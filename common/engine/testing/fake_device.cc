#include "common/engine/testing/fake_device.h"

#include <xxhash.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

#include "common/base/check.h"
#include "common/engine/executors/threaded_executor.h"

namespace baton {
namespace {

// A copy waits so long for another one to overtake it.
constexpr std::chrono::microseconds kForCompany{1000};
// The longest time that the first copies wait; overtaken() tells a caller that makes one copy at a
// time.
constexpr std::chrono::seconds kForTheFirst{30};

}  // namespace

FakeDevice::FakeDevice(std::unique_ptr<Executor> inner, Options options)
    : options_(std::move(options)),
      inner_(std::move(inner)),
      landing_(kv().PageBytes() * static_cast<size_t>(kv().page_count)),
      copies_wanted_(options_.first_copies),
      thread_([this] { Run(); }) {}

void FakeDevice::Stop() {
  inner_->Stop();
  {
    MutexLock lock(&mutex_);
    if (std::exchange(stopping_, true)) return;
  }
  thread_.join();
}

size_t FakeDevice::exported() const {
  MutexLock lock(&mutex_);
  return exports_.size();
}

absl::StatusOr<MemoryBuffer> FakeDevice::AllocateActivations(size_t bytes) {
  absl::StatusOr<MemoryBuffer> host = AllocateHost(bytes);
  if (!host.ok()) return host;
  MemorySpan pinned = host->span();
  pinned.kind = MemoryKind::kPinned;
  auto kept = std::make_shared<MemoryBuffer>(*std::move(host));
  return MemoryBuffer(pinned, [kept](const MemorySpan&) {});
}

void FakeDevice::Submit(Step step, std::function<void(StepResult)> done) {
  const int submission = ++submissions_;
  inner_->Submit(std::move(step), [this, submission, done = std::move(done)](StepResult result) {
    if (options_.verdict) {
      if (absl::Status status = options_.verdict(submission); !status.ok()) {
        result = StepResult{std::move(status), result.compute_us, {}, {}};
      }
    }
    MutexLock lock(&mutex_);
    ends_.push_back([done, told = std::move(result)] { done(told); });
  });
}

// ---- Pages ----

std::span<std::byte> FakeDevice::OnDevice(const KvPiece& piece) {
  return inner_->kv_memory().Landing(piece).Host();
}

void FakeDevice::ClearTail(int page, int valid_tokens) {
  inner_->kv_memory().ClearTail(page, valid_tokens);
}

void FakeDevice::Export(const std::vector<KvPiece>& pieces, Exported done) {
  size_t bytes = 0;
  for (const KvPiece& piece : pieces) bytes += piece.bytes;
  uint64_t id = 0;
  {
    MutexLock lock(&mutex_);
    if (exports_.size() < options_.export_slots) {
      id = next_export_++;
      exports_[id].resize(bytes);
    }
  }
  if (id == 0) return done(absl::ResourceExhaustedError("the device has no room for exports"));
  Copy([this, pieces, id, done = std::move(done)] {
    ExportedKv exported;
    {
      MutexLock lock(&mutex_);
      std::vector<std::byte>& staged = exports_.at(id);
      auto end = staged.begin();
      for (const KvPiece& piece : pieces) {
        const std::span<const std::byte> from = OnDevice(piece);
        end = std::copy(from.begin(), from.end(), end);
      }
      exported = {id, HostSpan(staged), XXH3_64bits(staged.data(), staged.size())};
    }
    exported.memory.kind = MemoryKind::kPinned;
    done(exported);
  });
}

void FakeDevice::EndExport(uint64_t export_id) {
  MutexLock lock(&mutex_);
  BATON_CHECK(exports_.erase(export_id) == 1) << "export " << export_id << " is not there";
}

MemorySpan FakeDevice::Landing(const KvPiece& piece) {
  const size_t begin = static_cast<size_t>(piece.page) * kv().PageBytes() + piece.offset_bytes;
  return {landing_.data() + begin, piece.bytes, MemoryKind::kPinned, 0};
}

void FakeDevice::FinishLanding(const std::vector<KvPiece>& pieces, Landed done) {
  Copy([this, pieces, done = std::move(done)] {
    std::vector<std::byte> all;
    for (const KvPiece& piece : pieces) {
      const std::span<std::byte> landed = Landing(piece).Host();
      all.insert(all.end(), landed.begin(), landed.end());
      std::copy(landed.begin(), landed.end(), OnDevice(piece).begin());
      // Overwritten, so that a later read of the landing memory gives wrong bytes.
      std::fill(landed.begin(), landed.end(), std::byte{0xEE});
    }
    done(XXH3_64bits(all.data(), all.size()));
  });
}

// ---- The copy queue ----

void FakeDevice::Copy(std::function<void()> copy) {
  MutexLock lock(&mutex_);
  copies_.push_back({next_copy_++, std::move(copy)});
}

void FakeDevice::RunCopy(const NumberedCopy& copy) {
  if (copy.number < latest_copy_) ++overtaken_;
  latest_copy_ = std::max(latest_copy_, copy.number);
  copy.copy();
}

void FakeDevice::Run() {
  for (;;) {
    std::deque<std::function<void()>> ends;
    std::vector<NumberedCopy> copies;
    {
      MutexLock lock(&mutex_);
      const bool woken =
          mutex_.AwaitFor(kForTheFirst, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
            return stopping_ || !ends_.empty() || copies_.size() >= copies_wanted_;
          });
      mutex_.AwaitFor(kForCompany, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return stopping_ || copies_.size() > 1;
      });
      ends.swap(ends_);
      if (stopping_ || !woken || copies_.size() >= copies_wanted_) {
        copies.swap(copies_);
        if (!copies.empty()) copies_wanted_ = 1;
      }
      if (ends.empty() && copies.empty() && stopping_) return;
    }
    for (const std::function<void()>& end : ends) end();
    std::for_each(copies.rbegin(), copies.rend(), [this](const auto& copy) { RunCopy(copy); });
  }
}

std::unique_ptr<Executor> MakeTestExecutor(std::unique_ptr<StageModel> model,
                                           const std::string& failpoint) {
  auto executor = std::make_unique<ThreadedExecutor>(std::move(model), failpoint);
  const char* const kind = std::getenv("BATON_TEST_EXECUTOR");
  if (kind == nullptr || std::string_view(kind) != "device") return executor;
  return std::make_unique<FakeDevice>(std::move(executor), FakeDevice::Options{});
}

}  // namespace baton
