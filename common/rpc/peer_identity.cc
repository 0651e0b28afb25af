#include "common/rpc/peer_identity.h"

#include <algorithm>
#include <array>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace baton::rpc {
namespace {

constexpr std::array kRoles = {PeerRole::kRouter, PeerRole::kPrefill, PeerRole::kDecode,
                               PeerRole::kOperator};
constexpr char kScheme[] = "baton://";

struct Rule {
  std::string_view method;  // With a / at its end: each of the service.
  std::array<std::optional<PeerRole>, 2> callers;
};

// The arrows of docs/design.md.
constexpr std::array<Rule, 12> kRules = {{
    {"/baton.v1.Cluster/Lease", {PeerRole::kPrefill, PeerRole::kDecode}},
    {"/baton.v1.Cluster/Find", {PeerRole::kPrefill, PeerRole::kDecode}},
    {"/baton.v1.Cluster/Drain", {PeerRole::kOperator}},
    {"/baton.v1.Cluster/List", {PeerRole::kOperator}},
    {"/baton.v1.Worker/", {PeerRole::kRouter}},
    {"/baton.v1.Prefill/Link", {PeerRole::kPrefill}},
    {"/baton.v1.Prefill/", {PeerRole::kRouter}},
    {"/baton.v1.Decode/", {PeerRole::kRouter}},
    {"/baton.v1.Relays/", {PeerRole::kRouter}},
    {"/baton.v1.DecodeRanks/", {PeerRole::kDecode}},
}};

}  // namespace

const char* PeerRoleName(PeerRole role) {
  switch (role) {
    case PeerRole::kRouter:
      return "router";
    case PeerRole::kPrefill:
      return "prefill";
    case PeerRole::kDecode:
      return "decode";
    case PeerRole::kOperator:
      return "operator";
  }
  return "";
}

std::string IdentityUri(const PeerIdentity& identity) {
  return absl::StrCat(kScheme, PeerRoleName(identity.role), identity.instance.empty() ? "" : "/",
                      identity.instance);
}

std::optional<PeerIdentity> ParseIdentity(std::string_view uri) {
  absl::string_view rest(uri.data(), uri.size());
  if (!absl::ConsumePrefix(&rest, kScheme)) {
    return std::nullopt;
  }
  const size_t slash = rest.find('/');
  const absl::string_view name = rest.substr(0, slash);
  const auto role = std::find_if(kRoles.begin(), kRoles.end(), [name](PeerRole candidate) {
    return name == PeerRoleName(candidate);
  });
  if (role == kRoles.end()) return std::nullopt;
  if (slash == absl::string_view::npos) return PeerIdentity{*role, ""};
  // An empty name would be taken for any.
  if (slash + 1 == rest.size()) return std::nullopt;
  return PeerIdentity{*role, std::string(rest.substr(slash + 1))};
}

std::vector<PeerIdentity> ParseIdentities(const std::vector<std::string>& uris) {
  std::vector<PeerIdentity> identities;
  for (const std::string& uri : uris) {
    if (auto identity = ParseIdentity(uri)) identities.push_back(*std::move(identity));
  }
  return identities;
}

bool Covers(const std::vector<PeerIdentity>& proved, const PeerIdentity& claimed) {
  return std::any_of(proved.begin(), proved.end(), [&claimed](const PeerIdentity& one) {
    return one.role == claimed.role &&
           (one.instance.empty() || claimed.instance.empty() || one.instance == claimed.instance);
  });
}

std::optional<std::vector<PeerRole>> CallersOf(std::string_view method) {
  if (!method.starts_with("/baton.")) return std::nullopt;
  std::vector<PeerRole> callers;
  for (const Rule& rule : kRules) {
    const bool whole_service = rule.method.ends_with('/');
    if (whole_service ? !method.starts_with(rule.method) : method != rule.method) continue;
    for (const std::optional<PeerRole>& role : rule.callers) {
      if (role.has_value()) callers.push_back(*role);
    }
    break;
  }
  return callers;
}

}  // namespace baton::rpc
