// What chooses the next token and ends the text, in OpenAI's, vLLM's and SGLang's spellings.
#ifndef SERVICES_ROUTER_HTTP_REQUEST_SAMPLING_H_
#define SERVICES_ROUTER_HTTP_REQUEST_SAMPLING_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "services/router/gateway.h"
#include "services/router/http/json_input.h"

namespace baton::router {

// Every name that ReadSampling looks for, and "n".
std::vector<std::string> SamplingNames();

// Those that mean in every protocol what they mean in chats: not how long a text is and what stops
// it, which others call otherwise.
std::vector<std::string> SharedSamplingNames();

// Fills call.sampling (without log-probabilities), call.text and call.names. Types are checked
// here, ranges by the gateway.
absl::Status ReadSampling(const Fields& fields, GenerateCall& call);

// INVALID_ARGUMENT, naming `name`, for a number that no request may ask for.
absl::Status SetTopLogprobs(int64_t count, const std::string& name, v1::SamplingParams& sampling);

// `n`, from 1 on; 1 if absent.
absl::StatusOr<int64_t> ReadCount(const Fields& fields, const char* name, int64_t absent);

// cache_salt, vLLM's, and extra_key, SGLang's: both keep prompts' cached KV apart.
absl::StatusOr<std::string> ReadCacheSalt(const Fields& fields);

// 0 if absent.
absl::StatusOr<int64_t> ReadPriority(const Fields& fields);

// Seconds from the field "timeout" or `header` (X-Request-Timeout), the shorter of the two, in
// milliseconds; 0 if there is neither.
absl::StatusOr<int64_t> ReadTimeoutMs(const Fields& fields, std::string_view header);

}  // namespace baton::router

#endif  // SERVICES_ROUTER_HTTP_REQUEST_SAMPLING_H_
