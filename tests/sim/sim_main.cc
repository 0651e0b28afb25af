// Runs simulated clusters by seed:
//   sim --seed=42 --trace            one run with its last events
//   sim --seed=1 --seeds=100000      many runs, stops at the first broken promise
//   sim --seed=7 --shrink            its failure, made as small as it gets, and the trace of that
//   sim --seed=1 --seeds=300 --hashes       of every run, to compare builds (./dev check sim_hash)
//   sim --seed=1 --seeds=2000 --coverage    what they have reached, and how often
//   sim --seed=1 --seeds=5000 --chain       single chains that decode (one_chain.h)
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "tests/sim/cluster.h"
#include "tests/sim/coverage.h"
#include "tests/sim/one_chain.h"
#include "tests/sim/shrink.h"

namespace baton::sim {
namespace {

struct Arguments {
  uint64_t seed = 1;
  uint64_t seeds = 1;
  bool trace = false;
  bool coverage = false;
  bool hashes = false;
  bool shrink = false;
  bool chain = false;
};

bool ParseArgument(std::string_view argument, Arguments& arguments) {
  const std::string text(argument);
  if (text == "--trace") {
    arguments.trace = true;
    return true;
  }
  if (text == "--hashes") {
    arguments.hashes = true;
    return true;
  }
  if (text == "--shrink") {
    arguments.shrink = true;
    return true;
  }
  if (text == "--chain") {
    arguments.chain = true;
    return true;
  }
  if (text == "--coverage") {
    arguments.coverage = true;
    return true;
  }
  if (absl::StartsWith(text, "--seed=")) return absl::SimpleAtoi(text.substr(7), &arguments.seed);
  if (absl::StartsWith(text, "--seeds=")) return absl::SimpleAtoi(text.substr(8), &arguments.seeds);
  return false;
}

void PrintCoverage() {
  const uint64_t least = kLeastHits * CountedRuns() / kSeedsOfLeastHits;
  for (const CoverageRow& row : Coverage()) {
    const char* verdict = row.excuse != nullptr ? row.excuse : row.hits < least ? "THIN" : "";
    std::printf("%10llu  %-55s %s\n", static_cast<unsigned long long>(row.hits), row.name.c_str(),
                verdict);
  }
}

void PrintShrunken(uint64_t seed, const std::string& violation) {
  const Shrunken shrunken = Shrink(DrawScenario(seed), violation, [](const Scenario& scenario) {
    return RunScenario(scenario, /*trace=*/false).violation;
  });
  const RunResult run = RunScenario(shrunken.scenario, /*trace=*/true);
  for (const std::string& line : run.trace) std::printf("%s\n", line.c_str());
  std::printf("smallest of %d runs: %s\n%s\n", shrunken.runs, run.violation.c_str(),
              shrunken.scenario.Description().c_str());
}

int RunChains(const Arguments& arguments) {
  int requests = 0;
  int succeeded = 0;
  int resumes = 0;
  uint64_t retractions = 0;
  for (uint64_t seed = arguments.seed; seed < arguments.seed + arguments.seeds; ++seed) {
    Random random(seed);
    const ChainSettings settings = DrawStormyChain(random);
    OneChain chain(random.Next(), settings);
    chain.Run();
    if (!chain.violation().empty()) {
      std::printf("seed %llu: %s\n", static_cast<unsigned long long>(seed),
                  chain.violation().c_str());
      return 1;
    }
    requests += settings.requests;
    succeeded += chain.succeeded();
    resumes += chain.resumes();
    retractions += chain.retractions();
  }
  std::printf("%llu seeds, %d of %d requests answered, %d texts resumed, %llu retractions\n",
              static_cast<unsigned long long>(arguments.seeds), succeeded, requests, resumes,
              static_cast<unsigned long long>(retractions));
  return 0;
}

int Main(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    if (ParseArgument(argv[i], arguments)) continue;
    std::fprintf(stderr,
                 "sim: unknown argument %s\nusage: sim [--seed=N] [--seeds=N] [--trace] "
                 "[--shrink] [--hashes] [--coverage] [--chain]\n",
                 argv[i]);
    return 2;
  }
  if (arguments.chain) return RunChains(arguments);
  uint64_t events = 0;
  int requests = 0;
  int succeeded = 0;
  const auto start = std::chrono::steady_clock::now();
  for (uint64_t seed = arguments.seed; seed < arguments.seed + arguments.seeds; ++seed) {
    const RunResult result = RunSeed(seed, arguments.trace);
    events += result.events;
    requests += result.requests;
    succeeded += result.succeeded;
    if (arguments.hashes) {
      std::printf("hash %llu %016llx %llu\n", static_cast<unsigned long long>(seed),
                  static_cast<unsigned long long>(result.hash),
                  static_cast<unsigned long long>(result.events));
    }
    for (const std::string& line : result.trace) std::printf("%s\n", line.c_str());
    if (result.violation.empty() && arguments.seeds > 1) continue;
    std::printf("seed %llu: %s\n  %s\n  %d of %d requests answered, %llu events, hash %016llx\n",
                static_cast<unsigned long long>(seed),
                result.violation.empty() ? "every promise kept" : result.violation.c_str(),
                result.summary.c_str(), result.succeeded, result.requests,
                static_cast<unsigned long long>(result.events),
                static_cast<unsigned long long>(result.hash));
    if (result.violation.empty()) continue;
    if (arguments.shrink) PrintShrunken(seed, result.violation);
    return 1;
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::printf("%llu seeds, %d of %d requests answered, %llu events, %.1f s\n",
              static_cast<unsigned long long>(arguments.seeds), succeeded, requests,
              static_cast<unsigned long long>(events), seconds);
  if (arguments.coverage) PrintCoverage();
  return 0;
}

}  // namespace
}  // namespace baton::sim

int main(int argc, char** argv) { return baton::sim::Main(argc, argv); }
