// A chain of stage models in one process, for the tests of StageModel.
#ifndef COMMON_ENGINE_TESTING_MODEL_CHAIN_H_
#define COMMON_ENGINE_TESTING_MODEL_CHAIN_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/base/random.h"
#include "common/engine/create_executor.h"
#include "common/engine/stage_model.h"
#include "common/model/make_model.h"

namespace baton {

// Writes a model of these options once per test binary.
inline std::string ModelPath(const std::string& name, const RandomModelOptions& options) {
  static std::set<std::string> made;
  std::string path = testing::TempDir() + "/" + name;
  if (made.insert(name).second) {
    const absl::Status status = MakeRandomModel(path, options);
    EXPECT_TRUE(status.ok()) << status;
  }
  return path;
}

inline std::string SmallModel() {
  RandomModelOptions options;
  options.num_hidden_layers = 6;
  return ModelPath("small", options);
}

inline std::vector<int32_t> RandomPrompt(int length, uint64_t seed = 7) {
  Random random(seed);
  std::vector<int32_t> tokens(static_cast<size_t>(length));
  for (int32_t& token : tokens) token = static_cast<int32_t>(random.Below(256));
  return tokens;
}

// The bytes of a page in host memory.
inline std::span<std::byte> PageOf(StageModel& model, int page) {
  return model.kv_memory().Landing({page, 0, model.kv().PageBytes()}).Host();
}

// A chain of stage models in one process, with page lists for the sequences that it is given.
class Chain {
 public:
  // `cuts` are the layers where a new stage begins, beginning with 0.
  Chain(ExecutorOptions options, std::vector<int> cuts) {
    for (size_t i = 0; i < cuts.size(); ++i) {
      options.layer_begin = cuts[i];
      options.layer_end = i + 1 < cuts.size() ? cuts[i + 1] : -1;
      auto stage = LoadStageModel(options);
      EXPECT_TRUE(stage.ok()) << stage.status();
      stages_.push_back(*std::move(stage));
    }
  }

  StageModel& stage(size_t i) { return *stages_[i]; }
  const ModelConfig& config() const { return stages_[0]->config(); }

  // Appends `tokens` to sequence `id` and returns the logits of the last one.
  std::vector<float> Append(int id, std::span<const int32_t> tokens) {
    return AppendAll({{id, tokens}})[0];
  }

  std::vector<std::vector<float>> AppendAll(
      const std::vector<std::pair<int, std::span<const int32_t>>>& parts) {
    Batch batch;
    for (const auto& [id, tokens] : parts) {
      Sequence& sequence = sequences_[id];
      const int count = static_cast<int>(tokens.size());
      SequenceSlice slice;
      slice.tokens = tokens;
      slice.token_count = count;
      slice.prefix_length = sequence.length;
      slice.wants_logits = true;
      sequence.length += count;
      const int page_size = stages_[0]->kv().page_size;
      // Backwards and interleaved: page ids need no order.
      while (static_cast<int>(sequence.pages.size()) * page_size < sequence.length) {
        sequence.pages.push_back(stages_[0]->kv().page_count - 1 - next_page_++);
      }
      slice.pages = sequence.pages;
      batch.slices.push_back(slice);
    }
    return Forward(batch);
  }

 private:
  struct Sequence {
    int length = 0;
    std::vector<int32_t> pages;
  };

  std::vector<std::vector<float>> Forward(Batch batch) {
    const size_t vocab = static_cast<size_t>(config().vocab_size);
    std::vector<std::byte> activations;
    TensorView in;
    std::vector<float> logits(batch.slices.size() * vocab);
    for (const auto& stage : stages_) {
      const bool last = stage->last_stage();
      for (SequenceSlice& slice : batch.slices) slice.wants_logits = last;
      TensorView out;
      if (!last) out = {{}, stage->activation_type(), batch.TokenCount(), config().hidden_size};
      std::vector<std::byte> bytes(out.bytes());
      out.memory = HostSpan(bytes);
      const absl::Status status =
          stage->Forward(batch, in, out, last ? std::span<float>(logits) : std::span<float>());
      EXPECT_TRUE(status.ok()) << status;
      in = out;
      activations = std::move(bytes);  // The same memory.
    }
    std::vector<std::vector<float>> result;
    for (size_t i = 0; i < batch.slices.size(); ++i) {
      const auto begin = logits.begin() + static_cast<ptrdiff_t>(i * vocab);
      result.emplace_back(begin, begin + static_cast<ptrdiff_t>(vocab));
    }
    return result;
  }

  std::vector<std::unique_ptr<StageModel>> stages_;
  std::map<int, Sequence> sequences_;
  int next_page_ = 0;
};

inline ExecutorOptions OptionsFor(const std::string& model_path) {
  ExecutorOptions options;
  options.model_path = model_path;
  options.page_size = 16;
  options.page_count = 64;
  return options;
}

// The largest difference, in terms of the largest number of `b`.
inline float RelativeDistance(const std::vector<float>& a, const std::vector<float>& b) {
  float distance = 0;
  float largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    distance = std::max(distance, std::fabs(a[i] - b[i]));
    largest = std::max(largest, std::fabs(b[i]));
  }
  return distance / largest;
}

}  // namespace baton

#endif  // COMMON_ENGINE_TESTING_MODEL_CHAIN_H_
