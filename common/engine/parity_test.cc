// Logits and greedy tokens of tiny random models beside what Hugging Face computes for them, in
// float32 and in bfloat16.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/engine/create_executor.h"
#include "common/engine/kernels/bf16_products.h"
#include "common/engine/stage_model.h"
#include "common/engine/testing/parity_fixtures.h"

namespace baton {
namespace {

// One model and what is expected of it.
class Subject {
 public:
  Subject(const std::string& family, Backend backend, ElementType dtype, ElementType kv_dtype,
          CpuNumerics numerics = CpuNumerics::kExact)
      : fixtures_(testing::ParityFixtures(family)), pages_(64) {
    ExecutorOptions options = testing::ParityOptions(family, backend, dtype);
    options.kv_dtype = kv_dtype;
    options.numerics = numerics;
    auto model = LoadStageModel(options);
    EXPECT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
    std::iota(pages_.begin(), pages_.end(), 0);
  }

  const std::vector<testing::ParityFixture>& fixtures() const { return fixtures_; }

  testing::Forward forward() {
    return [this](std::span<const int32_t> tokens, int prefix) {
      std::vector<float> logits(static_cast<size_t>(model_->config().vocab_size));
      const SequenceSlice slice = {tokens, static_cast<int>(tokens.size()), prefix, pages_, true};
      const absl::Status status = model_->Forward({{slice}}, {}, {}, logits);
      EXPECT_TRUE(status.ok()) << status;
      return logits;
    };
  }

 private:
  const std::vector<testing::ParityFixture> fixtures_;
  std::unique_ptr<StageModel> model_;
  std::vector<int32_t> pages_;
};

constexpr Backend kBackends[] = {Backend::kNative, Backend::kTorch};

std::string BackendName(Backend backend) {
  return backend == Backend::kNative ? "native" : "torch";
}

class ParityTest : public ::testing::TestWithParam<std::tuple<const char*, Backend>> {
 protected:
  Subject subject_{std::get<0>(GetParam()), std::get<1>(GetParam()), ElementType::kFloat32,
                   ElementType::kFloat32};
};

TEST_P(ParityTest, LogitsAgree) {
  for (const auto& fixture : subject_.fixtures()) {
    testing::ExpectSameLogits(subject_.forward(), fixture.float32);
  }
}

TEST_P(ParityTest, GreedyTokensAreTheSame) {
  for (const auto& fixture : subject_.fixtures()) {
    testing::ExpectSameTokens(subject_.forward(), fixture.float32);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, ParityTest,
                         ::testing::Combine(::testing::ValuesIn(testing::kParityFamilies),
                                            ::testing::ValuesIn(kBackends)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param)) + "_" +
                                  BackendName(std::get<1>(info.param));
                         });

INSTANTIATE_TEST_SUITE_P(Variants, ParityTest,
                         ::testing::Combine(::testing::ValuesIn(testing::kParityVariants),
                                            ::testing::ValuesIn(kBackends)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param)) + "_" +
                                  BackendName(std::get<1>(info.param));
                         });

// Rope whose cosines and sines have a magnitude, past the length that it was trained on.
INSTANTIATE_TEST_SUITE_P(Stretched, ParityTest,
                         ::testing::Combine(::testing::Values("yarn"),
                                            ::testing::ValuesIn(kBackends)),
                         [](const auto& info) { return BackendName(std::get<1>(info.param)); });

// Weights and activations in bfloat16, keys and values in either type.
class Bf16ParityTest
    : public ::testing::TestWithParam<std::tuple<const char*, Backend, ElementType>> {
 protected:
  const Backend backend_ = std::get<1>(GetParam());
  Subject subject_{std::get<0>(GetParam()), backend_, ElementType::kBFloat16,
                   std::get<2>(GetParam())};
};

double SquaredDistance(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
  return sum;
}

float Distance(const std::vector<float>& a, const std::vector<float>& b) {
  float largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::fabs(a[i] - b[i]));
  return largest;
}

// Each logit is at most `from_theirs` times as far from Hugging Face's bfloat16 as that is from
// float32, and all together less than `from_exact` times as far from float32.
void ExpectLogitsButForRounding(Subject& subject, float from_theirs, double from_exact) {
  double ours = 0;
  double theirs = 0;
  for (const auto& [float32, bfloat16] : subject.fixtures()) {
    for (const auto& [position, logits] : testing::LogitsAt(subject.forward(), bfloat16)) {
      const std::vector<float>& exact = float32.logits.at(position);
      const std::vector<float>& expected = bfloat16.logits.at(position);
      EXPECT_LT(Distance(logits, expected), from_theirs * Distance(expected, exact)) << position;
      ours += SquaredDistance(logits, exact);
      theirs += SquaredDistance(expected, exact);
    }
  }
  ::testing::Test::RecordProperty("distance_over_hugging_faces",
                                  std::to_string(std::sqrt(ours / theirs)));
  EXPECT_LT(std::sqrt(ours), from_exact * std::sqrt(theirs));
  EXPECT_GT(ours, 0) << "this is not float32";
}

// Hugging Face and libtorch's layers round behind every operation, Baton's own behind every layer.
// So Baton's own layers are as near to Hugging Face's bfloat16 as that is to float32, and less than
// half as far from it; what rounds as often is as far from float32, on another side of it.
class Bf16LogitsTest : public Bf16ParityTest {};

TEST_P(Bf16LogitsTest, LogitsAreThoseOfHuggingFaceButForRounding) {
  ExpectLogitsButForRounding(subject_, backend_ == Backend::kNative ? 1.5f : 2.5f,
                             testing::RoundingOf(backend_).distance);
}

// --cpu-numerics auto also rounds what is multiplied, and still less than Hugging Face.
class AutoLogitsTest : public ::testing::TestWithParam<std::tuple<const char*, ElementType>> {
 protected:
  void SetUp() override {
    if (kernels::FastestBf16Products() == nullptr) GTEST_SKIP() << "float32 is the fastest here";
  }
};

TEST_P(AutoLogitsTest, LogitsAreNearerToFloat32ThanHuggingFaces) {
  Subject subject(std::get<0>(GetParam()), Backend::kNative, ElementType::kBFloat16,
                  std::get<1>(GetParam()), CpuNumerics::kAuto);
  ExpectLogitsButForRounding(subject, 2.0f, 1.0);
}

TEST_P(Bf16ParityTest, GreedyTokensAreTheSameButForNearTies) {
  const testing::Bf16Rounding rounding = testing::RoundingOf(backend_);
  size_t steps = 0;
  int ties = 0;
  for (const auto& fixture : subject_.fixtures()) {
    steps += fixture.bfloat16.greedy.size();
    ties += testing::ExpectSameTokensButForTies(subject_.forward(), fixture.bfloat16, rounding);
  }
  RecordProperty("near_ties", ties);
  EXPECT_EQ(steps, 128u);
  EXPECT_LE(ties, rounding.ties);
}

std::string Bf16ParityName(const ::testing::TestParamInfo<Bf16ParityTest::ParamType>& info) {
  return std::string(std::get<0>(info.param)) + "_" + BackendName(std::get<1>(info.param)) +
         "_kv_" + ElementTypeName(std::get<2>(info.param));
}

INSTANTIATE_TEST_SUITE_P(Models, Bf16ParityTest,
                         ::testing::Combine(::testing::ValuesIn(testing::kParityFamilies),
                                            ::testing::ValuesIn(kBackends),
                                            ::testing::ValuesIn(kElementTypes)),
                         Bf16ParityName);

INSTANTIATE_TEST_SUITE_P(Gemma, Bf16ParityTest,
                         ::testing::Combine(::testing::Values("gemma2", "gemma3"),
                                            ::testing::ValuesIn(kBackends),
                                            ::testing::ValuesIn(kElementTypes)),
                         Bf16ParityName);

// Of DeepSeek's tokens nine or ten are near ties, by either backend: its logits alone are compared.
INSTANTIATE_TEST_SUITE_P(Models, Bf16LogitsTest,
                         ::testing::Combine(::testing::Values("llama3", "qwen2", "qwen3", "gemma2",
                                                              "gemma3", "deepseek_dense"),
                                            ::testing::ValuesIn(kBackends),
                                            ::testing::ValuesIn(kElementTypes)),
                         Bf16ParityName);

INSTANTIATE_TEST_SUITE_P(Models, AutoLogitsTest,
                         ::testing::Combine(::testing::Values("llama3", "qwen2", "qwen3", "gemma2",
                                                              "gemma3", "deepseek_dense"),
                                            ::testing::ValuesIn(kElementTypes)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param)) + "_kv_" +
                                  ElementTypeName(std::get<1>(info.param));
                         });

}  // namespace
}  // namespace baton
