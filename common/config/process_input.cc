#include "common/config/process_input.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"

namespace baton::config {

std::vector<std::string> ProcessEnvironment() {
  std::vector<std::string> environment;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    environment.emplace_back(*entry);
  }
  return environment;
}

absl::StatusOr<std::string> ReadTextFile(const std::string& path) {
  constexpr uintmax_t kMaxBytes = uintmax_t{1} << 20;
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    return absl::NotFoundError(error ? error.message() : "not a regular file");
  }
  const uintmax_t bytes = std::filesystem::file_size(path, error);
  if (error) return absl::UnknownError(error.message());
  if (bytes > kMaxBytes) {
    return absl::InvalidArgumentError(absl::StrCat(bytes, " bytes; expected at most ", kMaxBytes));
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::PermissionDeniedError(std::strerror(errno));
  return std::string(std::istreambuf_iterator<char>(file), {});
}

OptionInput FromProcess(int argc, char** argv, int skip) {
  OptionInput input;
  for (int i = skip; i < argc; ++i) input.args.emplace_back(argv[i]);
  input.environment = ProcessEnvironment();
  input.read_file = ReadTextFile;
  return input;
}

}  // namespace baton::config
