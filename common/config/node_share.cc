#include "common/config/node_share.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/config/mode.h"
#include "common/net/host.h"

namespace baton::config {
namespace {

// No packet goes there; a way to the host is the same for every port.
constexpr int kNoPort = 9;

// Processes in the chain or in the decode service.
int64_t GroupProcesses(const v1::Options& options) { return options.pp_size() * options.tp_size(); }

std::string GroupText(const v1::Options& options) {
  return absl::StrCat(IsDecode(options) ? "of a decode service" : "of a chain",
                      ": pp_size = ", options.pp_size(), " times tp_size = ", options.tp_size());
}

absl::Status CheckNodeless(const v1::Options& options) {
  if (options.node_rank() >= 0) {
    return InvalidField("node_rank", absl::StrCat("got ", options.node_rank(),
                                                  ", and nothing says of how many nodes; give "
                                                  "--nnodes as well"));
  }
  if (!options.dist_init_addr().empty()) {
    return InvalidField("dist_init_addr",
                        absl::StrCat("got '", options.dist_init_addr(),
                                     "', where the nodes of --nnodes meet, and that is not given; "
                                     "--nnodes=1 is a chain, or a decode service, on this machine "
                                     "alone"));
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<StageRank> PlacesHere(const v1::Options& options) {
  if (!IsNode(options)) return {{options.pp_rank(), options.tp_rank()}};
  const int64_t count = GroupProcesses(options) / options.nnodes();
  const int64_t first = options.node_rank() * count;
  std::vector<StageRank> places;
  for (int64_t index = first; index < first + count; ++index) {
    places.push_back({index / options.tp_size(), index % options.tp_size()});
  }
  return places;
}

absl::Status CheckNode(const v1::Options& options) {
  if (!IsNode(options)) return CheckNodeless(options);
  const int64_t nodes = options.nnodes();
  if (options.disaggregation_mode().empty()) {
    return InvalidField("nnodes", absl::StrCat("got ", nodes,
                                               "; the nodes are a chain's or a decode service's, "
                                               "which --disaggregation-mode tells apart"));
  }
  if (options.node_rank() < 0) {
    return InvalidField(
        "node_rank", absl::StrCat("required beside nnodes = ", nodes, ": which of the nodes 0 to ",
                                  nodes - 1, " is this one?"));
  }
  if (options.node_rank() >= nodes) {
    return InvalidField("node_rank", absl::StrCat("got ", options.node_rank(),
                                                  "; expected less than nnodes = ", nodes));
  }
  if (GroupProcesses(options) % nodes != 0) {
    return InvalidField("nnodes",
                        absl::StrCat("got ", nodes, ", which does not divide the ",
                                     GroupProcesses(options), " processes ", GroupText(options)));
  }
  if (options.dist_init_addr().empty()) return absl::OkStatus();
  return MeetingAddress(options.dist_init_addr()).status();
}

absl::StatusOr<std::string> MeetingAddress(const std::string& dist_init_addr) {
  const auto address = net::SplitHostPort(dist_init_addr);
  if (address.ok() && address->second != 0) return dist_init_addr;
  if (address.ok()) {
    return InvalidField("dist_init_addr", absl::StrCat("got '", dist_init_addr,
                                                       "'; expected a port from 1 to 65535"));
  }
  std::string host = dist_init_addr;
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  const bool named = std::all_of(host.begin(), host.end(), [](unsigned char c) {
    return absl::ascii_isalnum(c) || c == '.' || c == '-' || c == '_';
  });
  if (host.empty() || !(named || net::IsIpv6(host))) {
    return InvalidField("dist_init_addr", absl::StrCat("got '", dist_init_addr,
                                                       "'; expected HOST or HOST:PORT, IPv6 "
                                                       "addresses with a port in brackets"));
  }
  return net::JoinHostPort(host, kNoPort);
}

std::string GroupOfAddress(const std::string& dist_init_addr) {
  std::string name;
  for (const char letter : dist_init_addr) {
    if (letter == '[' || letter == ']') continue;  // Brackets of IPv6 addresses.
    const bool fits = absl::ascii_isalnum(static_cast<unsigned char>(letter)) || letter == '.' ||
                      letter == '_' || letter == '-';
    name.push_back(fits ? letter : '-');
  }
  return name;
}

}  // namespace baton::config
