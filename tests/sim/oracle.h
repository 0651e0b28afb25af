// What the right answer to a request is, computed from its inputs alone: by the toy model of
// content.h on plain arrays, without pages, chunks, stages or batches, and by the API's rules for
// when a sequence ends. Knows nothing of the cluster; everything in it is compared with this.
#ifndef TESTS_SIM_ORACLE_H_
#define TESTS_SIM_ORACLE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "common/types/sampled_token.h"

namespace baton::sim {

struct Inputs {
  uint64_t prompt_id = 0;
  int prompt_tokens = 0;
  int max_tokens = 0;
};

class Oracle {
 public:
  Oracle(int layers, int page_size, int max_context_tokens)
      : layers_(layers), page_size_(page_size), max_context_tokens_(max_context_tokens) {}

  struct Sequence {
    Inputs inputs;
    int layers = 0;
    std::vector<uint64_t> x;           // [position][0 .. layers]
    std::vector<SampledToken> answer;  // All of it.
    FinishReason reason = FinishReason::kLength;
    int prompt_pages = 0;
    int pages = 0;  // That decode reserves.

    // What enters `layer` at `position`, which is what the layer stores of it; what leaves the last
    // one for layer == layers.
    uint64_t X(int position, int layer) const {
      return x[static_cast<size_t>(position) * static_cast<size_t>(layers + 1) +
               static_cast<size_t>(layer)];
    }
    int positions() const { return static_cast<int>(x.size() / static_cast<size_t>(layers + 1)); }
  };

  // Registers a request. Prompts' ids are unique.
  void Expect(const Inputs& inputs) { inputs_[inputs.prompt_id] = inputs; }
  const Sequence& Of(uint64_t prompt_id);
  // The token at `position` of what a request with this prompt reads.
  int64_t TokenAt(uint64_t prompt_id, int position);

 private:
  // Runs one more token through all layers.
  void Extend(Sequence& sequence, std::vector<uint64_t>& sums, int64_t token) const;
  void Answer(Sequence& sequence, std::vector<uint64_t>& sums) const;
  Sequence Resumed(uint64_t prompt_id);
  int CountPages(int tokens) const;

  const int layers_;
  const int page_size_;
  const int max_context_tokens_;
  std::map<uint64_t, Inputs> inputs_;
  std::map<uint64_t, Sequence> sequences_;  // Computed when first asked for.
};

}  // namespace baton::sim

#endif  // TESTS_SIM_ORACLE_H_
