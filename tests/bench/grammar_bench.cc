// Structured output by itself: what compiling takes, what a mask takes with a vocabulary of 131,072
// tokens, the same of grammars that are made to take long, and texts that a random model writes at
// temperature 2. `GRAMMARS TEXTS`: {"schemas": [TEXT], "hostile": [{KIND: TEXT}]} and how many
// texts to write. Prints a JSON object.
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "common/base/check.h"
#include "common/base/random.h"
#include "common/grammar/compile.h"
#include "common/grammar/constraint.h"
#include "nlohmann/json.hpp"
#include "tests/bench/quantiles.h"

namespace baton {
namespace {

using Json = nlohmann::ordered_json;
using grammar::Constraint;
using grammar::Vocabulary;

constexpr size_t kLargeVocabulary = 131'072;
constexpr size_t kSmallVocabulary = 4096;
constexpr int kMaxTokens = 4000;
constexpr int kMasksPerSchema = 60;

// Bytes, numbers of up to three digits, pieces of JSON, and words with and without a space before.
std::shared_ptr<const Vocabulary> Words(size_t size) {
  std::vector<grammar::VocabularyToken> tokens;
  tokens.reserve(size);
  for (int byte = 0; byte < 256; ++byte) {
    tokens.push_back({std::string(1, static_cast<char>(byte)), false});
  }
  for (int i = 0; i < 1000; ++i) tokens.push_back({std::to_string(i), false});
  const std::vector<std::string> pieces = {"{\"", "\":",   "\": ", "\", \"", "\"}",
                                           "}}",  "]}",    "[]",   ", ",     "\n  ",
                                           " \"", "\",\n", "\"\n", "true",   "null"};
  for (const std::string& piece : pieces) tokens.push_back({piece, false});
  Random random(1);
  while (tokens.size() < size) {
    std::string word = random.Chance(0.5) ? " " : "";
    for (uint64_t i = 2 + random.Below(9); i > 0; --i) {
      word += static_cast<char>('a' + random.Below(26));
    }
    if (random.Chance(0.05)) word += pieces[random.Below(pieces.size())];
    tokens.push_back({word, false});
  }
  return std::make_shared<const Vocabulary>(tokens);
}

double Since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
      .count();
}

// Draws from random weights, at temperature 2, among what the mask allows; nullopt: the end.
std::optional<int32_t> Draw(const grammar::TokenMask& mask, Random& random) {
  double best = mask.ends ? -std::log(1 - random.Uniform()) : -1;
  std::optional<int32_t> drawn;
  for (size_t word = 0; word < mask.words.size(); ++word) {
    for (uint64_t left = mask.words[word]; left != 0; left &= left - 1) {
      const auto token =
          static_cast<int32_t>(word * 64 + static_cast<size_t>(__builtin_ctzll(left)));
      // Gumbel's trick with normal logits, divided by the temperature.
      const double logit = std::sqrt(-2 * std::log(1 - random.Uniform())) *
                           std::cos(6.283185 * random.Uniform()) / 2;
      const double score = logit - std::log(-std::log(1 - random.Uniform() * 0.999999));
      if (!drawn.has_value() && !mask.ends) best = score - 1;
      if (score > best) {
        best = score;
        drawn = token;
      }
    }
  }
  return drawn;
}

// Until a mask is refused, which its status tells.
absl::Status MeasureMasks(const Constraint& constraint, Random& random,
                          std::vector<double>& mask_us) {
  grammar::TextState text = constraint.Begin();
  for (int i = 0; i < kMasksPerSchema; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    const auto mask = constraint.MaskOf(text);
    mask_us.push_back(Since(begin));
    if (!mask.ok()) return mask.status();
    const std::optional<int32_t> token = Draw(**mask, random);
    if (!token.has_value()) break;
    BATON_CHECK(constraint.Append(text, *token).ok());
  }
  return absl::OkStatus();
}

// What the worst of them take, in milliseconds.
Json MeasureHostile(const Json& sources, const std::shared_ptr<const Vocabulary>& vocabulary) {
  std::vector<double> compile_us;
  std::vector<double> mask_us;
  int refused = 0;
  Random random(5);
  for (const Json& source : sources) {
    const std::string kind = source.begin().key();
    const auto begin = std::chrono::steady_clock::now();
    auto automaton =
        grammar::Compile({.kind = kind == "regex"  ? grammar::Source::Kind::kRegex
                                  : kind == "ebnf" ? grammar::Source::Kind::kEbnf
                                                   : grammar::Source::Kind::kJsonSchema,
                          .text = source.begin().value().get<std::string>()});
    compile_us.push_back(Since(begin));
    if (!automaton.ok()) {
      ++refused;
      continue;
    }
    Constraint constraint(*std::move(automaton), vocabulary);
    constraint.Prepare();
    // A text's end or its being given up ends the measurement; both are answers.
    for (int text = 0; text < 3; ++text) MeasureMasks(constraint, random, mask_us).IgnoreError();
  }
  return {{"compile_ms_most", Quantile(compile_us, 1) / 1000},
          {"mask_ms_most", Quantile(mask_us, 1) / 1000},
          {"refused", refused},
          {"sources", sources.size()}};
}

Json WriteText(const Constraint& constraint, Random& random) {
  grammar::TextState text = constraint.Begin();
  std::string written;
  for (int i = 0; i < kMaxTokens; ++i) {
    const auto mask = constraint.MaskOf(text);
    BATON_CHECK(mask.ok()) << mask.status();
    const std::optional<int32_t> token = Draw(**mask, random);
    if (!token.has_value()) return {{"text", written}, {"ended", (*mask)->ends}};
    written += constraint.vocabulary().BytesOf(*token);
    BATON_CHECK(constraint.Append(text, *token).ok());
  }
  return {{"text", written}, {"ended", false}};
}

int Run(const std::string& path, size_t texts) {
  std::ifstream file(path, std::ios::binary);
  const Json grammars = Json::parse(std::string(std::istreambuf_iterator<char>(file), {}));
  const Json& schemas = grammars["schemas"];
  const auto large = Words(kLargeVocabulary);
  const auto small = Words(kSmallVocabulary);
  std::vector<double> compile_ms;
  std::vector<double> prepare_ms;
  std::vector<double> mask_us;
  Random random(7);
  Json written = Json::array();
  for (size_t i = 0; i < schemas.size(); ++i) {
    const auto begin = std::chrono::steady_clock::now();
    auto automaton = grammar::Compile({.text = schemas[i].get<std::string>()});
    compile_ms.push_back(Since(begin) / 1000);
    BATON_CHECK(automaton.ok()) << automaton.status();
    const auto prepare = std::chrono::steady_clock::now();
    Constraint constraint(*automaton, large);
    constraint.Prepare();
    prepare_ms.push_back(Since(prepare) / 1000);
    BATON_CHECK(MeasureMasks(constraint, random, mask_us).ok()) << schemas[i];
    const Constraint quick(*std::move(automaton), small);
    for (size_t k = i; k < texts; k += schemas.size()) {
      Json one = WriteText(quick, random);
      one["schema"] = i;
      written.push_back(std::move(one));
    }
  }
  Json out;
  out["hostile"] = MeasureHostile(grammars["hostile"], large);
  for (const auto& [name, values] :
       {std::pair{"compile_ms", &compile_ms}, std::pair{"prepare_ms", &prepare_ms},
        std::pair{"mask_us", &mask_us}}) {
    out[std::string(name) + "_p50"] = Quantile(*values, 0.5);
    out[std::string(name) + "_p95"] = Quantile(*values, 0.95);
    out[std::string(name) + "_p99"] = Quantile(*values, 0.99);
    out[std::string(name) + "_most"] = Quantile(*values, 1);
  }
  out["texts"] = std::move(written);
  std::puts(out.dump(-1, ' ', true, Json::error_handler_t::replace).c_str());
  return 0;
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) {
  size_t texts = 0;
  if (argc != 3 || !absl::SimpleAtoi(argv[2], &texts)) {
    std::fputs("usage: grammar_bench GRAMMARS TEXTS\n", stderr);
    return 2;
  }
  return baton::Run(argv[1], texts);
}
