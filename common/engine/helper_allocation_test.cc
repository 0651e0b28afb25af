// No helper thread of a stage model allocates: an exception there ends the process, while the
// computing thread's is caught and becomes a status. The whole binary's operator new counts.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "common/engine/create_executor.h"
#include "common/engine/stage_model.h"
#include "common/model/make_model.h"

namespace {

std::atomic<bool> counting{false};
std::atomic<int> on_helpers{0};
std::atomic<int> on_caller{0};
thread_local bool is_caller = false;

}  // namespace

// GCC inlines these into each other and then takes malloc's memory for another operator's.
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"

void* operator new(size_t bytes) {
  if (counting.load(std::memory_order_relaxed)) ++(is_caller ? on_caller : on_helpers);
  void* memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void* operator new[](size_t bytes) { return operator new(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }

namespace baton {
namespace {

class HelperAllocationTest : public testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Families, HelperAllocationTest,
                         testing::Values("Qwen3ForCausalLM", "Qwen3MoeForCausalLM"));

TEST_P(HelperAllocationTest, HelpersAllocateNothing) {
  is_caller = true;
  RandomModelOptions model;
  model.architecture = GetParam();
  model.num_hidden_layers = 2;
  const std::string path = testing::TempDir() + "/" + GetParam();
  ASSERT_TRUE(MakeRandomModel(path, model).ok());
  ExecutorOptions options;
  options.model_path = path;
  options.page_count = 16;
  options.threads = 3;
  auto stage = LoadStageModel(options);
  ASSERT_TRUE(stage.ok()) << stage.status();

  std::vector<int32_t> tokens(200);
  std::iota(tokens.begin(), tokens.end(), 0);
  const std::vector<int32_t> pages = {3, 1, 4, 5};
  std::vector<float> logits(static_cast<size_t>((*stage)->config().vocab_size));
  Batch batch;
  batch.slices.push_back({tokens, 200, 0, pages, true});
  counting = true;
  const absl::Status status = (*stage)->Forward(batch, {}, {}, logits);
  counting = false;
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(on_helpers, 0);
  EXPECT_GT(on_caller, 0) << "nothing was counted";
}

}  // namespace
}  // namespace baton
