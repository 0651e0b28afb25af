// The map from a chain's layout to a decode service's: pipelines and tensor-parallel ranks on both
// sides, whatever their numbers.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "common/kv/head_routes.h"
#include "common/types/ticket.h"

namespace baton {
namespace {

constexpr int kLayouts = 10'000;
constexpr int kPlanes = 2;
constexpr size_t kHeadBytes = 3;  // Of a page; odd, so that nothing fits by chance.

struct Shape {
  std::vector<LayerRange> stages;
  int ranks = 1;

  std::vector<KvPlace> places() const {
    std::vector<KvPlace> all;
    for (const LayerRange& layers : stages) {
      for (int rank = 0; rank < ranks; ++rank) all.push_back({layers, {rank, ranks}});
    }
    return all;
  }
};

class Layouts {
 public:
  explicit Layouts(uint32_t seed) : random_(seed) {}
  int Between(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }

  Shape Draw(int layers, int kv_heads) {
    Shape shape;
    const int stages = Between(1, std::min(layers, 4));
    std::vector<int> cuts(static_cast<size_t>(layers) - 1);
    for (size_t i = 0; i < cuts.size(); ++i) cuts[i] = static_cast<int>(i) + 1;
    std::shuffle(cuts.begin(), cuts.end(), random_);
    cuts.resize(static_cast<size_t>(stages) - 1);
    cuts.push_back(layers);
    std::sort(cuts.begin(), cuts.end());
    int begin = 0;
    for (const int end : cuts) {
      shape.stages.push_back({begin, end});
      begin = end;
    }
    do {
      shape.ranks = Between(1, 8);
    } while (kv_heads % shape.ranks != 0 && shape.ranks % kv_heads != 0);
    return shape;
  }

 private:
  std::mt19937 random_;
};

KvBand BandOf(const KvPlace& place, int kv_heads) {
  return {place.layers, KvHeadsOf(kv_heads, place.rank).size(), kHeadBytes, kPlanes};
}

// What a byte of a page is: which of the model's layers and heads, which plane, where in the head.
uint64_t NameOf(int layer, int plane, int head, size_t at) {
  return ((static_cast<uint64_t>(layer) * kPlanes + static_cast<uint64_t>(plane)) * 1000 +
          static_cast<uint64_t>(head)) *
             kHeadBytes +
         at + 1;
}

std::vector<uint64_t> PageOf(const KvPlace& place, int kv_heads) {
  const KvBand band = BandOf(place, kv_heads);
  const IndexRange heads = KvHeadsOf(kv_heads, place.rank);
  std::vector<uint64_t> page(band.PageBytes());
  for (int layer = place.layers.begin; layer < place.layers.end; ++layer) {
    for (int plane = 0; plane < kPlanes; ++plane) {
      for (int head = heads.begin; head < heads.end; ++head) {
        const size_t at = band.OffsetOf(layer, plane, head - heads.begin);
        for (size_t i = 0; i < kHeadBytes; ++i) page[at + i] = NameOf(layer, plane, head, i);
      }
    }
  }
  return page;
}

// Sends a page in messages of `part` bytes, as a writer gathers and a receiver scatters them.
void Send(const KvBox& box, const KvPlace& from, const KvPlace& to, int kv_heads, size_t part,
          std::vector<uint64_t>& page) {
  const std::vector<uint64_t> source = PageOf(from, kv_heads);
  const KvBand sent{box.layers, box.heads.size(), kHeadBytes, kPlanes};
  for (size_t offset = 0; offset < sent.PageBytes(); offset += part) {
    const size_t bytes = std::min(part, sent.PageBytes() - offset);
    std::vector<uint64_t> message(sent.PageBytes());
    for (const PageRun& run : MessageRuns(box.layers, box.heads, BandOf(from, kv_heads),
                                          KvHeadsOf(kv_heads, from.rank).begin, offset, bytes)) {
      std::copy_n(source.begin() + static_cast<std::ptrdiff_t>(run.destination_offset), run.bytes,
                  message.begin() + static_cast<std::ptrdiff_t>(run.source_offset));
    }
    for (const PageRun& run : MessageRuns(box.layers, box.heads, BandOf(to, kv_heads),
                                          KvHeadsOf(kv_heads, to.rank).begin, offset, bytes)) {
      for (size_t i = 0; i < run.bytes; ++i) {
        uint64_t& byte = page[run.destination_offset + i];
        ASSERT_EQ(byte, 0u) << "a byte comes twice";
        byte = message[run.source_offset + i];
      }
    }
  }
}

TEST(LayoutsTest, EachByteComesOnceWhateverTheLayouts) {
  Layouts layouts(7);
  for (int i = 0; i < kLayouts && !testing::Test::HasFailure(); ++i) {
    const int layers = layouts.Between(1, 9);
    const int kv_heads = layouts.Between(1, 8);
    const Shape from = layouts.Draw(layers, kv_heads);
    const Shape to = layouts.Draw(layers, kv_heads);
    const auto part = static_cast<size_t>(layouts.Between(1, 40));
    SCOPED_TRACE(testing::Message() << "layout " << i << ": " << layers << " layers, " << kv_heads
                                    << " heads, " << from.stages.size() << " x " << from.ranks
                                    << " to " << to.stages.size() << " x " << to.ranks);
    for (const KvPlace& destination : to.places()) {
      std::vector<uint64_t> page(BandOf(destination, kv_heads).PageBytes());
      for (const KvPlace& source : from.places()) {
        const auto box = BoxBetween(kv_heads, source, destination);
        if (box.has_value()) Send(*box, source, destination, kv_heads, part, page);
      }
      ASSERT_EQ(page, PageOf(destination, kv_heads));
    }
  }
}

// The last layers' first head is what tells a first token, and goes to who draws the next.
TEST(LayoutsTest, TheLastStagesTalkToOneAnother) {
  Layouts layouts(11);
  for (int i = 0; i < 1000; ++i) {
    const int layers = layouts.Between(1, 9);
    const int kv_heads = layouts.Between(1, 8);
    const Shape from = layouts.Draw(layers, kv_heads);
    const Shape to = layouts.Draw(layers, kv_heads);
    const auto box = BoxBetween(kv_heads, {from.stages.back(), {0, from.ranks}},
                                {to.stages.back(), {0, to.ranks}});
    ASSERT_TRUE(box.has_value());
    EXPECT_EQ(box->layers.end, layers);
  }
}

TEST(LayoutsTest, ATicketSaysThePlacesOfItsService) {
  Ticket ticket;
  ticket.followers = {{"d-1", 1}, {"d-2", 1}, {"d-3", 1}};
  EXPECT_EQ(PlacesOf(ticket, 6),
            (std::vector<KvPlace>{
                {{0, 6}, {0, 4}}, {{0, 6}, {1, 4}}, {{0, 6}, {2, 4}}, {{0, 6}, {3, 4}}}));
  ticket.stages = {{0, 2}, {2, 6}};
  EXPECT_EQ(ticket.ranks(), 2);
  EXPECT_EQ(PlacesOf(ticket, 6),
            (std::vector<KvPlace>{
                {{0, 2}, {0, 2}}, {{0, 2}, {1, 2}}, {{2, 6}, {0, 2}}, {{2, 6}, {1, 2}}}));
}

// What a stage is told of the writers has its own layers alone.
TEST(LayoutsTest, WritersAreClippedToTheirReceiver) {
  const std::vector<KvWriter> writers{{{"p-0", 1}, {0, 3}, {}}, {{"p-1", 1}, {3, 6}, {}}};
  const auto to = WritersTo(writers, 2, {{2, 4}, {1, 2}});
  ASSERT_EQ(to.size(), 2u);
  EXPECT_EQ(to[0].layers, (LayerRange{2, 3}));
  EXPECT_EQ(to[1].layers, (LayerRange{3, 4}));
  EXPECT_EQ(WritersTo(writers, 2, {{3, 6}, {0, 2}}).size(), 1u);
}

}  // namespace
}  // namespace baton
