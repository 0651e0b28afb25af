// The parts of tokenizer.json around its model: normalizer, pre-tokenizer, post-processor, decoder.
#ifndef COMMON_TOKENIZER_PIPELINE_JSON_H_
#define COMMON_TOKENIZER_PIPELINE_JSON_H_

#include <cstddef>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/tokenizer/json_reader.h"
#include "common/tokenizer/tokenizer_json.h"

namespace baton {

// The most elements of a component, and of a list inside it.
inline constexpr size_t kMaxSequence = 16;

// The elements of a component of type Sequence, which stand under `key`, and of those inside it;
// else the component alone.
absl::StatusOr<std::vector<JsonReader>> Flatten(const JsonReader& component, std::string_view key);

// Each reads one part, which may be null, into `spec`; errors as ParseTokenizerJson's.
absl::Status ReadNormalizer(const JsonReader& normalizer, TokenizerSpec* spec);
// Sets `spec->bpe.byte_level` too.
absl::Status ReadPreTokenizer(const JsonReader& pre_tokenizer, TokenizerSpec* spec);
// In post_processor_json.cc.
absl::Status ReadPostProcessor(const JsonReader& post_processor, TokenizerSpec* spec);
// Needs what ReadPreTokenizer has read.
absl::Status ReadDecoder(const JsonReader& decoder, TokenizerSpec* spec);

}  // namespace baton

#endif  // COMMON_TOKENIZER_PIPELINE_JSON_H_
