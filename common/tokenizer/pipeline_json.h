// The parts of tokenizer.json around its model: normalizer, pre-tokenizer, post-processor, decoder.
#ifndef COMMON_TOKENIZER_PIPELINE_JSON_H_
#define COMMON_TOKENIZER_PIPELINE_JSON_H_

#include "absl/status/status.h"
#include "common/tokenizer/json_reader.h"
#include "common/tokenizer/tokenizer_json.h"

namespace baton {

// Each reads one part, which may be null, into `spec`; errors as ParseTokenizerJson's.
absl::Status ReadNormalizer(const JsonReader& normalizer, TokenizerSpec* spec);
// Sets `spec->byte_level` too.
absl::Status ReadPreTokenizer(const JsonReader& pre_tokenizer, TokenizerSpec* spec);
absl::Status ReadPostProcessor(const JsonReader& post_processor, TokenizerSpec* spec);
// Needs what ReadPreTokenizer has read.
absl::Status ReadDecoder(const JsonReader& decoder, TokenizerSpec* spec);

}  // namespace baton

#endif  // COMMON_TOKENIZER_PIPELINE_JSON_H_
