#include "common/engine/torch/torch_step.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <span>

namespace baton {
namespace {

// Numbers that go to the device together. Views of them are taken once all are known.
class Numbers {
 public:
  struct Place {
    int64_t begin = 0;
    int64_t count = 0;
  };

  template <typename Range>
  Place Add(const Range& values) {
    const auto begin = static_cast<int64_t>(values_.size());
    values_.insert(values_.end(), values.begin(), values.end());
    return {begin, static_cast<int64_t>(values_.size()) - begin};
  }
  void Upload(const TorchDevice& device, TorchStep& step) {
    const at::Tensor host =
        device.AllocateStaging(values_.size() * sizeof(int64_t)).view(at::kLong);
    std::memcpy(host.data_ptr(), values_.data(), host.nbytes());
    uploaded_ = device.Upload(host);
    step.staging.push_back(host);
  }
  at::Tensor View(const Place& place) const {
    return uploaded_.narrow(0, place.begin, place.count);
  }

 private:
  std::vector<int64_t> values_;
  at::Tensor uploaded_;
};

struct Decoding : SeenPages {
  int64_t row = 0;
};

// Where the numbers of a step lie, before they are uploaded.
struct Places {
  struct Block {
    int64_t rows = 0;
    int64_t first_page = 0;
    int64_t pages = 0;
    Numbers::Place table;
    bool edges = false;  // Whether some rows see only a part of it.
  };
  struct Group {
    Numbers::Place begins, ends;  // One for each row.
    std::vector<Block> blocks;
  };
  Numbers::Place tokens, positions, page, slot, last, kv_heads, decode_rows;
  Numbers::Place lengths, starts, ids;  // What PagedRows has.
  std::vector<Numbers::Place> chunk_pages;
  std::vector<Group> groups;
};

// The next pages of the rows, which see `first` pages and more; of at most `pages_at_once` pages
// unless a short rest is taken along.
Places::Block PlanBlock(std::span<const Decoding> rows, int64_t first, int64_t pages_at_once,
                        int64_t page_size, Numbers& numbers) {
  const auto active = static_cast<int64_t>(rows.size());
  const int64_t fits = std::max<int64_t>(1, pages_at_once / active);
  const int64_t left = rows[0].count() - first;
  const int64_t count = left <= fits + fits / 2 ? left : fits;
  Places::Block block = {active, first, count, {}, false};
  std::vector<int64_t> table;
  for (const Decoding& one : rows) {
    for (int64_t page = first; page < first + count; ++page) {
      table.push_back(one.pages[static_cast<size_t>(std::min(page, one.count() - 1))]);
    }
    block.edges |= one.end < (first + count) * page_size || one.begin > first * page_size;
  }
  block.table = numbers.Add(table);
  return block;
}

// Cuts what a group's rows see into blocks; a row is in no block behind its end.
Places::Group PlanGroup(std::span<const Decoding> rows, int64_t pages_at_once, int64_t page_size,
                        Numbers& numbers) {
  std::vector<int64_t> begins, ends;
  for (const Decoding& one : rows) {
    begins.push_back(one.begin);
    ends.push_back(one.end);
  }
  Places::Group group = {numbers.Add(begins), numbers.Add(ends), {}};
  for (int64_t first = 0; first < rows[0].count(); first += group.blocks.back().pages) {
    size_t active = rows.size();
    while (rows[active - 1].count() <= first) --active;
    group.blocks.push_back(PlanBlock(rows.first(active), first, pages_at_once, page_size, numbers));
  }
  return group;
}

void PlanDecodes(std::vector<Decoding> decoding, const StepShape& shape, Numbers& numbers,
                 Places& places) {
  std::stable_sort(decoding.begin(), decoding.end(),
                   [](const Decoding& a, const Decoding& b) { return a.count() > b.count(); });
  std::vector<int64_t> rows;
  for (const Decoding& one : decoding) rows.push_back(one.row);
  places.decode_rows = numbers.Add(rows);
  const int64_t page_elements = shape.page_size * shape.kv_heads * shape.head_dim;
  const int64_t pages = std::max<int64_t>(1, shape.gather_elements / page_elements);
  const std::span<const Decoding> all = decoding;
  for (size_t first = 0; first < all.size(); first += static_cast<size_t>(pages)) {
    const size_t count = std::min(static_cast<size_t>(pages), all.size() - first);
    places.groups.push_back(PlanGroup(all.subspan(first, count), pages, shape.page_size, numbers));
  }
}

// [rows, 1, 1, 1, tokens]: true where a row's sequence has ended, or has not begun.
at::Tensor Unseen(const Places::Block& block, const at::Tensor& begins, const at::Tensor& ends,
                  const StepShape& shape) {
  const int64_t first = block.first_page * shape.page_size;
  const at::Tensor at =
      at::arange(first, first + block.pages * shape.page_size, begins.options()).unsqueeze(0);
  at::Tensor unseen = at.ge(ends.narrow(0, 0, block.rows).unsqueeze(1));
  if (shape.window > 0) {
    unseen = unseen.logical_or_(at.lt(begins.narrow(0, 0, block.rows).unsqueeze(1)));
  }
  return unseen.unsqueeze(1).unsqueeze(1).unsqueeze(1);
}

// The pages of all single tokens, one sequence's behind the other's.
void PlanPaged(const std::vector<Decoding>& decoding, Numbers& numbers, Places& places) {
  std::vector<int64_t> rows, starts, ids, lengths;
  rows.reserve(decoding.size());
  starts.reserve(decoding.size());
  lengths.reserve(decoding.size());
  for (const Decoding& one : decoding) {
    rows.push_back(one.row);
    starts.push_back(static_cast<int64_t>(ids.size()));
    ids.insert(ids.end(), one.pages.begin(), one.pages.end());
    lengths.push_back(one.end);
  }
  places.decode_rows = numbers.Add(rows);
  places.lengths = numbers.Add(lengths);
  places.starts = numbers.Add(starts);
  places.ids = numbers.Add(ids);
}

}  // namespace

SeenPages PagesSeenBy(const SequenceSlice& slice, int64_t page_size, int64_t window) {
  const int64_t length = int64_t{slice.prefix_length} + 1;
  const int64_t lowest = window > 0 ? std::max<int64_t>(0, length - window) : 0;
  const int64_t first = lowest / page_size;
  const int64_t last = (length + page_size - 1) / page_size;
  return {slice.pages.subspan(static_cast<size_t>(first), static_cast<size_t>(last - first)),
          lowest - first * page_size, length - first * page_size};
}

TorchRotary::TorchRotary(const ModelConfig& config, bool sliding, const TorchDevice& device)
    : rotary_(config, sliding) {
  if (device.is_host()) return;
  const std::span<const float> own = rotary_.frequencies();
  const at::Tensor host = at::empty({1, rotary_.half_dim()}, at::kFloat);
  std::copy(own.begin(), own.end(), host.data_ptr<float>());
  frequencies_ = host.to(device.device());
}

at::Tensor TorchRotary::Angles(const at::Tensor& positions, c10::ScalarType type,
                               const DeviceKernels* kernels) const {
  if (kernels != nullptr) return kernels->Angles(positions, frequencies_, rotary_.magnitude());
  const int64_t tokens = positions.size(0);
  const int64_t half = rotary_.half_dim();
  if (frequencies_.defined()) {
    // Rounded where Rotary::Angles rounds.
    const at::Tensor angles =
        (positions.to(at::kFloat).unsqueeze(1) * frequencies_).to(at::kDouble).unsqueeze(1);
    return (at::stack({angles.cos(), angles.sin()}).to(at::kFloat) * rotary_.magnitude()).to(type);
  }
  const at::Tensor angles = at::empty({2, tokens, 1, half}, at::kFloat);
  auto* cos = angles.data_ptr<float>();
  float* sin = cos + tokens * half;
  for (int64_t token = 0; token < tokens; ++token, cos += half, sin += half) {
    rotary_.Angles(static_cast<int>(positions.data_ptr<int64_t>()[token]), cos, sin);
  }
  return angles.to(type);
}

TorchStep PlanStep(const Batch& batch, const StepShape& shape, const TorchDevice& device) {
  TorchStep step;
  Numbers numbers;
  Places places;
  std::vector<int64_t> tokens, positions, page, slot, last;
  std::vector<Decoding> decoding;
  int64_t row = 0;
  for (const SequenceSlice& slice : batch.slices) {
    tokens.insert(tokens.end(), slice.tokens.begin(), slice.tokens.end());
    for (int64_t token = 0; token < slice.token_count; ++token) {
      const int64_t position = slice.prefix_length + token;
      positions.push_back(position);
      page.push_back(slice.pages[static_cast<size_t>(position / shape.page_size)]);
      slot.push_back(position % shape.page_size);
    }
    if (slice.token_count == 1) {
      decoding.push_back({PagesSeenBy(slice, shape.page_size, shape.window), row});
    } else {
      const int64_t pages = (slice.prefix_length + shape.page_size - 1) / shape.page_size;
      step.chunks.push_back({row, slice.token_count, slice.prefix_length, {}});
      places.chunk_pages.push_back(
          numbers.Add(std::span(slice.pages).first(static_cast<size_t>(pages))));
    }
    row += slice.token_count;
    if (slice.wants_row()) last.push_back(row - 1);
  }
  std::vector<int64_t> heads(static_cast<size_t>(shape.kv_heads));
  std::iota(heads.begin(), heads.end(), 0);
  places.tokens = numbers.Add(tokens);
  places.positions = numbers.Add(positions);
  places.page = numbers.Add(page);
  places.slot = numbers.Add(slot);
  places.last = numbers.Add(last);
  places.kv_heads = numbers.Add(heads);
  if (shape.paged) {
    PlanPaged(decoding, numbers, places);
  } else {
    PlanDecodes(std::move(decoding), shape, numbers, places);
  }
  numbers.Upload(device, step);
  step.tokens = numbers.View(places.tokens);
  step.positions = numbers.View(places.positions);
  step.page = numbers.View(places.page);
  step.slot = numbers.View(places.slot);
  step.last = numbers.View(places.last);
  step.kv_heads = numbers.View(places.kv_heads);
  for (size_t i = 0; i < step.chunks.size(); ++i) {
    step.chunks[i].pages = numbers.View(places.chunk_pages[i]);
  }
  if (places.decode_rows.count > 0) step.decode_rows = numbers.View(places.decode_rows);
  if (shape.paged) {
    step.paged = {numbers.View(places.lengths), numbers.View(places.starts),
                  numbers.View(places.ids)};
  }
  int64_t first = 0;
  for (const Places::Group& group : places.groups) {
    TorchStep::DecodeGroup& told = step.decode_groups.emplace_back();
    told.first = first;
    told.rows = group.ends.count;
    first += told.rows;
    for (const Places::Block& block : group.blocks) {
      told.blocks.push_back(
          {numbers.View(block.table).view({block.rows, block.pages}),
           block.edges ? Unseen(block, numbers.View(group.begins), numbers.View(group.ends), shape)
                       : at::Tensor()});
    }
  }
  return step;
}

namespace {

at::Tensor AttendGroup(const TorchStep::DecodeGroup& group, const at::Tensor& query,
                       const std::function<KeyBlock(const at::Tensor& pages)>& gather,
                       const ScoreForm& form) {
  const bool merged = group.blocks.size() > 1;
  Attended sum;
  for (const TorchStep::DecodeBlock& block : group.blocks) {
    const int64_t rows = block.pages.size(0);
    const KeyBlock keys = gather(block.pages);
    Attended part = AttendBlock(query.narrow(0, 0, rows).unsqueeze(3), keys.first, keys.second,
                                block.unseen, form, merged);
    if (rows == group.rows) {
      Merge(std::move(part), sum);
      continue;
    }
    // The other rows have no more pages.
    Attended some = {sum.output.narrow(0, 0, rows), sum.log_sum.narrow(0, 0, rows)};
    Merge(std::move(part), some);
    if (sum.output.scalar_type() != at::kFloat) sum.output = sum.output.to(at::kFloat);
    sum.output.narrow(0, 0, rows).copy_(some.output);
    sum.log_sum.narrow(0, 0, rows).copy_(some.log_sum);
  }
  return sum.output.squeeze(3).to(query.scalar_type());
}

}  // namespace

at::Tensor AttendDecodes(const TorchStep& step, const at::Tensor& query,
                         const std::function<KeyBlock(const at::Tensor& pages)>& gather,
                         const ScoreForm& form) {
  std::vector<at::Tensor> outputs;
  for (const TorchStep::DecodeGroup& group : step.decode_groups) {
    outputs.push_back(AttendGroup(group, query.narrow(0, group.first, group.rows), gather, form));
  }
  return outputs.size() == 1 ? outputs[0] : at::cat(outputs);
}

}  // namespace baton
