// The parts of the man page that come from the tables: commands and options, as roff.
#ifndef COMMON_CONFIG_MAN_PAGE_H_
#define COMMON_CONFIG_MAN_PAGE_H_

#include <string>

namespace baton::config {

// Text as roff prints it literally: backslashes, leading dots, and dashes that are part of a flag
// or a number, not of a word.
std::string RoffText(const std::string& text);

// One tagged paragraph for each command.
std::string ManCommands();

// A subsection for each group, in it a tagged paragraph for each option.
std::string ManOptions();

}  // namespace baton::config

#endif  // COMMON_CONFIG_MAN_PAGE_H_
