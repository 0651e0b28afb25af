// Ways in which a model directory can be broken or hostile: what it is refused with, and that the
// message names the key, tensor or file. One row per way.
#ifndef COMMON_MODEL_TESTING_BROKEN_MODEL_H_
#define COMMON_MODEL_TESTING_BROKEN_MODEL_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <ostream>
#include <string>
#include <utility>

#include "common/base/status.h"
#include "common/model/fingerprint.h"
#include "common/model/make_model.h"
#include "common/model/model_config.h"
#include "common/model/safetensors.h"
#include "common/model/testing/model_directory.h"

namespace baton::model_testing {

struct BrokenModel {
  std::string name;
  std::function<void(const ModelDirectory&)> break_it;
  absl::StatusCode code;
  std::string message;  // A fragment.
  RandomModelOptions model = {.num_hidden_layers = 2};
};

inline std::ostream& operator<<(std::ostream& out, const BrokenModel& row) {
  return out << row.name;
}

inline constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
inline constexpr auto kUnsupported = absl::StatusCode::kUnimplemented;
inline constexpr auto kMissing = absl::StatusCode::kNotFound;

// config.json with `key` set to `value`.
inline BrokenModel Config(std::string name, const char* key, Json value, absl::StatusCode code,
                          std::string message) {
  return {std::move(name),
          [key, value](const ModelDirectory& model) {
            model.EditConfig([&](Json& config) { config[key] = value; });
          },
          code, std::move(message)};
}

// The header of model.safetensors, edited.
inline BrokenModel Header(std::string name, const std::function<void(Json&)>& edit,
                          absl::StatusCode code, std::string message) {
  return {std::move(name), [edit](const ModelDirectory& model) { model.EditHeader(edit); }, code,
          std::move(message)};
}

// Reads all that a single stage would.
inline absl::Status Load(const std::string& path) {
  BATON_ASSIGN_OR_RETURN(const ModelConfig config, LoadModelConfig(path));
  BATON_ASSIGN_OR_RETURN(WeightReader reader, WeightReader::Open(path));
  return FingerprintStage(reader, config, 0, config.num_hidden_layers).status();
}

class BrokenModelTest : public testing::TestWithParam<BrokenModel> {
 protected:
  static void ExpectRefused(const BrokenModel& row) {
    const ModelDirectory model = {testing::TempDir() + "/broken_" + row.name};
    ASSERT_TRUE(MakeRandomModel(model.path, row.model).ok());
    ASSERT_TRUE(Load(model.path).ok());
    row.break_it(model);
    const absl::Status status = Load(model.path);
    EXPECT_EQ(status.code(), row.code) << status;
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr(row.message));
  }
};

inline constexpr auto kRowName = [](const auto& info) { return info.param.name; };

}  // namespace baton::model_testing

#endif  // COMMON_MODEL_TESTING_BROKEN_MODEL_H_
