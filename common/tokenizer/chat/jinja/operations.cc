#include "common/tokenizer/chat/jinja/operations.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/base/status.h"
#include "common/base/strings.h"
#include "common/tokenizer/chat/jinja/format.h"
#include "common/tokenizer/chat/jinja/strings.h"

namespace baton::jinja {
namespace {

using Kind = Value::Kind;

absl::Status TooLarge() {
  return absl::InvalidArgumentError("an integer does not fit into 64 bits");
}

absl::Status DivisionByZero() { return absl::InvalidArgumentError("division by zero"); }

absl::StatusOr<int64_t> Power(int64_t base, int64_t exponent) {
  int64_t power = 1;
  while (exponent > 0) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(power, base, &power)) return TooLarge();
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) return TooLarge();
  }
  return power;
}

int64_t FloorDivide(int64_t left, int64_t right) {
  const int64_t quotient = left / right;
  return left % right != 0 && (left < 0) != (right < 0) ? quotient - 1 : quotient;
}

absl::StatusOr<Value> IntegerArithmetic(std::string_view op, int64_t left, int64_t right) {
  int64_t result = 0;
  bool overflow = false;
  if (op == "+") {
    overflow = __builtin_add_overflow(left, right, &result);
  } else if (op == "-") {
    overflow = __builtin_sub_overflow(left, right, &result);
  } else if (op == "*") {
    overflow = __builtin_mul_overflow(left, right, &result);
  } else if (op == "**") {
    if (right < 0 && left == 0) return DivisionByZero();
    if (right < 0) {
      return Value::Float(std::pow(static_cast<double>(left), static_cast<double>(right)));
    }
    BATON_ASSIGN_OR_RETURN(result, Power(left, right));
  } else if (right == 0) {
    return DivisionByZero();
  } else if (op == "/") {
    return Value::Float(static_cast<double>(left) / static_cast<double>(right));
  } else if (right == -1) {  // The smallest integer has no positive counterpart.
    if (op == "%") return Value::Int(0);
    overflow = __builtin_sub_overflow(int64_t{0}, left, &result);
  } else {
    result = FloorDivide(left, right);
    if (op == "%") result = left - result * right;
  }
  if (overflow) return TooLarge();
  return Value::Int(result);
}

absl::StatusOr<Value> FloatArithmetic(std::string_view op, double left, double right) {
  if (op == "+") return Value::Float(left + right);
  if (op == "-") return Value::Float(left - right);
  if (op == "*") return Value::Float(left * right);
  if (op == "**") {
    if (left == 0 && right < 0) return DivisionByZero();
    const double power = std::pow(left, right);
    if (std::isnan(power) && !std::isnan(left) && !std::isnan(right)) {
      return absl::InvalidArgumentError("complex numbers are not supported");
    }
    if (std::isinf(power) && std::isfinite(left) && std::isfinite(right)) {
      return absl::InvalidArgumentError("the result of ** is too large");
    }
    return Value::Float(power);
  }
  if (right == 0) return DivisionByZero();
  if (op == "/") return Value::Float(left / right);
  double remainder = std::fmod(left, right);
  if (remainder != 0 && (remainder < 0) != (right < 0)) remainder += right;
  if (op == "%") return Value::Float(remainder == 0 ? std::copysign(0.0, right) : remainder);
  double quotient = (left - remainder) / right;
  if (quotient != 0) {
    const double whole = std::floor(quotient);
    quotient = quotient - whole > 0.5 ? whole + 1 : whole;
  } else {
    quotient = std::copysign(0.0, left / right);
  }
  return Value::Float(quotient);
}

absl::StatusOr<Value> Repeat(const Value& value, int64_t times, Budget& budget) {
  times = std::max<int64_t>(times, 0);
  const size_t unit = value.IsString() ? value.text().size() : value.items().size() * sizeof(Value);
  size_t bytes = 0;
  if (__builtin_mul_overflow(unit, static_cast<size_t>(times), &bytes)) bytes = SIZE_MAX;
  BATON_RETURN_IF_ERROR(budget.Work(bytes));
  if (unit == 0) times = 0;
  if (value.IsString()) {
    Text text;
    for (int64_t i = 0; i < times; ++i) text.Append(value.text());
    return Value::String(std::move(text));
  }
  List items;
  for (int64_t i = 0; i < times; ++i) {
    items.insert(items.end(), value.items().begin(), value.items().end());
  }
  return Value::MakeSequence(value.kind(), std::move(items));
}

absl::StatusOr<Value> Add(const Value& left, const Value& right, Budget& budget) {
  if (left.IsString()) {
    Text text = left.text();
    text.Append(right.text());
    return MakeString(std::move(text), budget);
  }
  List items = left.items();
  items.insert(items.end(), right.items().begin(), right.items().end());
  BATON_RETURN_IF_ERROR(budget.Work(items.size() * sizeof(Value)));
  return Value::MakeSequence(left.kind(), std::move(items));
}

int OrderOf(double left, double right) { return left < right ? -1 : left > right ? 1 : 0; }

size_t ComparedBytes(const Value& value) {
  if (value.IsString()) return value.text().size();
  const int64_t length = LengthOf(value).value_or(1);
  return static_cast<size_t>(length) * sizeof(Value) * static_cast<size_t>(1 + value.depth());
}

}  // namespace

absl::Status BadOperands(std::string_view op, const Value& left, const Value& right) {
  for (const Value* value : {&left, &right}) {
    if (value->IsUndefined()) return absl::InvalidArgumentError(value->why_undefined());
  }
  return absl::InvalidArgumentError(Concat("unsupported operand types for ", op, ": '",
                                           TypeName(left), "' and '", TypeName(right), "'"));
}

bool IsTrue(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
    case Kind::kInt:
    case Kind::kFloat:
      return value.float_value() != 0;
    case Kind::kString:
      return !value.text().empty();
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kDict:
      return LengthOf(value) != 0;
    default:
      return true;
  }
}

bool Equals(const Value& left, const Value& right) {
  if (left.IsNumber() && right.IsNumber()) {
    if (left.IsInteger() && right.IsInteger()) return left.int_value() == right.int_value();
    return left.float_value() == right.float_value();
  }
  if (left.kind() != right.kind()) return false;
  switch (left.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return true;
    case Kind::kString:
      return left.str() == right.str();
    case Kind::kList:
    case Kind::kTuple:
      return left.SameAs(right) || std::equal(left.items().begin(), left.items().end(),
                                              right.items().begin(), right.items().end(), Equals);
    case Kind::kDict: {
      if (left.dict().size() != right.dict().size()) return false;
      for (const Dict::Entry& entry : left.dict().entries()) {
        const Value* other = right.dict().Find(entry.key);
        if (other == nullptr || !Equals(entry.value, *other)) return false;
      }
      return true;
    }
    default:
      return left.SameAs(right);
  }
}

absl::StatusOr<int> Order(std::string_view op, const Value& left, const Value& right) {
  if (left.IsInteger() && right.IsInteger()) {
    const int64_t a = left.int_value();
    const int64_t b = right.int_value();
    return a < b ? -1 : a > b ? 1 : 0;
  }
  if (left.IsNumber() && right.IsNumber()) return OrderOf(left.float_value(), right.float_value());
  if (left.IsString() && right.IsString()) return left.str().compare(right.str());
  if (left.IsSequence() && left.kind() == right.kind()) {
    const List& a = left.items();
    const List& b = right.items();
    for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
      if (!Equals(a[i], b[i])) return Order(op, a[i], b[i]);
    }
    return a.size() < b.size() ? -1 : a.size() > b.size() ? 1 : 0;
  }
  return BadOperands(op, left, right);
}

absl::StatusOr<bool> Compare(std::string_view op, const Value& left, const Value& right,
                             Budget& budget) {
  if (op == "in") return Contains(right, left, budget);
  if (op == "not in") {
    BATON_ASSIGN_OR_RETURN(const bool contains, Contains(right, left, budget));
    return !contains;
  }
  BATON_RETURN_IF_ERROR(budget.Work(std::min(ComparedBytes(left), ComparedBytes(right))));
  if (op == "==") return Equals(left, right);
  if (op == "!=") return !Equals(left, right);
  // NaN is neither below, nor equal, nor above.
  if (left.IsNumber() && right.IsNumber() &&
      (std::isnan(left.float_value()) || std::isnan(right.float_value()))) {
    return false;
  }
  BATON_ASSIGN_OR_RETURN(const int order, Order(op, left, right));
  if (op == "<") return order < 0;
  if (op == "<=") return order <= 0;
  if (op == ">") return order > 0;
  return order >= 0;
}

absl::StatusOr<bool> Contains(const Value& container, const Value& item, Budget& budget) {
  if (container.IsString()) {
    if (!item.IsString()) {
      return absl::InvalidArgumentError(
          Concat("'in <string>' requires a string on the left, got '", TypeName(item), "'"));
    }
    BATON_RETURN_IF_ERROR(budget.Work(container.text().size()));
    return container.str().find(item.str()) != std::string::npos;
  }
  if (container.Is(Kind::kDict)) {
    if (item.Is(Kind::kList) || item.Is(Kind::kDict)) {
      return absl::InvalidArgumentError(Concat("unhashable type: '", TypeName(item), "'"));
    }
    return container.dict().Find(item) != nullptr;
  }
  BATON_ASSIGN_OR_RETURN(const auto items, Iterate(container, budget));
  for (const Value& candidate : *items) {
    BATON_RETURN_IF_ERROR(budget.Step());
    BATON_RETURN_IF_ERROR(budget.Work(std::min(ComparedBytes(candidate), ComparedBytes(item))));
    if (Equals(candidate, item)) return true;
  }
  return false;
}

absl::StatusOr<Value> Arithmetic(std::string_view op, const Value& left, const Value& right,
                                 Budget& budget) {
  if (left.IsInteger() && right.IsInteger()) {
    return IntegerArithmetic(op, left.int_value(), right.int_value());
  }
  if (left.IsNumber() && right.IsNumber()) {
    return FloatArithmetic(op, left.float_value(), right.float_value());
  }
  const bool same_sequence = left.kind() == right.kind() && (left.IsString() || left.IsSequence());
  if (op == "+" && same_sequence) return Add(left, right, budget);
  const auto repeats = [](const Value& value, const Value& times) {
    return (value.IsString() || value.IsSequence()) && times.IsInteger();
  };
  if (op == "*" && repeats(left, right)) return Repeat(left, right.int_value(), budget);
  if (op == "*" && repeats(right, left)) return Repeat(right, left.int_value(), budget);
  if (op == "%" && left.IsString()) {
    BATON_ASSIGN_OR_RETURN(Text text, FormatPercent(left.text(), right, budget));
    return MakeString(std::move(text), budget);
  }
  return BadOperands(op, left, right);
}

absl::StatusOr<Value> Negate(const Value& value) {
  if (value.Is(Kind::kFloat)) return Value::Float(-value.float_value());
  if (value.IsInteger()) return IntegerArithmetic("-", 0, value.int_value());
  return BadOperands("unary -", value, value);
}

std::optional<int64_t> LengthOf(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return 0;
    case Kind::kString:
      return LengthInCharacters(value.str());
    case Kind::kList:
    case Kind::kTuple:
      return static_cast<int64_t>(value.items().size());
    case Kind::kDict:
      return static_cast<int64_t>(value.dict().size());
    case Kind::kLoop:
      return static_cast<int64_t>(value.loop().items->size());
    default:
      return std::nullopt;
  }
}

absl::StatusOr<std::shared_ptr<const List>> Iterate(const Value& value, Budget& budget) {
  if (value.IsSequence()) return value.items_ref();
  auto items = std::make_shared<List>();
  if (value.Is(Kind::kDict)) {
    BATON_RETURN_IF_ERROR(budget.Work(value.dict().size() * sizeof(Value)));
    for (const Dict::Entry& entry : value.dict().entries()) items->push_back(entry.key);
  } else if (value.IsString()) {
    const std::vector<size_t> offsets = CharacterOffsets(value.str());
    BATON_RETURN_IF_ERROR(budget.Work(offsets.size() * (sizeof(Value) + sizeof(Text))));
    for (size_t i = 0; i + 1 < offsets.size(); ++i) {
      items->push_back(Value::String(value.text().Slice(offsets[i], offsets[i + 1])));
    }
  } else if (!value.IsUndefined()) {
    return absl::InvalidArgumentError(Concat("'", TypeName(value), "' object is not iterable"));
  }
  return std::shared_ptr<const List>(std::move(items));
}

absl::StatusOr<Value> MakeString(Text text, Budget& budget) {
  BATON_RETURN_IF_ERROR(
      budget.Work(text.size() + sizeof(Text) + text.client_ranges().size() * sizeof(ByteRange)));
  return Value::String(std::move(text));
}

absl::StatusOr<Value> MakeList(List items, Budget& budget) {
  BATON_RETURN_IF_ERROR(budget.Work((items.size() + 1) * sizeof(Value)));
  return Value::MakeList(std::move(items));
}

}  // namespace baton::jinja
