#include "services/baton/child_pipes.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace baton {
namespace {

constexpr size_t kLineLimit = size_t{16} * 1024;
// The name stands behind date, time and level.
constexpr size_t kLogHeadBytes = 32;

// A value that was inherited by mistake names some other file.
bool IsPipe(int fd) {
  struct stat about {};
  return fstat(fd, &about) == 0 && S_ISFIFO(about.st_mode);
}

}  // namespace

std::string ListeningText(uint64_t incarnation) {
  return absl::StrCat("listening ", incarnation, "\n");
}

std::optional<uint64_t> ParseListening(absl::string_view text) {
  uint64_t incarnation = 0;
  if (!absl::ConsumePrefix(&text, "listening ") || !absl::ConsumeSuffix(&text, "\n") ||
      !absl::SimpleAtoi(text, &incarnation) || incarnation == 0) {
    return std::nullopt;
  }
  return incarnation;
}

void ReportListening(uint64_t incarnation) {
  const char* const variable = std::getenv(kReportVariable);
  int fd = -1;
  if (variable == nullptr || !absl::SimpleAtoi(variable, &fd) || !IsPipe(fd)) return;
  const std::string text = ListeningText(incarnation);
  // An empty pipe has room for it, and a supervisor that has gone needs no report.
  (void)!write(fd, text.data(), text.size());
  close(fd);
}

ChildOutput::ChildOutput(std::string name, size_t name_width)
    : name_(std::move(name)), name_width_(name_width) {}

std::vector<std::string> ChildOutput::Take(absl::string_view bytes) {
  std::vector<std::string> lines;
  for (const char byte : bytes) {
    if (byte == '\n') {
      Complete(lines);
      continue;
    }
    if (partial_.size() == kLineLimit) Complete(lines);
    partial_.push_back(byte);
  }
  return lines;
}

std::vector<std::string> ChildOutput::End() {
  std::vector<std::string> lines;
  if (!partial_.empty()) Complete(lines);
  return lines;
}

void ChildOutput::Complete(std::vector<std::string>& lines) {
  const std::string line = std::exchange(partial_, "");
  lines.push_back(Label(line));
  if (line.empty()) return;
  absl::string_view words = line;
  if (absl::ConsumePrefix(&words, "baton ")) {
    const size_t colon = words.find(": ");
    if (colon != absl::string_view::npos) words.remove_prefix(colon + 2);
  }
  last_words_ = std::string(words);
}

std::string ChildOutput::Label(absl::string_view line) const {
  if (absl::StartsWith(line, "{") && absl::EndsWith(line, "}")) return std::string(line);
  std::string text(line);
  const std::string in_log = absl::StrCat(" ", name_, " ");
  const size_t at = text.find(in_log);
  if (at != std::string::npos && at < kLogHeadBytes) text.erase(at, in_log.size() - 1);
  const std::string padding(name_width_ - std::min(name_width_, name_.size()), ' ');
  return absl::StrCat(name_, padding, " | ", text);
}

}  // namespace baton
