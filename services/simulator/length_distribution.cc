#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/status.h"
#include "services/simulator/workload.h"

namespace baton::simulator {
namespace {

constexpr size_t kPartsMax = 64;
constexpr double kSigmaMax = 4;
constexpr double kWeightMax = 1e6;
constexpr double kTurn = 6.283185307179586;

absl::Status Wrong(const std::string& part, const char* what) {
  return absl::InvalidArgumentError(absl::StrCat("'", part, "' ", what));
}

absl::StatusOr<int> ParseLength(const std::string& text, const std::string& part) {
  int64_t tokens = 0;
  if (absl::SimpleAtoi(text, &tokens) && tokens >= 1 && tokens <= kLongest) {
    return static_cast<int>(tokens);
  }
  return Wrong(
      part, absl::StrCat("has '", text, "', expected a whole number from 1 to ", kLongest).c_str());
}

bool ParseNumber(const std::string& text, double most, double& value) {
  return absl::SimpleAtod(text, &value) && value > 0 && value <= most;
}

}  // namespace

absl::StatusOr<LengthDistribution::Part> LengthDistribution::ParsePart(const std::string& text) {
  Part part;
  const std::vector<std::string> weighted = absl::StrSplit(text, '@');
  if (weighted.size() > 2 ||
      (weighted.size() == 2 && !ParseNumber(weighted[1], kWeightMax, part.weight))) {
    return Wrong(text, "has no weight above 0 and at most 1000000 behind one @");
  }
  const std::vector<std::string> words = absl::StrSplit(weighted[0], ':');
  if (words[0] == "lognormal") {
    if (words.size() != 3 && words.size() != 4) {
      return Wrong(text, "is not lognormal:MEDIAN:SIGMA or lognormal:MEDIAN:SIGMA:LARGEST");
    }
    BATON_ASSIGN_OR_RETURN(const int median, ParseLength(words[1], text));
    part.median = median;
    if (!ParseNumber(words[2], kSigmaMax, part.sigma)) {
      return Wrong(text, "has no sigma above 0 and at most 4");
    }
    part.high = kLongest;
    if (words.size() == 4) {
      BATON_ASSIGN_OR_RETURN(part.high, ParseLength(words[3], text));
      if (part.high < median) return Wrong(text, "has a largest length below its median");
    }
    return part;
  }
  const std::vector<std::string> ends = absl::StrSplit(weighted[0], '-');
  if (words.size() != 1 || ends.size() > 2) {
    return Wrong(text, "is neither a number, a range LOW-HIGH nor lognormal:MEDIAN:SIGMA");
  }
  BATON_ASSIGN_OR_RETURN(part.low, ParseLength(ends.front(), text));
  BATON_ASSIGN_OR_RETURN(part.high, ParseLength(ends.back(), text));
  if (part.low > part.high) return Wrong(text, "is a range that begins above its end");
  return part;
}

absl::StatusOr<LengthDistribution> LengthDistribution::Parse(const std::string& text,
                                                             const std::string& field) {
  LengthDistribution lengths;
  const std::vector<std::string> parts = absl::StrSplit(text, ',');
  if (parts.size() > kPartsMax) {
    return InvalidField(field,
                        absl::StrCat("has ", parts.size(), " parts, expected at most ", kPartsMax));
  }
  for (const std::string& word : parts) {
    absl::StatusOr<Part> part = ParsePart(word);
    if (!part.ok()) return InvalidField(field, std::string(part.status().message()));
    lengths.weights_ += part->weight;
    lengths.parts_.push_back(*std::move(part));
  }
  return lengths;
}

int LengthDistribution::DrawPart(const Part& part, Random& random) {
  if (part.median == 0) return static_cast<int>(random.Between(part.low, part.high));
  // Box and Muller: "A note on the generation of random normal deviates", 1958.
  const double radius = std::sqrt(-2 * std::log(1 - random.Uniform()));
  const double normal = radius * std::cos(kTurn * random.Uniform());
  const double tokens = std::round(part.median * std::exp(part.sigma * normal));
  return static_cast<int>(
      std::clamp(tokens, static_cast<double>(part.low), static_cast<double>(part.high)));
}

int LengthDistribution::Draw(Random& random) const {
  if (parts_.size() == 1) return DrawPart(parts_.front(), random);
  double at = random.Uniform() * weights_;
  for (const Part& part : parts_) {
    at -= part.weight;
    if (at < 0) return DrawPart(part, random);
  }
  return DrawPart(parts_.back(), random);  // Only by rounding.
}

}  // namespace baton::simulator
