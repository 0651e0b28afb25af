#include "services/timeline/span_file.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/json/parse_json.h"

namespace baton::timeline {
namespace {

using Json = nlohmann::json;

constexpr size_t kLineBytesMax = size_t{64} << 20;
constexpr size_t kChunksMax = size_t{1} << 20;
constexpr int64_t kPlaceMax = 1 << 20;  // A stage, or a rank.
constexpr int64_t kTokensMax = int64_t{1} << 30;
constexpr char kChunkSpan[] = "prefill chunk";

// A row of the picture.
struct Place {
  std::string chain;
  int64_t stage = 0;
  int64_t rank = -1;  // -1 if the stage is one process.
  bool operator<(const Place& other) const {
    return std::tie(chain, stage, rank) < std::tie(other.chain, other.stage, other.rank);
  }
};

struct Chunk {
  std::pair<std::string, std::string> request;  // Its trace, and the span that all its chunks have
                                                // as their parent.
  int64_t plan = 0;
  int64_t begin_us = 0;
  int64_t end_us = 0;
  int token_begin = 0;
  int token_count = 0;
};

// A position in the file, for messages.
struct Where {
  const std::string& file;
  int line = 0;

  absl::Status Wrong(const std::string& field, const std::string& what) const {
    return absl::InvalidArgumentError(absl::StrCat(file, ": line ", line, ": ", field, ": ", what));
  }
};

std::string Shown(const Json& value) {
  constexpr size_t kShown = 40;
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > kShown) text = text.substr(0, kShown) + "...";
  return text;
}

// One value of a line, and its path from the line's object.
class Value {
 public:
  Value(const Json* json, std::string path, const Where* where)
      : json_(json), path_(std::move(path)), where_(where) {}

  const std::string& path() const { return path_; }

  absl::Status Wrong(const std::string& expected) const {
    return where_->Wrong(path_, json_ == nullptr
                                    ? absl::StrCat("missing; expected ", expected)
                                    : absl::StrCat("expected ", expected, ", got ", Shown(*json_)));
  }
  // A member that may be missing; this is an object.
  Value Member(const char* key) const {
    const auto found = json_->find(key);
    return {found == json_->end() ? nullptr : &*found,
            path_.empty() ? key : absl::StrCat(path_, ".", key), where_};
  }
  bool is_object() const { return json_ != nullptr && json_->is_object(); }

  // The elements of a list, which may be missing.
  absl::StatusOr<std::vector<Value>> Elements() const {
    std::vector<Value> elements;
    if (json_ == nullptr) return elements;
    if (!json_->is_array()) return Wrong("a list");
    for (size_t i = 0; i < json_->size(); ++i) {
      elements.emplace_back(&(*json_)[i], absl::StrCat(path_, "[", i, "]"), where_);
      if (!elements.back().is_object()) return elements.back().Wrong("an object");
    }
    return elements;
  }
  absl::StatusOr<std::string> Text() const {
    if (json_ == nullptr || !json_->is_string()) return Wrong("text");
    return json_->get<std::string>();
  }
  // OTLP writes 64-bit integers as text; numbers are accepted too.
  absl::StatusOr<int64_t> Int(int64_t low, int64_t high) const {
    int64_t value = 0;
    const bool read =
        json_ != nullptr &&
        (json_->is_string() ? absl::SimpleAtoi(json_->get_ref<const std::string&>(), &value)
                            : ReadNumber(value));
    if (read && value >= low && value <= high) return value;
    return Wrong(absl::StrCat("a whole number from ", low, " to ", high));
  }

 private:
  bool ReadNumber(int64_t& value) const {
    if (!json_->is_number_integer()) return false;
    if (json_->is_number_unsigned() && json_->get<uint64_t>() > INT64_MAX) return false;
    value = json_->get<int64_t>();
    return true;
  }

  const Json* json_;
  std::string path_;
  const Where* where_;
};

// An OTLP list of {"key": ..., "value": {"intValue": ...}}: the value of `key`, which may be
// missing.
class Attributes {
 public:
  static absl::StatusOr<Attributes> Of(const Value& list) {
    Attributes attributes(list.path());
    BATON_ASSIGN_OR_RETURN(attributes.elements_, list.Elements());
    return attributes;
  }
  absl::StatusOr<std::optional<Value>> Find(const std::string& key) const {
    for (const Value& element : elements_) {
      BATON_ASSIGN_OR_RETURN(const std::string name, element.Member("key").Text());
      if (name != key) continue;
      const Value value = element.Member("value");
      if (!value.is_object()) return value.Wrong("an object");
      return value;
    }
    return std::nullopt;
  }
  absl::StatusOr<std::optional<int64_t>> Int(const std::string& key, int64_t high) const {
    BATON_ASSIGN_OR_RETURN(const std::optional<Value> value, Find(key));
    if (!value.has_value()) return std::nullopt;
    // Baton writes numbers of resources as text.
    Value number = value->Member("intValue");
    const Value text = value->Member("stringValue");
    if (text.Text().ok()) number = text;
    BATON_ASSIGN_OR_RETURN(const int64_t found, number.Int(0, high));
    return found;
  }
  absl::StatusOr<int64_t> Needed(const std::string& key, int64_t high, const Where& where) const {
    BATON_ASSIGN_OR_RETURN(const std::optional<int64_t> value, Int(key, high));
    if (value.has_value()) return *value;
    return where.Wrong(path_, absl::StrCat("has no ", key));
  }
  absl::StatusOr<std::string> NeededText(const std::string& key, const Where& where) const {
    BATON_ASSIGN_OR_RETURN(const std::optional<Value> value, Find(key));
    if (!value.has_value()) return where.Wrong(path_, absl::StrCat("has no ", key));
    return value->Member("stringValue").Text();
  }

 private:
  explicit Attributes(std::string path) : path_(std::move(path)) {}
  std::string path_;
  std::vector<Value> elements_;
};

absl::StatusOr<Chunk> ChunkOf(const Value& span, const Attributes& attributes, const Where& where) {
  Chunk chunk;
  BATON_ASSIGN_OR_RETURN(chunk.request.first, span.Member("traceId").Text());
  BATON_ASSIGN_OR_RETURN(chunk.request.second, span.Member("parentSpanId").Text());
  BATON_ASSIGN_OR_RETURN(const int64_t begin_ns,
                         span.Member("startTimeUnixNano").Int(0, INT64_MAX));
  BATON_ASSIGN_OR_RETURN(const int64_t end_ns,
                         span.Member("endTimeUnixNano").Int(begin_ns, INT64_MAX));
  chunk.begin_us = begin_ns / 1000;
  chunk.end_us = end_ns / 1000;
  BATON_ASSIGN_OR_RETURN(chunk.plan, attributes.Needed("baton.plan.number", INT64_MAX, where));
  BATON_ASSIGN_OR_RETURN(const int64_t begin,
                         attributes.Needed("baton.chunk.token_begin", kTokensMax, where));
  BATON_ASSIGN_OR_RETURN(const int64_t count,
                         attributes.Needed("baton.chunk.tokens", kTokensMax, where));
  chunk.token_begin = static_cast<int>(begin);
  chunk.token_count = static_cast<int>(count);
  if (count > 0) return chunk;
  return where.Wrong(span.path(), "a chunk without tokens");
}

// All chunks of a file, by the row that they are drawn in.
struct Read {
  std::map<Place, std::vector<Chunk>> rows;
  size_t chunks = 0;
  int64_t spans = 0;
};

absl::Status ReadResource(const Value& resource, const Where& where, Read& read) {
  const Value described = resource.Member("resource");
  if (!described.is_object()) return described.Wrong("an object");
  BATON_ASSIGN_OR_RETURN(const Attributes process, Attributes::Of(described.Member("attributes")));
  BATON_ASSIGN_OR_RETURN(const std::vector<Value> scopes, resource.Member("scopeSpans").Elements());
  for (const Value& scope : scopes) {
    BATON_ASSIGN_OR_RETURN(const std::vector<Value> spans, scope.Member("spans").Elements());
    for (const Value& span : spans) {
      ++read.spans;
      BATON_ASSIGN_OR_RETURN(const std::string name, span.Member("name").Text());
      if (name != kChunkSpan) continue;
      BATON_ASSIGN_OR_RETURN(const Attributes attributes,
                             Attributes::Of(span.Member("attributes")));
      Place place;
      BATON_ASSIGN_OR_RETURN(place.chain, process.NeededText("baton.chain.id", where));
      BATON_ASSIGN_OR_RETURN(place.stage, attributes.Needed("baton.stage", kPlaceMax, where));
      BATON_ASSIGN_OR_RETURN(const auto rank, process.Int("baton.rank", kPlaceMax));
      place.rank = rank.value_or(-1);
      BATON_ASSIGN_OR_RETURN(Chunk chunk, ChunkOf(span, attributes, where));
      if (++read.chunks > kChunksMax) {
        return where.Wrong(
            span.path(), absl::StrCat("is one chunk too many: ", kChunksMax, " are read at once"));
      }
      read.rows[place].push_back(std::move(chunk));
    }
  }
  return absl::OkStatus();
}

absl::Status ReadLine(const std::string& text, const Where& where, Read& read) {
  if (text.size() > kLineBytesMax) {
    return where.Wrong("the line", absl::StrCat("is longer than ", kLineBytesMax, " bytes"));
  }
  BATON_ASSIGN_OR_RETURN(
      const Json line,
      ParseJson(text, absl::StrCat(where.file, ": line ", where.line), DuplicateKeys::kKeepLast));
  if (!line.is_object())
    return where.Wrong("the line", absl::StrCat("is no object: ", Shown(line)));
  const Value whole(&line, "", &where);
  if (!line.contains("resourceSpans")) return whole.Member("resourceSpans").Wrong("a list");
  BATON_ASSIGN_OR_RETURN(const std::vector<Value> resources,
                         whole.Member("resourceSpans").Elements());
  for (const Value& resource : resources) {
    BATON_RETURN_IF_ERROR(ReadResource(resource, where, read));
  }
  return absl::OkStatus();
}

// Numbers requests by the start of their first chunk.
std::map<std::pair<std::string, std::string>, int> Numbered(const Read& read) {
  std::map<std::pair<std::string, std::string>, int64_t> first_us;
  for (const auto& [place, chunks] : read.rows) {
    for (const Chunk& chunk : chunks) {
      const auto [entry, is_new] = first_us.emplace(chunk.request, chunk.begin_us);
      if (!is_new) entry->second = std::min(entry->second, chunk.begin_us);
    }
  }
  std::vector<std::pair<int64_t, std::pair<std::string, std::string>>> order;
  order.reserve(first_us.size());
  for (const auto& [request, us] : first_us) order.emplace_back(us, request);
  std::sort(order.begin(), order.end());
  std::map<std::pair<std::string, std::string>, int> numbers;
  for (size_t i = 0; i < order.size(); ++i) numbers[order[i].second] = static_cast<int>(i);
  return numbers;
}

// A row's computations in order. Chunks of one plan have the same times; plans of two epochs don't.
std::vector<ComputeRecord> ComputesOf(
    const std::vector<Chunk>& chunks,
    const std::map<std::pair<std::string, std::string>, int>& numbers, int64_t zero_us) {
  std::map<std::tuple<int64_t, int64_t, int64_t>, ComputeRecord> plans;
  for (const Chunk& chunk : chunks) {
    ComputeRecord& record = plans[{chunk.begin_us, chunk.end_us, chunk.plan}];
    record.begin_us = chunk.begin_us - zero_us;
    record.end_us = chunk.end_us - zero_us;
    record.items.push_back({numbers.at(chunk.request), chunk.token_begin, chunk.token_count});
  }
  std::vector<ComputeRecord> computes;
  for (auto& [key, record] : plans) {
    std::sort(record.items.begin(), record.items.end(),
              [](const auto& a, const auto& b) { return a.request < b.request; });
    computes.push_back(std::move(record));
  }
  return computes;
}

// Keeps computations that start in the window; if there are too many, the earliest over all rows.
void Cut(Timeline& timeline, const TimelineWindow& window) {
  std::vector<std::pair<int64_t, size_t>> begins;  // Start, number of chunks.
  const auto outside = [&window](const ComputeRecord& compute) {
    return compute.begin_us < window.from_us || compute.begin_us >= window.to_us;
  };
  for (std::vector<Row>& chain : timeline.chains) {
    for (Row& row : chain) {
      std::erase_if(row.computes, outside);
      for (const ComputeRecord& compute : row.computes) {
        begins.emplace_back(compute.begin_us, compute.items.size());
      }
    }
  }
  std::sort(begins.begin(), begins.end());
  size_t kept = 0;
  for (const auto& [begin_us, chunks] : begins) {
    kept += chunks;
    if (kept <= static_cast<size_t>(window.limit)) continue;
    timeline.full = true;
    for (std::vector<Row>& chain : timeline.chains) {
      for (Row& row : chain) {
        std::erase_if(row.computes, [from_us = begin_us](const ComputeRecord& compute) {
          return compute.begin_us >= from_us;
        });
      }
    }
    return;
  }
}

SpanRun RunOf(const Read& read, const TimelineWindow& window) {
  const auto numbers = Numbered(read);
  SpanRun run;
  run.spans = read.spans;
  run.requests = static_cast<int>(numbers.size());
  run.begin_us = INT64_MAX;
  for (const auto& [place, chunks] : read.rows) {
    for (const Chunk& chunk : chunks) run.begin_us = std::min(run.begin_us, chunk.begin_us);
  }
  std::optional<std::string> chain;
  for (const auto& [place, chunks] : read.rows) {
    if (chain != place.chain) run.timeline.chains.emplace_back();
    chain = place.chain;
    std::string name = absl::StrCat(place.chain, ", stage ", place.stage);
    if (place.rank >= 0) absl::StrAppend(&name, ", rank ", place.rank);
    run.timeline.chains.back().push_back(
        {std::move(name), ComputesOf(chunks, numbers, run.begin_us)});
  }
  Cut(run.timeline, window);
  return run;
}

}  // namespace

absl::StatusOr<SpanRun> ReadSpans(std::istream& text, const std::string& file,
                                  const TimelineWindow& window) {
  Read read;
  Where where{file};
  std::string line;
  while (std::getline(text, line)) {
    ++where.line;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    BATON_RETURN_IF_ERROR(ReadLine(line, where, read));
  }
  if (read.chunks == 0) {
    return absl::NotFoundError(absl::StrCat(file, ": has no chunk: ", read.spans, " spans in ",
                                            where.line, " lines, none of them is called \"",
                                            kChunkSpan, "\""));
  }
  return RunOf(read, window);
}

}  // namespace baton::timeline
