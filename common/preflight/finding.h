// Something that a check found before anything started.
#ifndef COMMON_PREFLIGHT_FINDING_H_
#define COMMON_PREFLIGHT_FINDING_H_

#include <string>

namespace baton {

struct Finding {
  enum class Severity {
    kError,     // It can't work.
    kShortage,  // It could on a machine with more memory, or with less running.
    kWarning,   // It works, maybe not as meant.
  };
  Severity severity = Severity::kError;
  std::string option;   // The option to change: a name of config.proto.
  std::string message;  // What was found, what would do.

  bool refuses() const { return severity != Severity::kWarning; }
};

}  // namespace baton

#endif  // COMMON_PREFLIGHT_FINDING_H_
