// Flags of SGLang and vLLM that are not Baton's. A command line of theirs works as it is: a flag
// that asks for what Baton does anyway, or that only tunes how another engine does it, is taken
// with a line that says what it means here. A flag that asks for something else is refused with
// what to use instead. Names that mean the same as an option are not here but aliases in
// proto/baton/v1/config.proto.
#ifndef COMMON_CONFIG_FOREIGN_FLAGS_H_
#define COMMON_CONFIG_FOREIGN_FLAGS_H_

#include <string>
#include <vector>

namespace baton::config {

struct ForeignFlag {
  enum class Fate {
    kTaken,    // `text`: what it means here.
    kMeans,    // `text`: an option with its value, "log-requests=off", that it stands for.
    kRefused,  // `text`: what to do instead; null: nothing does that here.
  };
  // What follows a flag that is not written --flag=value.
  enum class Values { kNone, kOne, kList };

  const char* name;  // Without dashes; '*' at either end stands for anything.
  Fate fate;
  Values values;
  const char* text;
  const char* only;    // kTaken: the only values that are, "auto|http://*"; null: all.
  const char* beside;  // A flag beside which all other values are taken, too; may be null.
};

// Null if neither server is known to have it. `flag` is without dashes.
const ForeignFlag* FindForeignFlag(const std::string& flag);

// Whether `flag`, which is kTaken, is so with this value; `args` is the whole command line.
bool TakesValue(const ForeignFlag& flag, const std::string& value,
                const std::vector<std::string>& args);

// A sentence about `flag` for a message; empty if neither server knows it.
std::string ForeignFlagAdvice(const std::string& flag);

// What to know about an option of Baton's that was given to a process that does not take it, by
// option name; empty if its roles say all.
std::string ElsewhereText(const std::string& option_name);

// The value of Baton's that `text` stands for, such as float32 for vLLM's --dtype=float; `text`
// itself if it stands for none.
std::string OwnValue(const std::string& option_name, const std::string& text);

// Whether a variable is one of SGLang's or vLLM's, by its name.
bool IsForeignVariable(const std::string& variable);

// All rows, for documentation and tests.
const std::vector<ForeignFlag>& ForeignFlags();

}  // namespace baton::config

#endif  // COMMON_CONFIG_FOREIGN_FLAGS_H_
