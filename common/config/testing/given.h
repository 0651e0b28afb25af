// What tests give to ParseOptions.
#ifndef COMMON_CONFIG_TESTING_GIVEN_H_
#define COMMON_CONFIG_TESTING_GIVEN_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/status.h"
#include "common/config/options.h"

namespace baton::config::testing {

// --model-path is set unless `bare`.
struct Given {
  std::vector<std::string> args;
  std::vector<std::string> environment;
  std::string file;  // Text of conf.yaml, named by --config if not empty.
  Command command = Command::kRouter;
  bool bare = false;
};

inline absl::StatusOr<ParsedOptions> Parse(const Given& given) {
  OptionInput input{given.args, given.environment, [&](const std::string& path) {
                      return path == "conf.yaml"
                                 ? absl::StatusOr<std::string>(given.file)
                                 : absl::StatusOr<std::string>(absl::NotFoundError("no such file"));
                    }};
  if (!given.file.empty()) input.args.insert(input.args.begin(), {"--config", "conf.yaml"});
  if (!given.bare) input.args.insert(input.args.begin(), "--model-path=/models/tiny");
  return ParseOptions(given.command, input);
}

struct Refusal {
  Given given;
  std::string field;
  std::vector<std::string> message;  // Parts, in any order.
};

inline void ExpectRefused(const Refusal& row) {
  SCOPED_TRACE(row.field + " " + row.message.front());
  const auto parsed = Parse(row.given);
  ASSERT_FALSE(parsed.ok());
  EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(FieldOf(parsed.status()), row.field);
  for (const std::string& part : row.message) {
    EXPECT_THAT(std::string(parsed.status().message()), ::testing::HasSubstr(part));
  }
}

}  // namespace baton::config::testing

#endif  // COMMON_CONFIG_TESTING_GIVEN_H_
