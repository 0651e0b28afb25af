// What is said of one option wherever the table is shown: help, documentation, man page,
// completion.
#ifndef COMMON_CONFIG_OPTION_TEXT_H_
#define COMMON_CONFIG_OPTION_TEXT_H_

#include <string>
#include <vector>

#include "common/config/option_table.h"

namespace baton::config {

// Whether `command` shows the option: `model info` shares its role with `model make`, and takes
// none of the options that shape a model.
bool Shown(const Option& option, Command command);

// All its flags, dashes included; its own name first.
std::vector<std::string> FlagsOf(const Option& option);

// What follows a flag: " N", " auto|tcp|shm", "[=true|false]", " DIR".
std::string PlaceholderText(const Option& option);

// "0 to 65535", "auto, shm, tcp"; empty if anything goes.
std::string RangeText(const Option& option);

// "0; 30001 for router": one default, then the roles where another holds. Empty if there is none.
std::string DefaultsText(const Option& option);

// Its help, and whose variable it takes beside its own.
std::string HelpSentences(const Option& option);

// "0 to 65535 ms; default 500": what the help text leaves to the table. May be empty.
std::string FactsText(const Option& option);

}  // namespace baton::config

#endif  // COMMON_CONFIG_OPTION_TEXT_H_
