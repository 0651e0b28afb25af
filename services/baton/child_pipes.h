// What a supervisor (supervisor.h) hears from a child process by the two pipes between them: the
// lines of its output, and once that it listens.
#ifndef SERVICES_BATON_CHILD_PIPES_H_
#define SERVICES_BATON_CHILD_PIPES_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace baton {

// ---- That it listens, and as which incarnation ----
// No other process has this pipe. Whatever answers on a planned port before that is another one.

// The variable by which a child knows the pipe's descriptor.
inline constexpr char kReportVariable[] = "SUPERVISOR_REPORT_FD";

// To be called once, when the ports that the options name are bound. `incarnation` is not 0.
// Nothing happens in a process that no supervisor started.
void ReportListening(uint64_t incarnation);

// What ReportListening writes, and what it means; nullopt: it is no report.
std::string ListeningText(uint64_t incarnation);
std::optional<uint64_t> ParseListening(absl::string_view text);

// What a worker's /readiness says before it has loaded, to those who start workers as well.
inline constexpr char kLoadingText[] = "loading or stopping";

// ---- Its output ----

// Lines for the terminal: each stands behind the child's name once.
class ChildOutput {
 public:
  // `name_width`: of the longest name, so that columns stand below each other.
  ChildOutput(std::string name, size_t name_width);

  // Takes what was read and returns the lines that are complete, labelled. A line longer than
  // 16 KiB is cut into several.
  std::vector<std::string> Take(absl::string_view bytes);
  // The output is over: what has no newline is a line as well.
  std::vector<std::string> End();

  // The last line, without the "baton worker: " before it: where a command says why it failed.
  const std::string& last_words() const { return last_words_; }

  // The line under the child's name. Log lines of Baton name their process themselves: there the
  // name moves to the front. JSON objects are for programs and stay as they are.
  std::string Label(absl::string_view line) const;

 private:
  void Complete(std::vector<std::string>& lines);

  const std::string name_;
  const size_t name_width_;
  std::string partial_;
  std::string last_words_;
};

}  // namespace baton

#endif  // SERVICES_BATON_CHILD_PIPES_H_
