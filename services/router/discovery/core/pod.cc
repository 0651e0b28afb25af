#include "services/router/discovery/core/pod.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/json/parse_json.h"

namespace baton::router {
namespace {

using Json = nlohmann::json;

const Json kNothing;

// Whatever is not there or of another type is as if it were empty: the API has many optional parts.
const Json& At(const Json& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  return object.is_object() && found != object.end() ? *found : kNothing;
}
std::string Text(const Json& object, const char* key) {
  const Json& value = At(object, key);
  return value.is_string() ? value.get<std::string>() : std::string();
}
int64_t Number(const Json& object, const char* key) {
  const Json& value = At(object, key);
  return value.is_number_integer() ? value.get<int64_t>() : 0;
}

Pod ReadPod(const Json& object) {
  Pod pod;
  const Json& metadata = At(object, "metadata");
  const Json& status = At(object, "status");
  pod.name = Text(metadata, "name");
  pod.uid = Text(metadata, "uid");
  pod.ip = Text(status, "podIP");
  const std::string phase = Text(status, "phase");
  pod.leaving =
      At(metadata, "deletionTimestamp").is_string() || phase == "Succeeded" || phase == "Failed";
  for (const Json& container : At(At(object, "spec"), "containers")) {
    for (const Json& port : At(container, "ports")) {
      if (Text(port, "name") != "grpc") continue;
      const int64_t number = Number(port, "containerPort");
      if (number > 0 && number <= 65535) pod.grpc_port = static_cast<int>(number);
    }
  }
  for (const Json& container : At(status, "containerStatuses")) {
    pod.restarts += Number(container, "restartCount");
  }
  return pod;
}

bool Named(const Pod& pod) { return !pod.name.empty() && !pod.uid.empty(); }

}  // namespace

absl::StatusOr<PodPage> ParsePodPage(std::string_view body) {
  BATON_ASSIGN_OR_RETURN(const Json list,
                         ParseJson(body, "the list of pods", DuplicateKeys::kKeepLast));
  PodPage page;
  page.resource_version = Text(At(list, "metadata"), "resourceVersion");
  page.continue_token = Text(At(list, "metadata"), "continue");
  const Json& items = At(list, "items");
  if (Text(list, "kind") != "PodList" || page.resource_version.empty() ||
      !(items.is_array() || items.is_null())) {
    return absl::InvalidArgumentError("the answer is no PodList with a resourceVersion");
  }
  for (const Json& item : items) {
    Pod pod = ReadPod(item);
    if (Named(pod)) page.pods.push_back(std::move(pod));
  }
  return page;
}

absl::StatusOr<PodChange> ParsePodChange(std::string_view line) {
  BATON_ASSIGN_OR_RETURN(const Json event,
                         ParseJson(line, "a watch event", DuplicateKeys::kKeepLast));
  const std::string type = Text(event, "type");
  const Json& object = At(event, "object");
  PodChange change;
  if (type == "ERROR") {
    change.type = PodChange::Type::kError;
    change.error_code = static_cast<int>(Number(object, "code"));
    change.error_message = Text(object, "message");
    return change;
  }
  change.resource_version = Text(At(object, "metadata"), "resourceVersion");
  if (change.resource_version.empty()) {
    return absl::InvalidArgumentError("a watch event has no resourceVersion");
  }
  if (type == "BOOKMARK") {
    change.type = PodChange::Type::kBookmark;
    return change;
  }
  if (type != "ADDED" && type != "MODIFIED" && type != "DELETED") {
    return absl::InvalidArgumentError(absl::StrCat("a watch event of the type '", type, "'"));
  }
  change.type = type == "DELETED" ? PodChange::Type::kDeleted : PodChange::Type::kUpsert;
  change.pod = ReadPod(object);
  if (!Named(change.pod)) return absl::InvalidArgumentError("a watch event names no pod");
  return change;
}

std::string ParseApiError(std::string_view body) {
  const absl::StatusOr<Json> status = ParseJson(body, "the error", DuplicateKeys::kKeepLast);
  return status.ok() ? Text(*status, "message") : std::string();
}

}  // namespace baton::router
