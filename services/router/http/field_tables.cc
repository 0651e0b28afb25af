// The tables of request_fields.h: OpenAI's fields and the extensions of vLLM and SGLang.
#include <initializer_list>

#include "services/router/http/request_fields.h"
#include "services/router/http/request_sampling.h"
#include "services/router/http/request_structure.h"

namespace baton::router {
namespace {

using Names = std::vector<std::string>;
using Unsupported = std::vector<FieldTable::Unsupported>;

template <typename List>
List Join(std::initializer_list<List> lists) {
  List all;
  for (const List& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

// What both of OpenAI's endpoints read besides.
const Names& OpenAiNames() {
  static const auto* names = new Names{"model",
                                       "stream",
                                       "stream_options",
                                       "logprobs",
                                       "prompt_logprobs",
                                       "truncate_prompt_tokens",
                                       "timeout",
                                       "cache_salt",
                                       "priority",
                                       "extra_key",
                                       "return_token_ids",
                                       "rid",
                                       "request_id",
                                       "add_special_tokens"};
  return *names;
}

// Hints, bookkeeping, and switches of things that these models do not have.
const Names& HarmlessNames() {
  static const auto* names = new Names{"user",
                                       "guided_decoding_backend",
                                       "metadata",
                                       "safety_identifier",
                                       "prompt_cache_key",
                                       "prompt_cache_retention",
                                       "parallel_tool_calls",
                                       "prediction",
                                       "spaces_between_special_tokens",
                                       "store",
                                       "service_tier",
                                       "include_reasoning",
                                       "separate_reasoning",
                                       "stream_reasoning",
                                       "log_metrics",
                                       "return_cached_tokens_details"};
  return *names;
}

const Unsupported& UnsupportedSampling() {
  static const auto* fields = new Unsupported{
      {"guided_whitespace_pattern", {}, "white space is as common/grammar has it"},
      {"structural_tag", {}, "use guided_grammar"},
      {"stop_regex", {}, "use stop or stop_token_ids"},
      {"use_beam_search", {false}, "use best_of"},
      {"length_penalty", {1}, ""},
      {"early_stopping", {false}, ""},
      {"allowed_token_ids", {}, "use logit_bias"},
      {"bad_words", {Json::array()}, "use logit_bias"},
      {"logits_processors", {Json::array()}, "use logit_bias"},
      {"custom_logit_processor", {}, "use logit_bias"},
      {"custom_params", {}, ""},
      {"detokenize", {true}, ""},
      {"vllm_xargs", {Json::object()}, ""},
  };
  return *fields;
}

const Unsupported& UnsupportedServing() {
  static const auto* fields = new Unsupported{
      {"lora_path", {}, "one model is served, without adapters"},
      {"lora_request", {}, "one model is served, without adapters"},
      {"session_params", {}, ""},
      {"return_hidden_states", {false}, ""},
      {"return_routed_experts", {false}, ""},
      {"return_tokens_as_token_ids", {false}, "use return_token_ids"},
      {"kv_transfer_params", {}, "Baton pairs prefill and decode itself"},
      {"bootstrap_host", {}, "Baton pairs prefill and decode itself"},
      {"bootstrap_port", {}, "Baton pairs prefill and decode itself"},
      {"bootstrap_room", {}, "Baton pairs prefill and decode itself"},
      {"data_parallel_rank", {}, "the router chooses"},
      {"mm_processor_kwargs", {Json::object()}, "prompts are text"},
  };
  return *fields;
}

}  // namespace

const FieldTable& CompletionFields() {
  static const auto* table = new FieldTable{
      "/v1/completions",
      Join({SamplingNames(), StructureNames(), OpenAiNames(), Names{"prompt", "best_of", "echo"}}),
      HarmlessNames(),
      Join({UnsupportedSampling(), UnsupportedServing(),
            Unsupported{{"thinking_token_budget", {}, "use /v1/chat/completions"},
                        {"suffix",
                         {""},
                         "the models served here continue a text, they do not fill "
                         "one in"},
                        {"top_logprobs", {}, "at /v1/completions logprobs is their number"},
                        {"messages", {}, "use /v1/chat/completions"},
                        {"prompt_embeds", {}, ""}}})};
  return *table;
}

const FieldTable& ChatFields() {
  static const auto* table = new FieldTable{
      "/v1/chat/completions",
      Join({SamplingNames(), StructureNames(), OpenAiNames(),
            Names{"messages", "top_logprobs", "add_generation_prompt", "continue_final_message",
                  "chat_template_kwargs", "tools", "tool_choice", "parallel_tool_calls",
                  "reasoning_effort", "separate_reasoning", "include_reasoning",
                  "thinking_token_budget", "thinking_budget"}}),
      HarmlessNames(),
      Join({UnsupportedSampling(), UnsupportedServing(),
            Unsupported{{"best_of", {1}, "use /v1/completions"},
                        {"echo", {false}, "use /v1/completions"},
                        {"suffix", {""}, ""},
                        {"prompt", {}, "use /v1/completions"},
                        {"functions", {Json::array()}, "use tools"},
                        {"function_call", {"none", "auto"}, "use tool_choice"},
                        {"modalities", {Json::array({"text"})}, ""},
                        {"audio", {}, ""},
                        {"web_search_options", {}, ""},
                        {"verbosity", {"medium"}, ""},
                        {"documents", {Json::array()}, ""},
                        {"enable_thinking", {}, "use chat_template_kwargs"},
                        {"thinking", {}, "use reasoning_effort or chat_template_kwargs"},
                        {"chat_template", {}, "it is chosen by --chat-template"}}})};
  return *table;
}

const FieldTable& MessageFields() {
  static const auto* table = new FieldTable{
      "a message",
      {"role", "content"},
      // The chat template writes them, or doesn't.
      {"name", "tool_call_id", "tool_calls", "refusal", "annotations", "reasoning",
       "reasoning_content", "provider_specific_fields", "thinking_blocks", "cache_control"},
      {{"function_call", {}, "use tool_calls"},
       {"audio", {}, "messages are text"},
       {"prefix", {false}, ""}}};
  return *table;
}

const FieldTable& ToolFields() {
  static const auto* table = new FieldTable{"a tool", {"type", "function"}, {"cache_control"}, {}};
  return *table;
}

const FieldTable& FunctionFields() {
  static const auto* table =
      new FieldTable{"a function",
                     {"name", "description", "parameters", "strict"},
                     {"return", "returns", "cache_control"},  // Hugging Face's describe a result.
                     {}};
  return *table;
}

const FieldTable& StreamOptionFields() {
  static const auto* table =
      new FieldTable{"stream_options",
                     {"include_usage", "continuous_usage_stats", "include_progress"},
                     {},
                     {{"include_obfuscation", {false}, ""}}};
  return *table;
}

const FieldTable& GenerateFields() {
  static const auto* table = new FieldTable{
      "/generate",
      {"text", "input_ids", "sampling_params", "rid", "stream", "return_logprob",
       "logprob_start_len", "top_logprobs_num", "return_text_in_logprobs", "timeout", "model",
       "cache_salt", "extra_key", "priority"},
      HarmlessNames(),
      Join({UnsupportedServing(), Unsupported{{"token_ids_logprob", {}, "use top_logprobs_num"},
                                              {"prompt_logprobs", {}, "use logprob_start_len"},
                                              {"input_embeds", {}, ""},
                                              {"image_data", {Json::array()}, "prompts are text"},
                                              {"video_data", {Json::array()}, "prompts are text"},
                                              {"audio_data", {Json::array()}, "prompts are text"},
                                              {"modalities", {Json::array()}, "prompts are text"},
                                              {"custom_logit_processor", {}, "use logit_bias"},
                                              {"stream_options", {}, "usage is in meta_info"}}})};
  return *table;
}

const FieldTable& SamplingParamsFields() {
  static const auto* table = new FieldTable{
      "sampling_params",
      Join({SamplingNames(), StructureNames()}),
      {"guided_decoding_backend", "spaces_between_special_tokens", "stream_interval"},
      Join({UnsupportedSampling(),
            Unsupported{{"thinking_token_budget", {}, "use /v1/chat/completions"}}})};
  return *table;
}

const FieldTable& TokenizeFields() {
  static const auto* table =
      new FieldTable{"/tokenize",
                     {"model", "prompt", "messages", "add_special_tokens", "add_generation_prompt",
                      "continue_final_message", "chat_template_kwargs", "tools", "tool_choice",
                      "reasoning_effort", "return_token_strs"},
                     {},
                     {{"chat_template", {}, "it is chosen by --chat-template"}}};
  return *table;
}

const FieldTable& DetokenizeFields() {
  static const auto* table =
      new FieldTable{"/detokenize", {"model", "tokens", "skip_special_tokens"}, {}, {}};
  return *table;
}

const FieldTable& AbortFields() {
  static const auto* table = new FieldTable{
      "/abort_request", {"rid", "abort_all"}, {"finished_reason", "abort_message"}, {}};
  return *table;
}

}  // namespace baton::router
