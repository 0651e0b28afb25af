// How a process tells the supervisor that started it (supervisor.h) that it listens, and which
// incarnation it is: by a pipe that no other process has. Whatever answers on a planned port before
// that is another process.
#ifndef SERVICES_BATON_START_REPORT_H_
#define SERVICES_BATON_START_REPORT_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace baton {

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

}  // namespace baton

#endif  // SERVICES_BATON_START_REPORT_H_
