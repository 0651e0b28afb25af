#include "services/router/traffic_log.h"

#include <limits>
#include <utility>

namespace baton::router {
namespace {

constexpr int64_t kPeriodUs = 10'000'000;
constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

std::string_view MessageOf(const absl::Status& status) {
  return {status.message().data(), status.message().size()};
}

double Milliseconds(int64_t us) { return static_cast<double>(us) / 1000; }

}  // namespace

TrafficLog::TrafficLog(bool requests, Write write)
    : requests_(requests),
      write_(write != nullptr
                 ? std::move(write)
                 : [](std::string_view message, std::initializer_list<LogField> fields) {
                     LogEvent(LogLevel::kInfo, message, fields);
                   }) {}

void TrafficLog::LogRefused(Endpoint endpoint, const std::string& request_id,
                            const std::string& trace_id, const absl::Status& status) const {
  if (!requests_) return;
  const std::string code = absl::StatusCodeToString(status.code());
  write_("request", {{"id", request_id},
                     {"endpoint", EndpointName(endpoint)},
                     {"status", code},
                     {"trace_id", trace_id},
                     {"error", MessageOf(status)}});
}

void TrafficLog::LogEnd(const RequestEnd& end) {
  ++ended_;
  if (!requests_) return;
  const std::string code = absl::StatusCodeToString(end.status.code());
  const int after_first = end.completion_tokens - 1;
  write_("request",
         {{"id", end.request_id},
          {"endpoint", EndpointName(end.endpoint)},
          {"status", code},
          {"finish", FinishName(end)},
          {"tokens_in", int64_t{end.prompt_tokens}},
          {"tokens_out", int64_t{end.completion_tokens}},
          {"cached", int64_t{end.cached_tokens}},
          {"ttft_ms", end.completion_tokens > 0 ? Milliseconds(end.ttft_us) : kNone},
          {"tpot_ms", after_first > 0 ? Milliseconds(end.decode_us) / after_first : kNone},
          {"e2e_ms", Milliseconds(end.duration_us)},
          {"chain", end.chain_id},
          {"decode", end.decode_instance},
          {"attempts", int64_t{end.attempts}},
          {"resumes", int64_t{end.resumes}},
          {"trace_id", end.trace_id},
          {"error", MessageOf(end.status)}});
}

void TrafficLog::Wake(int64_t now_us, const RouterLoad& load, size_t ready_pairs) {
  const bool quiet = Idle() && load.in_flight == 0;
  if (begun_us_ == 0) {
    if (!quiet) begun_us_ = now_us;
    return;
  }
  if (now_us < begun_us_ + kPeriodUs) return;
  const double seconds = static_cast<double>(now_us - begun_us_) / 1e6;
  begun_us_ = quiet ? 0 : now_us;
  if (quiet) return;
  write_("traffic", {{"requests", ended_},
                     {"tokens_in_per_s", static_cast<double>(prompt_tokens_) / seconds},
                     {"tokens_out_per_s", static_cast<double>(completion_tokens_) / seconds},
                     {"running", int64_t{load.in_flight - load.waiting - load.reserving}},
                     {"waiting", int64_t{load.waiting + load.reserving}},
                     {"ready_pairs", static_cast<int64_t>(ready_pairs)}});
  ended_ = prompt_tokens_ = completion_tokens_ = 0;
}

}  // namespace baton::router
