#include "common/config/mode_rules.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/config/foreign_flags.h"
#include "common/config/mode.h"

namespace baton::config {
namespace {

using v1::OptionSpec;

constexpr char kMode[] = "disaggregation_mode";

// Which worker of a group `validate` is asked about; a cluster on this machine has all of them.
constexpr const char* kPlaces[] = {"nnodes",  "node_rank", "dist_init_addr",
                                   "pp_rank", "tp_rank",   "prefill_index"};

// Options with the given mode; "" if none is.
absl::StatusOr<v1::Options> GivenMode(const Assignments& assignments) {
  v1::Options options;
  const auto found = assignments.find(kMode);
  if (found == assignments.end()) return options;
  BATON_RETURN_IF_ERROR(SetOption(*FindByName(kMode), found->second.text,
                                  SourceText(found->second.source), &options));
  return options;
}

absl::Status RefuseMode(const std::string& mode, const Assignments& assignments,
                        const std::string& why) {
  return InvalidField(kMode, absl::StrCat("got ", mode, ", and ", why, " (set by ",
                                          SourceText(assignments.at(kMode).source), ")"));
}

}  // namespace

bool WasSet(const ParsedOptions& parsed, const std::string& name) {
  const auto source = parsed.sources.find(name);
  return source != parsed.sources.end() && source->second.kind != OptionSource::Kind::kDefault;
}

Role CheckedRole(const ParsedOptions& options) {
  if (options.role != OptionSpec::VALIDATE) return options.role;
  const Role role = ModeRole(options.values);
  if (role != OptionSpec::COLOCATED) return role;
  const bool placed = std::any_of(std::begin(kPlaces), std::end(kPlaces),
                                  [&](const char* name) { return WasSet(options, name); });
  return placed ? role : OptionSpec::UP;
}

absl::StatusOr<Role> GivenWorkerRole(const Assignments& assignments) {
  BATON_ASSIGN_OR_RETURN(const v1::Options given, GivenMode(assignments));
  return given.disaggregation_mode().empty() ? OptionSpec::COLOCATED : ModeRole(given);
}

absl::Status CheckModeOf(Command command, const Assignments& assignments) {
  const bool cluster = command == Command::kUp || command == Command::kServe;
  if (!cluster && command != Command::kSimulate) return absl::OkStatus();
  BATON_ASSIGN_OR_RETURN(const v1::Options given, GivenMode(assignments));
  const std::string& mode = given.disaggregation_mode();
  if (mode.empty() || mode == "null") return absl::OkStatus();
  if (command == Command::kSimulate) {
    // A file may be a worker's, too.
    if (assignments.at(kMode).source.kind != OptionSource::Kind::kFlag) return absl::OkStatus();
    return RefuseMode(mode, assignments,
                      "simulate runs a cluster: null for chains that also decode, no mode for "
                      "prefill chains and decode services apart");
  }
  if (command == Command::kServe) {
    return RefuseMode(mode, assignments,
                      "serve starts chains that also decode (null); `baton up` starts prefill "
                      "chains and decode services apart");
  }
  return RefuseMode(mode, assignments,
                    "that is one worker, while up starts a cluster: null for chains that also "
                    "decode, no mode for prefill chains and decode services apart");
}

absl::Status CheckContradiction(const Option& option, const Assignment& assignment, Role role) {
  const auto refuse = [&](const char* mode, const char* why) {
    return InvalidField(option.name, absl::StrCat("got '", assignment.text, "' from ",
                                                  SourceText(assignment.source), ", and ", kMode,
                                                  " = ", mode, " ", why));
  };
  if (role == OptionSpec::COLOCATED &&
      (option.name == "decode_id" || option.name == "decode_index")) {
    return refuse("null", "is a chain that decodes by itself; it is no decode service");
  }
  if (option.name != "target_itl_ms" && option.name != "decode_max_wait_ms") {
    return absl::OkStatus();
  }
  if (role == OptionSpec::DECODE) {
    return refuse("decode", "computes no prompts beside its tokens; only null does");
  }
  if (role == OptionSpec::PREFILL) {
    return refuse("prefill", "decodes nothing beside its prompts; only null does");
  }
  return absl::OkStatus();
}

absl::Status CheckColocatedCluster(ParsedOptions* parsed) {
  const Role role = CheckedRole(*parsed);
  if (role != OptionSpec::UP && role != OptionSpec::SIMULATE) return absl::OkStatus();
  const auto note = [parsed](const char* name, const char* whom) {
    const auto source = parsed->sources.find(name);
    if (source == parsed->sources.end() || source->second.kind != OptionSource::Kind::kFlag) return;
    parsed->notes.push_back(
        absl::StrCat(source->second.where, ": nothing for ", whom, "; ", ElsewhereText(name)));
  };
  if (!IsColocated(parsed->values)) {
    note("pp_max_micro_batch_size", "chains that do not decode");
    note("schedule_conservativeness", "chains that do not decode");
    return absl::OkStatus();
  }
  for (const char* name :
       {"decodes", "decode_pp_size", "decode_pp_layer_partition", "decode_tp_size"}) {
    if (!WasSet(*parsed, name)) continue;
    return InvalidField(
        name, absl::StrCat("got ", ValueText(*FindByName(name), parsed->values), ", and ", kMode,
                           " = null has no decode services: its chains decode, and "
                           "--prefill-chains says how many there are"));
  }
  note("max_prefill_requests", "colocated chains");
  return absl::OkStatus();
}

absl::Status CheckColocated(const v1::Options& options) {
  const int64_t running = options.max_running_requests();
  if (IsColocated(options) && running > kMaxColocatedRequests) {
    return InvalidField("max_running_requests",
                        absl::StrCat("got ", running, ", and ", kMode, " = null takes at most ",
                                     kMaxColocatedRequests, ", which a plan can hold"));
  }
  const int64_t wait_ms = options.decode_max_wait_ms();
  const int64_t itl_ms = options.target_itl_ms();
  if (!IsColocated(options)) {
    if (wait_ms == 0 && itl_ms == 0) return absl::OkStatus();
    return InvalidField(
        itl_ms > 0 ? "target_itl_ms" : "decode_max_wait_ms",
        absl::StrCat("got ", itl_ms > 0 ? itl_ms : wait_ms,
                     ", which bounds the plans of colocated chains; it takes ", kMode, " = null"));
  }
  if (itl_ms > 0 && wait_ms > itl_ms) {
    return InvalidField("decode_max_wait_ms",
                        absl::StrCat("got ", wait_ms, ", and target_itl_ms = ", itl_ms,
                                     ": a token that may wait for longer than tokens may be apart; "
                                     "give less, or one of them"));
  }
  if (options.pp_max_micro_batch_size() > running) {
    return InvalidField("pp_max_micro_batch_size",
                        absl::StrCat("got ", options.pp_max_micro_batch_size(),
                                     ", and max_running_requests = ", running,
                                     ": one plan cannot have more requests than the chain"));
  }
  return absl::OkStatus();
}

}  // namespace baton::config
