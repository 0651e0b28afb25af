#include "common/base/status.h"

#include <string>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace baton {
namespace {

constexpr char kFieldPayload[] = "baton.dev/field";
constexpr char kLegPayload[] = "baton.dev/leg";
constexpr char kInstancePayload[] = "baton.dev/instance";

std::optional<std::string> PayloadOf(const absl::Status& status, const char* url) {
  const auto payload = status.GetPayload(url);
  if (!payload.has_value()) return std::nullopt;
  return std::string(*payload);
}

}  // namespace

absl::Status InvalidField(std::string_view field, std::string_view message) {
  absl::Status status =
      absl::InvalidArgumentError(absl::StrCat(absl::string_view(field.data(), field.size()), ": ",
                                              absl::string_view(message.data(), message.size())));
  status.SetPayload(kFieldPayload, absl::Cord(absl::string_view(field.data(), field.size())));
  return status;
}

std::optional<std::string> FieldOf(const absl::Status& status) {
  return PayloadOf(status, kFieldPayload);
}

absl::Status WithLeg(absl::Status status, std::string_view leg, std::string_view instance) {
  if (status.ok()) return status;
  status.SetPayload(kLegPayload, absl::Cord(absl::string_view(leg.data(), leg.size())));
  status.SetPayload(kInstancePayload,
                    absl::Cord(absl::string_view(instance.data(), instance.size())));
  return status;
}

std::optional<std::string> LegOf(const absl::Status& status) {
  return PayloadOf(status, kLegPayload);
}

std::optional<std::string> InstanceOf(const absl::Status& status) {
  return PayloadOf(status, kInstancePayload);
}

absl::Status Annotate(absl::Status status, std::string_view context) {
  if (status.ok()) return status;
  absl::Status annotated(
      status.code(),
      absl::StrCat(absl::string_view(context.data(), context.size()), ": ", status.message()));
  status.ForEachPayload([&annotated](absl::string_view url, const absl::Cord& payload) {
    annotated.SetPayload(url, payload);
  });
  return annotated;
}

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

namespace {

constexpr char kDrainPayload[] = "baton.dev/drain";  // Milliseconds, in decimal.

}  // namespace

absl::Status EndedByDrain(absl::Status status, int64_t retry_after_ms) {
  if (!status.ok()) status.SetPayload(kDrainPayload, absl::Cord(absl::StrCat(retry_after_ms)));
  return status;
}

bool IsEndedByDrain(const absl::Status& status) { return RetryAfterMsOf(status) > 0; }

int64_t RetryAfterMsOf(const absl::Status& status) {
  int64_t retry_after_ms = 0;
  const auto payload = status.GetPayload(kDrainPayload);
  const bool read = payload.has_value() && absl::SimpleAtoi(std::string(*payload), &retry_after_ms);
  return read ? retry_after_ms : 0;
}

namespace {

constexpr char kOverloadPayload[] = "baton.dev/overload";        // Milliseconds, in decimal.
constexpr char kRetractedPayload[] = "baton.dev/retracted";      // Empty.
constexpr char kUnconnectedPayload[] = "baton.dev/unconnected";  // Empty.

int64_t HintMsOf(const absl::Status& status) {
  int64_t retry_after_ms = 0;
  const auto payload = status.GetPayload(kOverloadPayload);
  const bool read = payload.has_value() && absl::SimpleAtoi(std::string(*payload), &retry_after_ms);
  return read ? retry_after_ms : 0;
}

}  // namespace

absl::Status Overloaded(absl::Status status, int64_t retry_after_ms) {
  if (!status.ok()) status.SetPayload(kOverloadPayload, absl::Cord(absl::StrCat(retry_after_ms)));
  return status;
}

bool IsOverloaded(const absl::Status& status) { return HintMsOf(status) > 0; }

absl::Status Retracted(absl::Status status) {
  if (!status.ok()) status.SetPayload(kRetractedPayload, absl::Cord());
  return status;
}

bool IsRetracted(const absl::Status& status) {
  return status.GetPayload(kRetractedPayload).has_value();
}

absl::Status Unconnected(absl::Status status) {
  if (!status.ok()) status.SetPayload(kUnconnectedPayload, absl::Cord());
  return status;
}

bool IsUnconnected(const absl::Status& status) {
  return status.GetPayload(kUnconnectedPayload).has_value();
}

int64_t RetryHintMsOf(const absl::Status& status) {
  const int64_t overload_ms = HintMsOf(status);
  return overload_ms > 0 ? overload_ms : RetryAfterMsOf(status);
}

}  // namespace baton
