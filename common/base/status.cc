#include "common/base/status.h"

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"

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

}  // namespace baton
