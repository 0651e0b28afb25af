// All combinations of the axes that parity_matrix_test takes by pairs: `./dev check parity`. A case
// for each way to prefill; its groups go on to every way to decode. Too long for every run.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "common/engine/testing/parity_matrix.h"

namespace baton {
namespace {

using testing::ParityRow;

// Slices alternate: they and what makes them, ranks, are in the table of pairs.
std::vector<ParityRow> Prefills() {
  std::vector<ParityRow> rows;
  for (const char* family : testing::kParityFamilies) {
    for (const Backend backend : testing::kParityBackends) {
      for (const testing::ParityShape& shape : testing::kParityShapes) {
        for (const int chunks : testing::kParityChunks) {
          for (const ElementType dtype : kElementTypes) {
            for (const ElementType kv : kElementTypes) {
              const bool slices = rows.size() % 2 == 0;
              rows.push_back({family, backend, shape, slices, chunks, backend, 1, dtype, kv});
            }
          }
        }
      }
    }
  }
  return rows;
}

class ParityProductTest : public ::testing::TestWithParam<ParityRow> {};

TEST_P(ParityProductTest, TokensAreHuggingFacesWhoeverDecodes) {
  ParityRow row = GetParam();
  const auto prefill = testing::PrefillOf(row);
  for (const Backend backend : testing::kParityBackends) {
    for (const int ranks : testing::kParityDecodeRanks) {
      row.decode = backend;
      row.decode_ranks = ranks;
      SCOPED_TRACE(row.Name());
      testing::ExpectParity(row, prefill, testing::DecodeOf(row));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Rows, ParityProductTest, ::testing::ValuesIn(Prefills()),
                         [](const auto& info) { return info.param.Name(); });

}  // namespace
}  // namespace baton
