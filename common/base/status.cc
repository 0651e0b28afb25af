#include "common/base/status.h"

#include <string>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/strings.h"

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
  absl::Status status = absl::InvalidArgumentError(Concat(field, ": ", message));
  status.SetPayload(kFieldPayload, absl::Cord(ToAbsl(field)));
  return status;
}

std::optional<std::string> FieldOf(const absl::Status& status) {
  return PayloadOf(status, kFieldPayload);
}

absl::Status WithLeg(absl::Status status, std::string_view leg, std::string_view instance) {
  if (status.ok()) return status;
  status.SetPayload(kLegPayload, absl::Cord(ToAbsl(leg)));
  status.SetPayload(kInstancePayload, absl::Cord(ToAbsl(instance)));
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
  absl::Status annotated(status.code(), Concat(context, ": ", status.message()));
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

constexpr char kDrainPayload[] = "baton.dev/drain";              // Milliseconds, in decimal.
constexpr char kOverloadPayload[] = "baton.dev/overload";        // Milliseconds, in decimal.
constexpr char kUnconnectedPayload[] = "baton.dev/unconnected";  // Empty.

absl::Status WithMillis(absl::Status status, const char* url, int64_t ms) {
  if (!status.ok()) status.SetPayload(url, absl::Cord(absl::StrCat(ms)));
  return status;
}

int64_t MillisOf(const absl::Status& status, const char* url) {
  int64_t ms = 0;
  const std::optional<std::string> payload = PayloadOf(status, url);
  return payload.has_value() && absl::SimpleAtoi(*payload, &ms) ? ms : 0;
}

absl::Status Marked(absl::Status status, const char* url) {
  if (!status.ok()) status.SetPayload(url, absl::Cord());
  return status;
}

}  // namespace

absl::Status EndedByDrain(absl::Status status, int64_t retry_after_ms) {
  return WithMillis(std::move(status), kDrainPayload, retry_after_ms);
}

bool IsEndedByDrain(const absl::Status& status) { return RetryAfterMsOf(status) > 0; }

int64_t RetryAfterMsOf(const absl::Status& status) { return MillisOf(status, kDrainPayload); }

absl::Status Overloaded(absl::Status status, int64_t retry_after_ms) {
  return WithMillis(std::move(status), kOverloadPayload, retry_after_ms);
}

bool IsOverloaded(const absl::Status& status) { return MillisOf(status, kOverloadPayload) > 0; }

absl::Status Unconnected(absl::Status status) {
  return Marked(std::move(status), kUnconnectedPayload);
}

bool IsUnconnected(const absl::Status& status) {
  return status.GetPayload(kUnconnectedPayload).has_value();
}

int64_t RetryHintMsOf(const absl::Status& status) {
  const int64_t overload_ms = MillisOf(status, kOverloadPayload);
  return overload_ms > 0 ? overload_ms : RetryAfterMsOf(status);
}

}  // namespace baton
