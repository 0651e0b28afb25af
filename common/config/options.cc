#include "common/config/options.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/config/foreign_flags.h"
#include "common/config/mode.h"
#include "common/config/mode_rules.h"
#include "common/config/node_share.h"
#include "common/config/option_sources.h"
#include "common/config/option_table.h"
#include "common/net/otlp_endpoint.h"

namespace baton::config {
namespace {

std::string ElsewhereNote(const std::string& flag, const Option& option, Role role) {
  const std::string more = ElsewhereText(option.name);
  return absl::StrCat(flag, ": nothing for ", RoleName(role), "; ",
                      more.empty() ? absl::StrCat("it is for ", RolesText(option)) : more);
}

// A flag of an option that the process does not take: one of the cluster's other processes does,
// or SGLang and vLLM have one of this name that is taken here.
absl::Status PassOver(const Option& option, const Assignment& assignment, ParsedOptions* parsed) {
  const std::string& flag = assignment.source.where;
  BATON_RETURN_IF_ERROR(CheckContradiction(option, assignment, parsed->role));
  const ForeignFlag* foreign = FindForeignFlag(option.flag);
  const bool launches = Launches(parsed->command);
  if (launches && AppliesTo(option, v1::OptionSpec::VALIDATE)) {
    parsed->notes.push_back(ElsewhereNote(flag, option, parsed->role));
    return absl::OkStatus();
  }
  if (launches && foreign != nullptr && foreign->fate == ForeignFlag::Fate::kTaken) {
    parsed->notes.push_back(absl::StrCat(flag, ": ", foreign->text));
    return absl::OkStatus();
  }
  return InvalidField(option.name,
                      absl::StrCat(flag, " is not an option of ", RoleName(parsed->role),
                                   "; it applies to ", RolesText(option)));
}

// Sets what is given and applies to the role; checks the rest as well, since a wrong value in a
// shared file is wrong whichever process reads it.
absl::Status Assign(const Assignments& assignments, ParsedOptions* parsed) {
  v1::Options other_roles;
  for (const auto& [name, assignment] : assignments) {
    const Option& option = *FindByName(name);
    const bool applies = AppliesTo(option, parsed->role);
    if (!applies && assignment.source.kind == OptionSource::Kind::kFlag) {
      BATON_RETURN_IF_ERROR(PassOver(option, assignment, parsed));
    }
    BATON_RETURN_IF_ERROR(SetOption(option, OwnValue(name, assignment.text),
                                    SourceText(assignment.source),
                                    applies ? &parsed->values : &other_roles));
    if (applies) parsed->sources[name] = assignment.source;
  }
  return absl::OkStatus();
}

void SetDefault(const Option& option, const std::string& text, ParsedOptions* parsed) {
  const absl::Status status = SetOption(option, text, "the table", &parsed->values);
  BATON_CHECK(status.ok()) << std::string(status.message());
}

// `validate` takes every option, and says of flags what the process that it is asked about would
// say. A cluster on one machine has no nodes, as with `up`.
absl::Status PassOverInValidate(ParsedOptions* parsed) {
  if (parsed->role != v1::OptionSpec::VALIDATE) return absl::OkStatus();
  const Role role = CheckedRole(*parsed);
  for (const auto& [name, source] : parsed->sources) {
    const Option& option = *FindByName(name);
    const bool ours = RolesText(option) == RoleName(v1::OptionSpec::VALIDATE);
    if (source.kind != OptionSource::Kind::kFlag || ours || AppliesTo(option, role)) continue;
    if (name == "disaggregation_mode") continue;  // It says which process that is.
    BATON_RETURN_IF_ERROR(
        CheckContradiction(option, {ValueText(option, parsed->values), source}, role));
    parsed->notes.push_back(ElsewhereNote(source.where, option, role));
  }
  if (role != v1::OptionSpec::UP) return absl::OkStatus();
  for (const char* name : {"nnodes", "node_rank", "dist_init_addr"}) {
    const Option& option = *FindByName(name);
    SetDefault(option, DefaultText(option, parsed->role), parsed);
    parsed->sources[name] = OptionSource{};
  }
  return absl::OkStatus();
}

// Options of other roles get their defaults, too, so that no field reads as an accidental 0.
void SetDefaults(ParsedOptions* parsed) {
  for (const Option& option : OptionTable()) {
    if (AppliesTo(option, parsed->role)) parsed->sources[option.name] = OptionSource{};
    const std::string text = DefaultText(option, parsed->role);
    if (!text.empty()) SetDefault(option, text, parsed);
  }
}

// Fills in what follows from other options unless it was set.
void Derive(ParsedOptions* parsed) {
  v1::Options& values = parsed->values;
  const auto derived = [parsed](const char* name, const char* from) {
    if (parsed->sources.count(name) == 0) return;
    parsed->sources[name] = {OptionSource::Kind::kDerived, from};
  };
  std::string path = values.model_path();
  if (values.tokenizer_path().empty() && !path.empty()) {
    values.set_tokenizer_path(path);
    derived("tokenizer_path", "--model-path");
  }
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  const std::string last_part = path.substr(path.rfind('/') + 1);
  if (values.served_model_name().empty() && !last_part.empty()) {
    values.set_served_model_name(last_part);
    derived("served_model_name", "--model-path");
  }
  const int64_t cap = values.max_prefill_tokens();
  if (cap != 0 && values.chunked_prefill_size() > cap) {
    values.set_chunked_prefill_size(cap / values.page_size() * values.page_size());
    derived("chunked_prefill_size", "--max-prefill-tokens");
  }
  if (values.enable_dynamic_chunking() && !WasSet(*parsed, "chunk_policy")) {
    values.set_chunk_policy("sglang");
    derived("chunk_policy", "--enable-dynamic-chunking");
  }
  // Chains and decode services share files and variables; a service of one stage has all layers.
  const auto partition = parsed->sources.find("pp_layer_partition");
  if (parsed->role == v1::OptionSpec::DECODE && values.pp_size() == 1 &&
      partition != parsed->sources.end() && partition->second.kind != OptionSource::Kind::kFlag) {
    values.clear_pp_layer_partition();
    partition->second = OptionSource{};
  }
  if (values.linear_backend() == "auto") values.set_linear_backend("native");
  const int64_t slots = values.pp_size() + std::max<int64_t>(values.pp_async_batch_depth(), 0);
  if (IsColocated(values) && values.pp_max_micro_batch_size() > 0 &&
      !WasSet(*parsed, "max_running_requests")) {
    values.set_max_running_requests(
        std::min(slots * values.pp_max_micro_batch_size(), kMaxColocatedRequests));
    derived("max_running_requests", "--pp-max-micro-batch-size");
  }
  if (values.enable_trace() && values.otlp_traces_endpoint().empty() &&
      values.otlp_traces_file().empty()) {
    values.set_otlp_traces_endpoint(net::kDefaultOtlpEndpoint);
    derived("otlp_traces_endpoint", "--enable-trace");
  }
}

// Which rank of which stage of which chain, or of which decode service, a numbered worker is.
// Orchestrators number what they start and cannot divide; a shell in every image that does was
// rejected.
absl::Status PlaceByIndex(ParsedOptions* parsed) {
  v1::Options& values = parsed->values;
  const bool decode = parsed->role == v1::OptionSpec::DECODE;
  const int64_t index = decode ? values.decode_index() : values.prefill_index();
  if (!(decode || IsChainRole(parsed->role)) || index < 0) return absl::OkStatus();
  // The place must not be said twice.
  const std::pair<const char*, int64_t> places[] = {{"pp_rank", values.pp_rank()},
                                                    {"tp_rank", values.tp_rank()}};
  for (const auto& [name, value] : places) {
    if (!WasSet(*parsed, name)) continue;
    return InvalidField(decode ? "decode_index" : "prefill_index",
                        absl::StrCat("got ", index, ", which says the worker's place, and ", name,
                                     " = ", value, " says it, too; give one of them"));
  }
  const int64_t stage_index = index / values.tp_size();
  values.set_tp_rank(index % values.tp_size());
  values.set_pp_rank(stage_index % values.pp_size());
  std::string& id = decode ? *values.mutable_decode_id() : *values.mutable_chain_id();
  absl::StrAppend(&id, "-", stage_index / values.pp_size());
  for (const char* name : {"pp_rank", "tp_rank", decode ? "decode_id" : "chain_id"}) {
    parsed->sources[name] = {OptionSource::Kind::kDerived,
                             decode ? "--decode-index" : "--prefill-index"};
  }
  return absl::OkStatus();
}

// What a node of a chain or a decode service runs, which is more than one worker's place could say,
// and what follows from the address that its nodes share.
absl::Status PlaceOnNode(ParsedOptions* parsed) {
  v1::Options& values = parsed->values;
  // As in SGLang: a group that does not say of how many nodes is on one.
  const bool place_said = WasSet(*parsed, "pp_rank") || WasSet(*parsed, "tp_rank") ||
                          WasSet(*parsed, "prefill_index") || WasSet(*parsed, "decode_index");
  if (!values.dist_init_addr().empty() && !WasSet(*parsed, "nnodes") && !place_said) {
    values.set_nnodes(1);
    parsed->sources["nnodes"] = {OptionSource::Kind::kDerived, "--dist-init-addr"};
  }
  if (!IsNode(values)) return absl::OkStatus();
  const std::pair<const char*, int64_t> places[] = {{"pp_rank", values.pp_rank()},
                                                    {"tp_rank", values.tp_rank()},
                                                    {"prefill_index", values.prefill_index()},
                                                    {"decode_index", values.decode_index()}};
  for (const auto& [name, value] : places) {
    if (!WasSet(*parsed, name)) continue;
    return InvalidField(
        "nnodes",
        absl::StrCat("got ", values.nnodes(), ", which starts all processes of a node, and ", name,
                     " = ", value, " (", SourceText(parsed->sources.at(name)),
                     ") says the place of one; give one of them"));
  }
  if (values.nnodes() == 1 && values.node_rank() == -1) {
    values.set_node_rank(0);
    parsed->sources["node_rank"] = {OptionSource::Kind::kDerived, "--nnodes"};
  }
  const bool decode = IsDecode(values);
  const char* const name = decode ? "decode_id" : "chain_id";
  if (values.dist_init_addr().empty() || WasSet(*parsed, name)) return absl::OkStatus();
  std::string& id = decode ? *values.mutable_decode_id() : *values.mutable_chain_id();
  id = GroupOfAddress(values.dist_init_addr());
  parsed->sources[name] = {OptionSource::Kind::kDerived, "--dist-init-addr"};
  return absl::OkStatus();
}

// Says where the value came from that a rule over several options refuses.
absl::Status NameSource(const absl::Status& status, const ParsedOptions& parsed) {
  const auto field = FieldOf(status);
  if (!field.has_value()) return status;
  const std::string set_by = SetByText(parsed, *field);
  if (set_by.empty()) return status;
  const std::string prefix = absl::StrCat(*field, ": ");
  std::string message(status.message());
  if (absl::StartsWith(message, prefix)) message.erase(0, prefix.size());
  return InvalidField(*field, absl::StrCat(message, set_by));
}

}  // namespace

std::string RoleName(Role role) { return absl::AsciiStrToLower(v1::OptionSpec::Role_Name(role)); }

std::string SourceText(const OptionSource& source) {
  switch (source.kind) {
    case OptionSource::Kind::kDefault:
      return "default";
    case OptionSource::Kind::kDerived:
      return absl::StrCat("derived from ", source.where);
    case OptionSource::Kind::kFile:
      return source.where;
    case OptionSource::Kind::kEnvironment:
      return absl::StrCat("variable ", source.where);
    case OptionSource::Kind::kFlag:
      return absl::StrCat("flag ", source.where);
    case OptionSource::Kind::kArgument:
      return "the argument of the command";
  }
  return "";
}

std::string SetByText(const ParsedOptions& options, const std::string& name) {
  if (!WasSet(options, name)) return "";
  return absl::StrCat(" (set by ", SourceText(options.sources.at(name)), ")");
}

absl::StatusOr<ParsedOptions> ParseOptions(Command command, const OptionInput& input) {
  ParsedOptions parsed;
  parsed.command = command;
  parsed.role = RoleOf(command);
  parsed.help = HelpRequest(input.args);
  if (parsed.help.has_value()) return parsed;

  BATON_ASSIGN_OR_RETURN(Sources given, ReadSources(command, input));
  const Assignments& assignments = given.assignments;
  parsed.notes = std::move(given.notes);
  if (command == Command::kWorker) {
    BATON_ASSIGN_OR_RETURN(parsed.role, GivenWorkerRole(assignments));
  }
  BATON_RETURN_IF_ERROR(CheckModeOf(command, assignments));
  SetDefaults(&parsed);
  if (command == Command::kServe) parsed.values.set_disaggregation_mode("null");
  BATON_RETURN_IF_ERROR(Assign(assignments, &parsed));
  BATON_RETURN_IF_ERROR(PassOverInValidate(&parsed));
  BATON_RETURN_IF_ERROR(NameSource(CheckColocatedCluster(&parsed), parsed));
  Derive(&parsed);
  BATON_RETURN_IF_ERROR(NameSource(PlaceOnNode(&parsed), parsed));
  BATON_RETURN_IF_ERROR(NameSource(PlaceByIndex(&parsed), parsed));
  BATON_RETURN_IF_ERROR(NameSource(Validate(command, parsed.values), parsed));
  return parsed;
}

std::vector<std::string> ChildArguments(const ParsedOptions& parent, Role role) {
  std::vector<std::string> arguments;
  for (const auto& [name, source] : parent.sources) {
    const Option& option = *FindByName(name);
    const bool set =
        source.kind != OptionSource::Kind::kDefault && source.kind != OptionSource::Kind::kDerived;
    if (!set || !AppliesTo(option, role) || option.spec->secret() || name == "config") continue;
    arguments.push_back(absl::StrCat("--", option.flag, "=", ValueText(option, parent.values)));
  }
  return arguments;
}

std::vector<std::string> ChildEnvironment(const ParsedOptions& parent, Role role,
                                          const std::vector<std::string>& environment) {
  std::vector<std::string> child;
  for (const std::string& entry : environment) {
    if (absl::StartsWith(entry, "BATON_")) continue;
    if (!IsForeignVariable(entry)) child.push_back(entry);
  }
  for (const Option& option : OptionTable()) {
    const std::string value = ValueText(option, parent.values);
    if (!option.spec->secret() || value.empty() || !AppliesTo(option, role)) continue;
    child.push_back(absl::StrCat(option.variable, "=", value));
  }
  return child;
}

}  // namespace baton::config
