// Prints a page that is made from a table: generate_docs metrics > docs/metrics.md
//
// `man` reads a page with @NAMES@ in the place of what the tables say, and fills those in.
#include <iostream>
#include <iterator>
#include <string>

#include "absl/strings/str_replace.h"
#include "common/config/man_page.h"
#include "common/config/options.h"
#include "common/telemetry/metrics.h"
#include "common/telemetry/metrics_table.h"

int main(int argc, char** argv) {
  const std::string page = argc == 2 ? argv[1] : "";
  if (page == "options") {
    std::cout << baton::config::OptionsMarkdown();
  } else if (page == "metrics") {
    std::cout << baton::MetricsMarkdown();
  } else if (page == "man") {
    const std::string text(std::istreambuf_iterator<char>(std::cin), {});
    std::cout << absl::StrReplaceAll(text, {{"@VERSION@", baton::kBatonVersion},
                                            {"@COMMANDS@\n", baton::config::ManCommands()},
                                            {"@OPTIONS@\n", baton::config::ManOptions()}});
  } else {
    std::cerr << "Usage: generate_docs options|metrics|man\n";
    return 2;
  }
  return 0;
}
