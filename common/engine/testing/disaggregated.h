// A prefill chain of stages and ranks and a decode service of ranks in one process: prompts are
// computed by the one and continued by the other, to which their KV goes as the routes between the
// two say (common/kv/head_routes.h).
#ifndef COMMON_ENGINE_TESTING_DISAGGREGATED_H_
#define COMMON_ENGINE_TESTING_DISAGGREGATED_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "common/engine/testing/rank_chain.h"
#include "common/kv/head_routes.h"

namespace baton::testing {

inline KvBand BandOf(const KvGeometry& kv) {
  return {{kv.layer_begin, kv.layer_end}, kv.kv_heads, kv.HeadBytes(), kv.planes};
}

// Through the doors that a transport uses; both sides say the same of the bytes.
inline void CopyKv(KvMemory& from, const KvPiece& source, KvMemory& to, const KvPiece& target) {
  uint64_t sent = 0;
  from.Export({source}, [&](absl::StatusOr<ExportedKv> exported) {
    ASSERT_TRUE(exported.ok()) << exported.status();
    const std::span<std::byte> bytes = exported->memory.Host();
    std::memcpy(to.Landing(target).Host().data(), bytes.data(), bytes.size());
    sent = exported->checksum;
    from.EndExport(exported->export_id);
  });
  to.FinishLanding({target}, [&](absl::StatusOr<uint64_t> landed) {
    ASSERT_TRUE(landed.ok()) << landed.status();
    EXPECT_EQ(*landed, sent);
  });
}

class Disaggregated {
 public:
  // `decode` is one stage of all layers, on pages in another order.
  Disaggregated(std::shared_ptr<RankChain> prefill, std::shared_ptr<RankChain> decode)
      : prefill_(std::move(prefill)), decode_(std::move(decode)) {}

  // The logits after `tokens`, whose KV goes behind the `prefix` tokens already there: those of a
  // prompt of `prompt_tokens` by prefill, which hands over what it has at its end, and those behind
  // it by decode.
  std::vector<float> Logits(std::span<const int32_t> tokens, int prefix, int prompt_tokens) {
    if (prefix >= prompt_tokens) return decode_->Logits(tokens, prefix);
    std::vector<float> logits = prefill_->Logits(tokens, prefix);
    if (prefix + static_cast<int>(tokens.size()) >= prompt_tokens) HandOver(prompt_tokens);
    return logits;
  }

 private:
  void HandOver(int tokens) {
    const int page_size = decode_->stage(0).rank(0).kv().page_size;
    const size_t pages = static_cast<size_t>((tokens + page_size - 1) / page_size);
    // What does not come would be seen.
    for (size_t rank = 0; rank < decode_->stage(0).size(); ++rank) {
      StageModel& model = decode_->stage(0).rank(rank);
      for (const int32_t page : decode_->pages().first(pages)) {
        std::ranges::fill(model.kv_memory().Landing({page, 0, model.kv().PageBytes()}).Host(),
                          std::byte{0xFF});
      }
    }
    for (size_t stage = 0; stage < prefill_->stages(); ++stage) {
      RankedStage& ranks = prefill_->stage(stage);
      for (size_t source = 0; source < ranks.size(); ++source) {
        StageModel& model = ranks.rank(source);
        model.kv_memory().ClearTail(prefill_->pages()[pages - 1],
                                    tokens - static_cast<int>(pages - 1) * page_size);
        for (size_t target = 0; target < decode_->stage(0).size(); ++target) {
          const TensorRank from = {static_cast<int>(source), static_cast<int>(ranks.size())};
          const TensorRank to = {static_cast<int>(target),
                                 static_cast<int>(decode_->stage(0).size())};
          Send(model, from, decode_->stage(0).rank(target), to, pages);
        }
      }
    }
  }

  void Send(StageModel& from, TensorRank source, StageModel& to, TensorRank target, size_t pages) {
    const auto route = RouteBetween(from.config().num_key_value_heads, source, target);
    if (!route.has_value()) return;
    for (const PageRun& run : PageRuns(*route, BandOf(from.kv()), BandOf(to.kv()))) {
      for (size_t page = 0; page < pages; ++page) {
        CopyKv(from.kv_memory(), {prefill_->pages()[page], run.source_offset, run.bytes},
               to.kv_memory(), {decode_->pages()[page], run.destination_offset, run.bytes});
      }
    }
  }

  const std::shared_ptr<RankChain> prefill_;
  const std::shared_ptr<RankChain> decode_;
};

}  // namespace baton::testing

#endif  // COMMON_ENGINE_TESTING_DISAGGREGATED_H_
