// The option table as the generated code carries it: one Option for each field of v1::Options.
#ifndef COMMON_CONFIG_OPTION_TABLE_H_
#define COMMON_CONFIG_OPTION_TABLE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/config/options.h"

namespace baton::config {

struct Option {
  const google::protobuf::FieldDescriptor* field;  // Owned by the generated code, like `spec`.
  const v1::OptionSpec* spec;
  std::string name;      // page_size: the YAML key, too
  std::string flag;      // page-size
  std::string variable;  // BATON_PAGE_SIZE

  bool is_bool() const;
  bool is_number() const;
};

// In the order of the proto. Built once.
const std::vector<Option>& OptionTable();

// Null if there is none. `flag` is without its dashes and may be an alias.
const Option* FindByName(const std::string& name);
const Option* FindByFlag(const std::string& flag);
const Option* FindByVariable(const std::string& variable);

// A worker's hangs on its options: ROLE_UNSPECIFIED.
Role RoleOf(Command command);

bool AppliesTo(const Option& option, Role role);
// True if some role of the command takes it: a worker's options are known before its role is.
bool AppliesTo(const Option& option, Command command);

// "prefill, decode", for messages and documentation.
std::string RolesText(const Option& option);

// As a flag's text.
std::string DefaultText(const Option& option, Role role);

// What a value may be: "a whole number from 1 to 64", "one of auto, shm, tcp".
std::string ExpectedText(const Option& option);

// Parses and checks `text` and stores it in `values`. The error names option, value, expectation
// and `source` ("flag --page-size").
absl::Status SetOption(const Option& option, const std::string& text, const std::string& source,
                       v1::Options* values);

// The value as text that SetOption would read back.
std::string ValueText(const Option& option, const v1::Options& values);

}  // namespace baton::config

#endif  // COMMON_CONFIG_OPTION_TABLE_H_
