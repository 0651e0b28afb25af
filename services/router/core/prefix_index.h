// What chains have cached of prompts, as far as this router can predict: what it has sent them and
// what their heartbeats say that other routers have, less what each has most likely given up since,
// the least recently used first. It says nothing of what is really there; answers tell of that, and
// correct it.
#ifndef SERVICES_ROUTER_CORE_PREFIX_INDEX_H_
#define SERVICES_ROUTER_CORE_PREFIX_INDEX_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace baton::router {

class PrefixIndex {
 public:
  // Not more than `most_entries` keys of all holders together.
  explicit PrefixIndex(size_t most_entries) : most_entries_(most_entries) {}

  // How many of `keys` (PrefixKeys), from the first on, the holder has.
  size_t Held(size_t holder, std::span<const uint64_t> keys) const;
  // Holders of the beginning of `keys` with how many of them each has at least, the longest first:
  // at most `most` holders. The first one's number is what it has, and no other has more.
  struct Found {
    size_t holder = 0;
    size_t keys = 0;
  };
  std::vector<Found> FindHolders(std::span<const uint64_t> keys, size_t most) const;

  // The holder is about to have a prompt of these keys, and room for `capacity_tokens`: what it has
  // not used for long goes.
  void Note(size_t holder, std::span<const uint64_t> keys, int64_t capacity_tokens);
  // When the holder was noted with the key last, in calls of Note; 0: it doesn't have it.
  uint64_t NotedAt(size_t holder, uint64_t key) const;
  // What the holder was noted with at `noted` or before is not there.
  void DropUntil(size_t holder, uint64_t noted);
  void Drop(size_t holder);

  size_t size() const { return used_; }

 private:
  static constexpr uint32_t kNone = ~uint32_t{0};
  struct Entry {
    uint64_t key = 0;
    uint64_t noted = 0;
    size_t holder = 0;
    int64_t tokens = 0;  // From the position before to its own.
    uint32_t newer = kNone;
    uint32_t older = kNone;
    uint32_t next = kNone;  // With the same key.
    uint32_t before = kNone;
  };
  struct Holder {
    uint32_t newest = kNone;
    uint32_t oldest = kNone;
    int64_t tokens = 0;
  };

  static uint64_t NameOf(size_t holder, uint64_t key);
  uint32_t Find(size_t holder, uint64_t key) const;
  void Append(Holder& of, uint32_t at);
  void Unlink(Holder& of, uint32_t at);
  void Erase(Holder& of, uint32_t at);
  uint32_t Add(size_t holder, uint64_t key);
  void MakeRoom(Holder& own);

  const size_t most_entries_;
  uint64_t notes_ = 0;
  size_t used_ = 0;
  size_t gives_ = 0;  // The holder that gave way to another last.
  std::vector<Entry> entries_;
  std::vector<uint32_t> free_;
  std::vector<Holder> holders_;
  std::vector<uint32_t> found_;                      // Note's.
  absl::flat_hash_map<uint64_t, uint32_t> by_name_;  // By NameOf.
  absl::flat_hash_map<uint64_t, uint32_t> by_key_;   // The first with the key.
};

}  // namespace baton::router

#endif  // SERVICES_ROUTER_CORE_PREFIX_INDEX_H_
