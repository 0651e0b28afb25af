#include "services/router/http/request_fields.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/base/strings.h"

namespace baton::router {
namespace {

constexpr size_t kWarningsLimit = 32;
constexpr size_t kShownNameBytes = 64;

bool Has(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

const FieldTable::Unsupported* FindUnsupported(const FieldTable& table, const std::string& name) {
  const auto entry = std::find_if(table.unsupported.begin(), table.unsupported.end(),
                                  [&](const auto& known) { return known.name == name; });
  return entry == table.unsupported.end() ? nullptr : &*entry;
}

absl::Status Refuse(const std::string& path, const FieldTable::Unsupported& field) {
  std::string message = "is not supported by this server";
  if (!field.advice.empty()) {
    absl::StrAppend(&message, "; ", field.advice);
  } else if (field.harmless.empty()) {
    absl::StrAppend(&message, "; leave it out");
  } else {
    absl::StrAppend(&message, "; only ");
    for (size_t i = 0; i < field.harmless.size(); ++i) {
      absl::StrAppend(&message, i == 0 ? "" : " or ", field.harmless[i].dump());
    }
    absl::StrAppend(&message, " is");
  }
  return InvalidField(path, message);
}

std::string UnknownMessage(const FieldTable& table, const std::string& name) {
  std::vector<std::string> candidates = table.read;
  candidates.insert(candidates.end(), table.harmless.begin(), table.harmless.end());
  for (const auto& field : table.unsupported) candidates.push_back(field.name);
  return absl::StrCat("is not a field of ", table.owner, DidYouMean(name, candidates));
}

}  // namespace

absl::Status CheckFields(const Fields& fields, const FieldTable& table, UnknownFields unknown,
                         std::vector<std::string>& warnings) {
  for (const auto& [name, value] : fields.object().items()) {
    if (value.is_null() || Has(table.read, name) || Has(table.harmless, name)) continue;
    if (const auto* field = FindUnsupported(table, name)) {
      const auto& harmless = field->harmless;
      if (std::find(harmless.begin(), harmless.end(), value) != harmless.end()) continue;
      return Refuse(fields.Path(name), *field);
    }
    const std::string shown = fields.Path(name.substr(0, kShownNameBytes));
    const std::string message = UnknownMessage(table, name.substr(0, kShownNameBytes));
    if (unknown == UnknownFields::kRefuse) return InvalidField(shown, message);
    if (warnings.size() < kWarningsLimit) {
      warnings.push_back(absl::StrCat(shown, ": ", message, "; it was ignored"));
    }
  }
  return absl::OkStatus();
}

}  // namespace baton::router
