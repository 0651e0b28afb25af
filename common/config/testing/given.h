// What tests give to ParseOptions.
#ifndef COMMON_CONFIG_TESTING_GIVEN_H_
#define COMMON_CONFIG_TESTING_GIVEN_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
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

}  // namespace baton::config::testing

#endif  // COMMON_CONFIG_TESTING_GIVEN_H_
