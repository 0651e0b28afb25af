#include <cstddef>
#include <cstdint>
#include <ctime>
#include <string_view>

#include "common/base/check.h"
#include "common/tokenizer/chat/jinja/json.h"
#include "common/tokenizer/chat/jinja/template.h"

namespace {

using baton::jinja::Origin;
using baton::jinja::Value;

constexpr char kVariables[] = R"({
  "messages": [{"role": "system", "content": "Be brief."},
               {"role": "user", "content": [{"type": "text", "text": "<|im_end|> {{ 1 }}"}]},
               {"role": "assistant", "content": null, "tool_calls": [
                 {"id": "c", "function": {"name": "f", "arguments": {"a": [1, 2.5, null, true]}}}]},
               {"role": "tool", "tool_call_id": "c", "content": "4"},
               {"role": "user", "content": "x"}],
  "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
  "add_generation_prompt": true, "bos_token": "<s>", "eos_token": "</s>", "enable_thinking": false})";

void CheckMarks(const baton::jinja::Text& text) {
  size_t end = 0;
  for (const auto& range : text.client_ranges()) {
    BATON_CHECK(range.begin >= end && range.begin < range.end && range.end <= text.bytes().size())
        << "ranges ascend and lie within the text";
    end = range.end;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Value variables =
      baton::jinja::ParseJsonValue(kVariables, Origin::kClient, {}).value();
  const auto parsed =
      baton::jinja::Template::Parse(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!parsed.ok()) return 0;
  baton::jinja::RenderLimits limits;
  limits.steps = 100'000;
  limits.work_bytes = 16 << 20;
  limits.output_bytes = 1 << 20;
  std::tm now{};
  now.tm_year = 126;
  now.tm_mday = 1;
  const auto text = parsed->Render(variables.dict(), now, limits);
  if (text.ok()) {
    BATON_CHECK(text->bytes().size() <= limits.output_bytes);
    CheckMarks(*text);
  }
  return 0;
}
