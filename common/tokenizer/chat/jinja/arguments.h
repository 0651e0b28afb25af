// Arguments of built-in functions, by position or by name.
#ifndef COMMON_TOKENIZER_CHAT_JINJA_ARGUMENTS_H_
#define COMMON_TOKENIZER_CHAT_JINJA_ARGUMENTS_H_

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/tokenizer/chat/jinja/value.h"

namespace baton::jinja {

// The arguments of a call of `function`, one for each of `names`; what is not given is undefined.
class BoundArguments {
 public:
  // InvalidArgument for too many, for an unknown name, for one given twice, and if fewer than
  // `required` are there.
  static absl::StatusOr<BoundArguments> Bind(std::string_view function, const Arguments& arguments,
                                             std::initializer_list<std::string_view> names,
                                             size_t required = 0);

  const Value& operator[](size_t i) const { return values_[i]; }
  bool Has(size_t i) const { return !values_[i].IsUndefined(); }
  // InvalidArgument if it is there and of another type. None counts as not there.
  absl::StatusOr<std::optional<int64_t>> Integer(size_t i) const;
  absl::StatusOr<int64_t> Integer(size_t i, int64_t otherwise) const;
  absl::StatusOr<Text> String(size_t i, std::string_view otherwise = "") const;
  bool True(size_t i, bool otherwise) const;

 private:
  absl::Status Wrong(size_t i, std::string_view expected) const;

  std::string function_;
  std::vector<std::string> names_;
  List values_;
};

}  // namespace baton::jinja

#endif  // COMMON_TOKENIZER_CHAT_JINJA_ARGUMENTS_H_
