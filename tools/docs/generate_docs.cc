// Prints a page of docs/ that is made from a table: generate_docs metrics > docs/metrics.md
#include <iostream>
#include <string>

#include "common/config/options.h"
#include "common/telemetry/metrics.h"

int main(int argc, char** argv) {
  const std::string page = argc == 2 ? argv[1] : "";
  if (page == "options") {
    std::cout << baton::config::OptionsMarkdown();
  } else if (page == "metrics") {
    std::cout << baton::MetricsMarkdown();
  } else {
    std::cerr << "Usage: generate_docs options|metrics\n";
    return 2;
  }
  return 0;
}
