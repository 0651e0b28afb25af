// What discovery needs to know of a pod, and how the Kubernetes API tells it. JSON in, values out.
#ifndef SERVICES_ROUTER_DISCOVERY_CORE_POD_H_
#define SERVICES_ROUTER_DISCOVERY_CORE_POD_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace baton::router {

struct Pod {
  std::string name;
  std::string uid;
  std::string ip;        // Empty: it has none yet.
  int grpc_port = 0;     // The container port named "grpc"; 0: none.
  int64_t restarts = 0;  // Sum over its containers.
  bool leaving = false;  // It is being deleted, or has ended.
  bool operator==(const Pod&) const = default;
};

// A page of GET .../pods.
struct PodPage {
  std::vector<Pod> pods;
  std::string resource_version;  // Where a watch goes on.
  std::string continue_token;    // Empty: the last page.
};

// A line of a watch.
struct PodChange {
  enum class Type { kUpsert, kDeleted, kBookmark, kError };
  Type type = Type::kUpsert;
  Pod pod;                       // Not of bookmarks and errors.
  std::string resource_version;  // Not of errors.
  int error_code = 0;            // If this is an error: its HTTP status.
  std::string error_message;
};

// InvalidArgument for what is no PodList; pods without a name or uid are left out.
absl::StatusOr<PodPage> ParsePodPage(std::string_view body);
// InvalidArgument for what is no watch event.
absl::StatusOr<PodChange> ParsePodChange(std::string_view line);
// The message of a Status, as errors bring it; empty if it is none.
std::string ParseApiError(std::string_view body);

}  // namespace baton::router

#endif  // SERVICES_ROUTER_DISCOVERY_CORE_POD_H_
