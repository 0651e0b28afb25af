// The prefixes whose KV is kept when their requests are over: a tree of whole pages by the tokens
// in them. A page of the pool has one owner, a request or the tree; Insert moves it into the tree,
// and only Evict and Clear give it back.
//
// A node is one page, below the node of the page before it. It is found by its parent and its
// tokens, which are compared on every hit: a hash alone would let a collision answer one request
// with another's KV. Requests with different salts share nothing.
//
// A request pins what it uses: a pinned page and those before it are not evicted. Of the others the
// leaf that has been unused the longest goes first.
//
// Rejected: runs of pages in a node (a radix tree), which saves memory where prefixes are long, but
// splits and merges nodes that requests hold.
#ifndef COMMON_KV_PAGE_TREE_H_
#define COMMON_KV_PAGE_TREE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "common/kv/block_pool.h"

namespace baton {

// Not thread-safe: only the core that owns it calls it. Costs are per page of the prefix.
class PageTree {
 public:
  // Follows from the prefix that it ends. 0 is none.
  using Node = uint64_t;

  explicit PageTree(int page_size);  // > 0

  // The longest known prefix of `tokens` in whole pages, at most `most` of them.
  struct Match {
    Node node = 0;           // Its last page's; 0: there is none.
    std::vector<int> pages;  // In order.
  };
  Match Find(const std::string& salt, std::span<const int32_t> tokens, int most) const;

  // Pages of the prefix that ends with `node` are in use, until Unpin is called as often. 0 is
  // allowed: nothing is pinned.
  void Pin(Node node);
  void Unpin(Node node);
  // A pin on `from` becomes one on `to`, which is behind it or the same.
  void MovePin(Node from, Node to);

  // What a request has of the tree: its first `pages` pages, of which it pins the last one.
  struct Prefix {
    Node node = 0;
    int pages = 0;
  };
  // Takes the pages of `owned` behind `prefix` that hold only `tokens`, and moves the pin to the
  // last of them. `tokens` and `owned` begin with the context. It stops where another request has
  // put the same tokens: what it does not take stays the request's.
  void Extend(const std::string& salt, std::span<const int32_t> tokens, std::span<const int> owned,
              Prefix& prefix);

  // Takes `page`, which holds `tokens` (page_size of them) behind the prefix that ends with
  // `parent` (0: at the beginning), and returns its node. If the tree has another page there, or
  // one in whose place it would be found, it takes nothing and returns 0.
  Node Insert(const std::string& salt, Node parent, std::span<const int32_t> tokens, int page);

  // Removes up to `count` unpinned pages, those unused the longest first, and returns them. `count`
  // at most is removed, and less only if no more are evictable.
  std::vector<int> Evict(int count);
  // Removes all that are not pinned.
  std::vector<int> Flush() { return Evict(evictable_pages()); }

  int pages() const { return static_cast<int>(nodes_.size()); }
  int evictable_pages() const { return evictable_; }
  // Pages of the prefix that ends with `node` that only a pin on it would keep.
  int EvictablePagesOf(Node node) const;
  // And those that only one pin keeps: `node` must be pinned.
  int PagesOfOnePin(Node node) const;

  // Recounts pins, children and leaves. For tests; defined in testing/.
  absl::Status CheckInvariants() const;

 private:
  struct Entry {
    Node parent = 0;
    std::string salt;  // Only of nodes without a parent.
    std::vector<int32_t> tokens;
    int page = 0;
    int children = 0;
    int pins = 0;   // Its own and those of the nodes below it.
    int holds = 0;  // Its own.
    uint64_t used = 0;
  };

  // Distinguishes; it need not be unforgeable, since tokens are compared.
  static Node NodeOf(const std::string& salt, Node parent, std::span<const int32_t> tokens);
  Node Child(const std::string& salt, Node parent, std::span<const int32_t> tokens) const;
  void AddPins(Node node, Node until, int change);  // Up to `until`, which gets none.
  void Remove(Node node);

  const size_t page_size_;
  absl::flat_hash_map<Node, Entry> nodes_;
  std::set<std::pair<uint64_t, Node>> leaves_;  // Unpinned, by when they were used.
  uint64_t clock_ = 0;
  int evictable_ = 0;  // Nodes without pins.
};

// How a core that keeps KV has pages for a request: free ones, and those that its cache gives up.

// Pages of `pool` that are free, or that the cache would give up; nullopt: there is no cache.
int AvailablePages(const BlockPool& pool, const std::optional<PageTree>& tree);

// Allocates `count` pages; so many must be available. If too few are free the cache gives up those
// that were unused the longest, and `evicted_total` counts them.
std::vector<int> TakePages(int count, BlockPool& pool, std::optional<PageTree>& tree,
                           uint64_t& evicted_total);

}  // namespace baton

#endif  // COMMON_KV_PAGE_TREE_H_
