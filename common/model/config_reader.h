// Typed, bounded access to the keys of a JSON object; every error names the key and the file.
#ifndef COMMON_MODEL_CONFIG_READER_H_
#define COMMON_MODEL_CONFIG_READER_H_

#include <initializer_list>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace baton {

// A view of `object`, which must outlive it. `prefix` names a nested object ("rope_scaling.").
class ConfigReader {
 public:
  ConfigReader(const nlohmann::json& object, std::string file, std::string prefix = "")
      : object_(object), file_(std::move(file)), prefix_(std::move(prefix)) {}

  // The key's value; nullptr when it is missing or null, which Hugging Face treats alike.
  const nlohmann::json* Find(const char* key) const;
  bool Has(const char* key) const { return Find(key) != nullptr; }
  bool HasKey(const char* key) const { return object_.contains(key); }  // Even if it is null.

  // A view of the object that the key has.
  ConfigReader Inside(const char* key) const { return {*Find(key), file_, prefix_ + key + "."}; }

  // The same, or InvalidArgument if it has none; this view for "".
  absl::StatusOr<ConfigReader> Part(const char* key) const;

  // Mandatory keys. InvalidArgument when missing, of another type or outside [low, high].
  absl::StatusOr<int> Int(const char* key, int low, int high) const;
  absl::StatusOr<double> Number(const char* key, double low, double high) const;

  // Keys that have a default in Hugging Face's configuration classes.
  absl::StatusOr<int> IntOr(const char* key, int otherwise, int low, int high) const;
  absl::StatusOr<double> NumberOr(const char* key, double otherwise, double low, double high) const;
  absl::StatusOr<bool> BoolOr(const char* key, bool otherwise) const;
  absl::StatusOr<std::string> StringOr(const char* key, const std::string& otherwise) const;

  // Unimplemented when the key has a value other than null, false, `neutral`, [] or {}.
  absl::Status RefuseUnless(const char* key, double neutral, const std::string& why) const;

  // Unimplemented when the key's text, or `otherwise` without it, is none of `supported`.
  absl::Status Expect(const char* key, const std::string& otherwise,
                      std::initializer_list<const char*> supported) const;

  // InvalidArgument "FILE: \"KEY\" what".
  absl::Status Error(const char* key, const std::string& what) const;
  absl::Status Unsupported(const char* key, const std::string& what) const;

 private:
  std::string Message(const char* key, const std::string& what) const;

  const nlohmann::json& object_;
  const std::string file_;
  const std::string prefix_;
};

}  // namespace baton

#endif  // COMMON_MODEL_CONFIG_READER_H_
