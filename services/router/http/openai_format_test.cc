#include "services/router/http/openai_format.h"

#include <gtest/gtest.h>

#include "services/router/http/respond.h"

namespace baton::router {
namespace {

class TextChunkTest : public testing::TestWithParam<Endpoint> {};

TEST_P(TextChunkTest, HasTheBytesOfAnyChunk) {
  AnswerHeader header;
  header.endpoint = GetParam();
  header.id = "cmpl-\"1\"";
  header.model = "a \1 model";
  header.created_s = 1'700'000'000;
  for (const bool usage : {false, true}) {
    header.usage = usage;
    const TextChunk chunk(header, 3);
    for (const char* text : {"word", "\1", "\"\\\n", "\xe2\x82\xac", "\xe2\x82"}) {
      ChoicePart part;
      part.index = 3;
      part.text = text;
      EXPECT_EQ(chunk.With(text), Dump(Chunk(header, ChunkChoice(header, part), {})));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Endpoints, TextChunkTest,
                         testing::Values(Endpoint::kCompletions, Endpoint::kChatCompletions));

}  // namespace
}  // namespace baton::router
