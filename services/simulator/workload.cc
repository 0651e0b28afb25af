#include "services/simulator/workload.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/random.h"
#include "common/base/status.h"
#include "common/json/parse_json.h"

namespace baton::simulator {
namespace {

using Json = nlohmann::json;

constexpr size_t kTraceBytesMax = size_t{512} << 20;
constexpr size_t kLineBytesMax = size_t{4} << 20;
constexpr int64_t kRequestsByDefault = 1000;
constexpr double kFastest = 1e6;   // Requests per second, and factor on the trace's speed.
constexpr double kSlowest = 1e-6;  // The same.
constexpr double kLatestMs =
    1e10;  // The limit of a trace's timestamps, before the factor: 115 days.
constexpr int64_t kHashMax = int64_t{1} << 53;  // What every reader of JSON knows exactly.
constexpr double kLatestUs = 1e3 * kLatestMs;   // The limit of an arrival.

absl::Status WrongLine(const std::string& file, int line, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(file, ":", line, ": ", what));
}

absl::Status WrongValue(const std::string& file, int line, const char* key, const Json* value,
                        const std::string& expected) {
  const std::string is = value == nullptr ? "is missing" : absl::StrCat("is ", value->dump());
  return WrongLine(file, line, absl::StrCat(key, " ", is, ", expected ", expected));
}

const Json* Find(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() ? nullptr : &*found;
}

absl::StatusOr<int> LengthOf(const Json& object, const char* key, const std::string& file,
                             int line) {
  const Json* const value = Find(object, key);
  if (value != nullptr && value->is_number_integer() && *value >= 1 && *value <= kLongest) {
    return value->get<int>();
  }
  return WrongValue(file, line, key, value, absl::StrCat("a whole number from 1 to ", kLongest));
}

// More than the prompt has blocks are let go.
absl::StatusOr<std::vector<int64_t>> HashesOf(const Json& object, int prompt_tokens,
                                              const std::string& file, int line) {
  std::vector<int64_t> hashes;
  const Json* const value = Find(object, "hash_ids");
  if (value == nullptr) return hashes;
  const bool right =
      value->is_array() && std::all_of(value->begin(), value->end(), [](const Json& hash) {
        return hash.is_number_integer() && hash >= 0 && hash <= kHashMax;
      });
  if (!right) {
    return WrongLine(file, line,
                     absl::StrCat("hash_ids is not a list of whole numbers from 0 to ", kHashMax));
  }
  const size_t blocks = static_cast<size_t>(prompt_tokens + kTokensOfHash - 1) / kTokensOfHash;
  for (size_t i = 0; i < std::min(blocks, value->size()); ++i) {
    hashes.push_back((*value)[i].get<int64_t>());
  }
  return hashes;
}

absl::StatusOr<WorkloadRequest> ParseLine(std::string_view text, const std::string& file, int line,
                                          double speed) {
  if (text.size() > kLineBytesMax) {
    return WrongLine(file, line, absl::StrCat("has more than ", kLineBytesMax, " bytes"));
  }
  const std::string place = absl::StrCat(file, ":", line);
  BATON_ASSIGN_OR_RETURN(const Json object, ParseJson(text, place));
  if (!object.is_object()) return WrongLine(file, line, "is no JSON object");
  WorkloadRequest request;
  const Json* const timestamp = Find(object, "timestamp");
  const double at_ms =
      timestamp != nullptr && timestamp->is_number() ? timestamp->get<double>() : -1;
  if (!(at_ms >= 0 && at_ms <= kLatestMs)) {
    return WrongValue(file, line, "timestamp", timestamp, "milliseconds from 0 to 10000000000");
  }
  const double at_us = at_ms * 1000 / speed;
  if (at_us > kLatestUs) {
    return WrongLine(file, line, "timestamp: by --trace-speed the request comes too late");
  }
  request.arrival_us = std::llround(at_us);
  BATON_ASSIGN_OR_RETURN(request.prompt_tokens, LengthOf(object, "input_length", file, line));
  BATON_ASSIGN_OR_RETURN(request.output_tokens, LengthOf(object, "output_length", file, line));
  BATON_ASSIGN_OR_RETURN(request.hash_ids, HashesOf(object, request.prompt_tokens, file, line));
  return request;
}

absl::StatusOr<double> ParseRate(const char* field, const std::string& text) {
  double rate = 0;
  if (absl::SimpleAtod(text, &rate) && rate >= kSlowest && rate <= kFastest) return rate;
  return InvalidField(
      field, absl::StrCat("got '", text, "'; expected a decimal number from 0.000001 to 1000000"));
}

absl::StatusOr<Workload> ReadTrace(const v1::Options& options) {
  Workload workload;
  BATON_ASSIGN_OR_RETURN(const double speed, ParseRate("trace_speed", options.trace_speed()));
  BATON_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(options.trace(), kTraceBytesMax));
  BATON_ASSIGN_OR_RETURN(workload.requests,
                         ParseTrace(text, options.trace(), options.requests(), speed));
  workload.text = absl::StrCat(
      "trace ", options.trace(),
      speed == 1 ? std::string() : absl::StrCat(", ", options.trace_speed(), " times as fast"));
  return workload;
}

}  // namespace

std::vector<int32_t> PromptOf(const WorkloadRequest& request, size_t index) {
  std::vector<int32_t> tokens;
  if (request.hash_ids.empty()) return tokens;
  tokens.reserve(static_cast<size_t>(request.prompt_tokens));
  for (size_t i = 0; i < static_cast<size_t>(request.prompt_tokens); ++i) {
    const size_t block = i / kTokensOfHash;
    const bool shared = block < request.hash_ids.size();
    const uint64_t content =
        shared ? Mix64(static_cast<uint64_t>(request.hash_ids[block])) : ~Mix64(index);
    tokens.push_back(static_cast<int32_t>(Mix64(content + i % kTokensOfHash) >> 33));
  }
  return tokens;
}

absl::StatusOr<std::vector<WorkloadRequest>> ParseTrace(std::string_view text,
                                                        const std::string& file, int64_t limit,
                                                        double speed) {
  std::vector<WorkloadRequest> requests;
  const auto most = static_cast<size_t>(limit > 0 ? limit : kRequestsMax);
  int line = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view row = text.substr(at, end - at);
    at = end + 1;
    ++line;
    if (row.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    if (requests.size() == most) {
      if (limit > 0) break;
      return WrongLine(file, line,
                       absl::StrCat("is one request too many: ", kRequestsMax,
                                    " are simulated at once; --requests takes fewer"));
    }
    BATON_ASSIGN_OR_RETURN(const WorkloadRequest request, ParseLine(row, file, line, speed));
    if (!requests.empty() && request.arrival_us < requests.back().arrival_us) {
      return WrongLine(file, line, "timestamp is before that of the line before");
    }
    requests.push_back(request);
  }
  if (requests.empty()) return absl::InvalidArgumentError(absl::StrCat(file, ": has no request"));
  // Time starts with the first request, in case the trace is a part of a longer one.
  const int64_t first_us = requests.front().arrival_us;
  for (WorkloadRequest& request : requests) request.arrival_us -= first_us;
  return requests;
}

absl::StatusOr<Workload> MakeWorkload(const v1::Options& options) {
  if (!options.trace().empty()) return ReadTrace(options);
  Workload workload;
  const std::string& arrival = options.arrival();
  BATON_ASSIGN_OR_RETURN(const double rate, ParseRate("request_rate", options.request_rate()));
  BATON_ASSIGN_OR_RETURN(const auto prompts,
                         LengthDistribution::Parse(options.prompt_tokens(), "prompt_tokens"));
  BATON_ASSIGN_OR_RETURN(const auto outputs,
                         LengthDistribution::Parse(options.output_tokens(), "output_tokens"));
  const int64_t count = options.requests() > 0 ? options.requests() : kRequestsByDefault;
  // Each has a random stream of its own, so that changing one distribution leaves the others as
  // they are.
  const auto seed = static_cast<uint64_t>(options.workload_seed());
  Random arrivals(Mix64(3 * seed));
  Random prompt_lengths(Mix64(3 * seed + 1));
  Random output_lengths(Mix64(3 * seed + 2));
  if (arrival == "closed") workload.concurrency = static_cast<int>(options.concurrency());
  double at_us = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (arrival == "constant") at_us = static_cast<double>(i) * 1e6 / rate;
    if (arrival == "poisson") at_us -= std::log(1 - arrivals.Uniform()) * 1e6 / rate;
    if (at_us > kLatestUs) {
      return InvalidField("request_rate",
                          absl::StrCat("at ", options.request_rate(), " a second, request ", i + 1,
                                       " comes later than can be simulated"));
    }
    WorkloadRequest request;
    request.arrival_us = std::llround(at_us);
    request.prompt_tokens = prompts.Draw(prompt_lengths);
    request.output_tokens = outputs.Draw(output_lengths);
    workload.requests.push_back(request);
  }
  const bool rated = arrival == "poisson" || arrival == "constant";
  workload.text = absl::StrCat(
      arrival, rated ? absl::StrCat(" ", options.request_rate(), "/s") : std::string(),
      workload.concurrency > 0 ? absl::StrCat(", ", workload.concurrency, " clients") : "",
      ", prompts ", options.prompt_tokens(), ", answers ", options.output_tokens(),
      " tokens, seed ", options.workload_seed());
  return workload;
}

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
