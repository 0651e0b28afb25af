#include "common/tokenizer/sidecar_files.h"

#include <filesystem>
#include <fstream>
#include <string_view>
#include <utility>

#include "common/base/status.h"
#include "common/base/strings.h"
#include "common/json/parse_json.h"
#include "common/tokenizer/json_reader.h"
#include "common/tokenizer/tokenizer_json.h"

namespace baton {
namespace {

constexpr size_t kMaxSidecarBytes = 16 << 20;
constexpr size_t kMaxEosIds = 256;
constexpr size_t kMaxTemplates = 64;

// An empty object if there is no such file.
absl::StatusOr<nlohmann::json> ReadJsonFile(const std::string& path) {
  absl::StatusOr<std::string> text = ReadBoundedFile(path, kMaxSidecarBytes);
  if (absl::IsNotFound(text.status())) return nlohmann::json::object();
  BATON_RETURN_IF_ERROR(text.status());
  absl::StatusOr<nlohmann::json> document = ParseJson(*text, path);
  BATON_RETURN_IF_ERROR(document.status());
  if (!document->is_object()) {
    return absl::InvalidArgumentError(Concat(path, ": expected an object"));
  }
  return document;
}

// A token is written as its content or as an added token's object.
absl::StatusOr<std::optional<std::string>> ReadToken(const JsonReader& token) {
  if (token.IsNull()) return std::optional<std::string>();
  return token.IsObject() ? token["content"].String() : token.String();
}

// One Jinja source, or several by name, of which "default" is for plain conversations.
absl::Status ReadTemplates(const JsonReader& chat_template, TokenRoles* roles) {
  if (chat_template.IsNull()) return absl::OkStatus();
  if (!chat_template.IsArray()) {
    BATON_ASSIGN_OR_RETURN(std::string jinja, chat_template.String());
    roles->chat_templates["default"] = {"tokenizer_config.json", std::move(jinja)};
    return absl::OkStatus();
  }
  for (size_t i = 0; i < chat_template.size(); ++i) {
    BATON_ASSIGN_OR_RETURN(const std::string name, chat_template[i]["name"].String());
    BATON_ASSIGN_OR_RETURN(std::string jinja, chat_template[i]["template"].String());
    roles->chat_templates[name] = {"tokenizer_config.json", std::move(jinja)};
  }
  return absl::OkStatus();
}

absl::Status ReadNamedTokens(const JsonReader& config, TokenRoles* roles) {
  for (const char* role : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token",
                           "cls_token", "mask_token"}) {
    BATON_ASSIGN_OR_RETURN(const std::optional<std::string> token, ReadToken(config[role]));
    if (token.has_value()) roles->named_tokens[role] = *token;
  }
  return absl::OkStatus();
}

absl::Status ReadTokenizerConfig(const JsonReader& config, TokenRoles* roles) {
  // "bos_token": null says that there is none; Qwen2's config.json names an id all the same.
  if (config.value().contains("bos_token")) roles->bos_id.reset();
  BATON_ASSIGN_OR_RETURN(roles->bos_token, ReadToken(config["bos_token"]));
  BATON_ASSIGN_OR_RETURN(roles->eos_token, ReadToken(config["eos_token"]));
  BATON_ASSIGN_OR_RETURN(roles->add_bos_token, config["add_bos_token"].Bool(false));
  BATON_ASSIGN_OR_RETURN(roles->add_eos_token, config["add_eos_token"].Bool(false));
  BATON_RETURN_IF_ERROR(ReadNamedTokens(config, roles));
  return ReadTemplates(config["chat_template"], roles);
}

absl::Status ReadIds(const JsonReader& ids, std::vector<int32_t>* out) {
  if (ids.IsNull()) return absl::OkStatus();
  if (!ids.IsArray()) {
    BATON_ASSIGN_OR_RETURN(const int32_t id, ids.Id(kMaxVocabSize));
    out->push_back(id);
    return absl::OkStatus();
  }
  if (ids.size() > kMaxEosIds) return ids.Malformed(Concat("at most ", kMaxEosIds, " ids"));
  for (size_t i = 0; i < ids.size(); ++i) {
    BATON_ASSIGN_OR_RETURN(const int32_t id, ids[i].Id(kMaxVocabSize));
    out->push_back(id);
  }
  return absl::OkStatus();
}

// Fills what an earlier file left open.
absl::Status ReadModelConfig(const JsonReader& config, TokenRoles* roles) {
  if (!roles->bos_id.has_value() && !config["bos_token_id"].IsNull()) {
    BATON_ASSIGN_OR_RETURN(roles->bos_id, config["bos_token_id"].Id(kMaxVocabSize));
  }
  if (roles->eos_ids.empty()) return ReadIds(config["eos_token_id"], &roles->eos_ids);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> ReadBoundedFile(const std::string& path, size_t max_bytes) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return absl::NotFoundError(Concat(path, ": can't be opened"));
  const std::streamoff bytes = file.tellg();
  if (bytes < 0 || static_cast<uint64_t>(bytes) > max_bytes) {
    return absl::InvalidArgumentError(
        Concat(path, ": not a file of at most ", max_bytes, " bytes"));
  }
  std::string content(static_cast<size_t>(bytes), '\0');
  file.seekg(0);
  if (!file.read(content.data(), bytes)) {
    return absl::UnavailableError(Concat(path, ": can't be read"));
  }
  return content;
}

namespace {

absl::Status ReadTemplateFile(const std::string& directory, const std::string& file,
                              const std::string& name, TokenRoles* roles) {
  BATON_ASSIGN_OR_RETURN(std::string jinja,
                         ReadBoundedFile(Concat(directory, "/", file), kMaxSidecarBytes));
  roles->chat_templates[name] = {file, std::move(jinja)};
  return absl::OkStatus();
}

absl::Status ReadTemplateFiles(const std::string& directory, TokenRoles* roles) {
  absl::Status own = ReadTemplateFile(directory, "chat_template.jinja", "default", roles);
  if (!own.ok() && !absl::IsNotFound(own)) return own;
  constexpr std::string_view kAdditional = "additional_chat_templates";
  std::error_code none;  // A directory that isn't there has no files.
  std::filesystem::directory_iterator file(Concat(directory, "/", kAdditional), none);
  for (; !none && file != std::filesystem::directory_iterator(); file.increment(none)) {
    if (file->path().extension() != ".jinja") continue;
    if (roles->chat_templates.size() >= kMaxTemplates) {
      return absl::InvalidArgumentError(
          Concat(directory, ": more than ", kMaxTemplates, " chat templates"));
    }
    BATON_RETURN_IF_ERROR(
        ReadTemplateFile(directory, Concat(kAdditional, "/", file->path().filename().string()),
                         file->path().stem().string(), roles));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TokenRoles> LoadTokenRoles(const std::string& directory) {
  TokenRoles roles;
  const auto read = [&](std::string_view name, auto reader) -> absl::Status {
    const std::string path = Concat(directory, "/", name);
    BATON_ASSIGN_OR_RETURN(const nlohmann::json document, ReadJsonFile(path));
    return Annotate(reader(JsonReader(document), &roles), path);
  };
  BATON_RETURN_IF_ERROR(read("generation_config.json", ReadModelConfig));
  BATON_RETURN_IF_ERROR(read("config.json", ReadModelConfig));
  BATON_RETURN_IF_ERROR(read("tokenizer_config.json", ReadTokenizerConfig));

  BATON_RETURN_IF_ERROR(ReadTemplateFiles(directory, &roles));
  return roles;
}

}  // namespace baton
