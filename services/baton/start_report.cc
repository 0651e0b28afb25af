#include "services/baton/start_report.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace baton {
namespace {

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

}  // namespace baton
