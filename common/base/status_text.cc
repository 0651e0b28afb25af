#include "common/base/status_text.h"

#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"

namespace baton {

std::string DescribeStatus(const absl::Status& status) {
  if (status.ok()) return "OK";
  std::string text = absl::StrCat(absl::StatusCodeToString(status.code()), ": ", status.message());
  const auto named = [&status](const std::string& what) {
    return what.empty() || absl::StrContains(status.message(), what);
  };
  const std::string leg = LegOf(status).value_or("");
  const std::string instance = InstanceOf(status).value_or("");
  std::vector<std::string> more;
  if (!named(leg)) more.push_back(leg + " leg");
  if (!named(instance)) more.push_back(instance);
  if (!more.empty()) absl::StrAppend(&text, " (", absl::StrJoin(more, ", "), ")");
  return text;
}

}  // namespace baton
