#include "common/model/config_reader.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"

namespace baton {

using Json = nlohmann::json;

const Json* ConfigReader::Find(const char* key) const {
  const auto it = object_.find(key);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

absl::StatusOr<ConfigReader> ConfigReader::Part(const char* key) const {
  if (*key == '\0') return *this;
  const Json* value = Find(key);
  if (value == nullptr) return Error(key, "is missing; it is mandatory");
  if (!value->is_object()) return Error(key, "must be an object");
  return Inside(key);
}

absl::StatusOr<int> ConfigReader::Int(const char* key, int low, int high) const {
  const Json* value = Find(key);
  if (value == nullptr) return Error(key, "is missing; it is mandatory");
  if (!value->is_number_integer()) {
    return Error(key, absl::StrCat("must be an integer, got ", value->dump()));
  }
  const bool too_large = value->is_number_unsigned() &&
                         value->get<uint64_t>() > static_cast<uint64_t>(std::max(high, 0));
  if (too_large || value->get<int64_t>() < low || value->get<int64_t>() > high) {
    return Error(key,
                 absl::StrCat("must be between ", low, " and ", high, ", got ", value->dump()));
  }
  return value->get<int>();
}

absl::StatusOr<double> ConfigReader::Number(const char* key, double low, double high) const {
  const Json* value = Find(key);
  if (value == nullptr) return Error(key, "is missing; it is mandatory");
  if (!value->is_number()) {
    return Error(key, absl::StrCat("must be a number, got ", value->dump()));
  }
  const double number = value->get<double>();
  if (!std::isfinite(number) || number < low || number > high) {
    return Error(key,
                 absl::StrCat("must be between ", low, " and ", high, ", got ", value->dump()));
  }
  return number;
}

absl::StatusOr<int> ConfigReader::IntOr(const char* key, int otherwise, int low, int high) const {
  if (!Has(key)) return otherwise;
  return Int(key, low, high);
}

absl::StatusOr<double> ConfigReader::NumberOr(const char* key, double otherwise, double low,
                                              double high) const {
  if (!Has(key)) return otherwise;
  return Number(key, low, high);
}

absl::StatusOr<bool> ConfigReader::BoolOr(const char* key, bool otherwise) const {
  const Json* value = Find(key);
  if (value == nullptr) return otherwise;
  if (!value->is_boolean()) {
    return Error(key, absl::StrCat("must be true or false, got ", value->dump()));
  }
  return value->get<bool>();
}

absl::StatusOr<std::string> ConfigReader::StringOr(const char* key,
                                                   const std::string& otherwise) const {
  const Json* value = Find(key);
  if (value == nullptr) return otherwise;
  if (!value->is_string()) {
    return Error(key, absl::StrCat("must be a string, got ", value->dump()));
  }
  return value->get<std::string>();
}

absl::Status ConfigReader::Expect(const char* key, const std::string& otherwise,
                                  std::initializer_list<const char*> supported) const {
  BATON_ASSIGN_OR_RETURN(const std::string text, StringOr(key, otherwise));
  if (std::ranges::find(supported, text) != supported.end()) return absl::OkStatus();
  return Unsupported(key, absl::StrCat("is \"", text, "\"; supported is \"",
                                       absl::StrJoin(supported, "\" or \""), "\""));
}

absl::Status ConfigReader::RefuseUnless(const char* key, double neutral,
                                        const std::string& why) const {
  const Json* value = Find(key);
  if (value == nullptr) return absl::OkStatus();
  if (value->is_boolean() && !value->get<bool>()) return absl::OkStatus();
  if (value->is_number() && value->get<double>() == neutral) return absl::OkStatus();
  if (value->is_structured() && value->empty()) return absl::OkStatus();
  return Unsupported(key, why);
}

absl::Status ConfigReader::Error(const char* key, const std::string& what) const {
  return absl::InvalidArgumentError(Message(key, what));
}

absl::Status ConfigReader::Unsupported(const char* key, const std::string& what) const {
  return absl::UnimplementedError(Message(key, what));
}

std::string ConfigReader::Message(const char* key, const std::string& what) const {
  return absl::StrCat(file_, ": \"", prefix_, key, "\" ", what);
}

}  // namespace baton
