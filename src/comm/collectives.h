// Collectives built on send and receive alone, so every backend returns the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.h"

namespace trainer {

// The part of an array that one rank owns in the collectives below: [begin, begin + count).
struct Segment {
  size_t begin = 0, count = 0;  // elements
};

// Segments follow each other in rank order, are about equally long, and begin at multiples of 16 elements (64
// bytes of float); some ranks own nothing when there are too few elements.
Segment owned_segment(size_t count, int size, int rank);
std::vector<Segment> owned_segments(size_t count, int size);

// A non-blocking collective uses the tags `tag` .. `tag + kCollectiveTags - 1`. Two that are under way on one
// communicator at the same time need different tags; the same tags may be used again as soon as the caller's
// own request is complete.
inline constexpr int kCollectiveTags = 3;
// Tags from here on belong to the blocking helpers below; callers use smaller ones.
inline constexpr int kFirstReservedTag = 1 << 24;
// Of what passes beside the messages of a MatchedCommunicator.
inline constexpr int kMatchingTag = kFirstReservedTag + 1;

// Which way the contributions to a segment travel, and so in which order they are added. T is a fixed binary
// tree over the rank index,
//   T(lo, hi) = T(lo, mid) + T(mid, hi),  mid = lo + largest power of two below hi - lo.
// Each rank sends and receives (D - 1) / D of the array per half, whatever the algorithm; they differ in the
// number of messages that wait for each other and in which links are used. Two ranks: always the same bits.
enum class SumAlgorithm : uint8_t {
  kDirect,        // all send to the owner, which forms T
  kRing,          // owner + 1, owner + 2, ..., owner, each adding to what the one before it sends
  kTree,          // T, with its sums formed along the way: the bits of kDirect after log2(D) messages
  kHierarchical,  // T over the ranks of each node, then T over the nodes in the order of their lowest ranks
};
const char* name_of(SumAlgorithm algorithm);

// Lets something more urgent pass: while the gate is closed, a collective starts no message.
class ChunkGate {
 public:
  virtual ~ChunkGate() = default;
  // Asked by the thread that tests the collective, whenever a message could start.
  virtual bool open() const = 0;
};

// Adds arrays in memory of a device, where the messages of the communicator lie too.
class FloatAdder {
 public:
  virtual ~FloatAdder() = default;
  // sum[i] += term[i], rounded once.
  virtual void add(float* sum, const float* term, size_t count) const = 0;
  // Waits for the additions so far.
  virtual void finish() const = 0;
};

struct CollectiveOptions {
  SumAlgorithm algorithm = SumAlgorithm::kDirect;
  // With a gate, a rank has at most one chunk on its way to others, counted until the receiver has it, so
  // what passes a closed gate waits behind one chunk at most, not behind what the transport has buffered. It
  // goes as two messages, each acknowledged: with one, a link that is used in both directions would stand
  // idle half of the time, while the acknowledgement waits behind the peer's own message. What is left of the
  // cost is a latency per message where the link is faster than the ranks are polled. Either all ranks have a
  // gate or none.
  //
  // Whoever closes the gate must open it again without waiting for the collective: on this rank or, through
  // what it passes on, on another. It may stay closed while a transfer of this rank is under way, which its
  // peer answers whatever the collective does. The gate must outlive the request.
  const ChunkGate* gate = nullptr;
  // Where data and staging are memory of a device; null: they are host memory. Must outlive the request.
  const FloatAdder* adder = nullptr;
};

// The collectives take `segments`: one per rank, by rank, following each other from element 0, the same on
// all ranks; of any length, none included, and any alignment. They are copied. The forms with a `count` use
// the owned segments of that many elements.

// Floats of staging that a sum with this chunk needs on every rank. A chunk longer than the longest segment
// needs no more than one of that length. `nodes`: Communicator::nodes(), for kHierarchical; empty: one node.
size_t staging_count(std::span<const Segment> segments, size_t chunk,
                     SumAlgorithm algorithm = SumAlgorithm::kDirect, std::span<const int> nodes = {});
size_t staging_count(size_t count, int size, size_t chunk, SumAlgorithm algorithm = SumAlgorithm::kDirect,
                     std::span<const int> nodes = {});

// The sum over ranks, at every rank, in place: data[i] becomes the sum of all ranks' data[i]. Each element is
// summed once, in the order of the algorithm, and ends at the rank that owns its segment, from where it goes
// the same way back. So the bits depend on the algorithm, the number of ranks and, for kRing, the owner
// alone: not on timing, chunk, gate, backend, or whether the two halves below are used instead. `chunk`
// (elements, at least 1, the same on all ranks) is the longest message. `data` and `staging` (at least
// staging_count elements) belong to the request until it is complete. With one rank nothing happens.
RequestPtr all_reduce_sum(Communicator& communicator, float* data, std::span<const Segment> segments,
                          size_t chunk, std::span<float> staging, int tag,
                          const CollectiveOptions& options = {});
RequestPtr all_reduce_sum(Communicator& communicator, float* data, size_t count, size_t chunk,
                          std::span<float> staging, int tag, const CollectiveOptions& options = {});

// Its first half: afterwards the rank's own segment of `data` holds the sums and the rest is as it was.
RequestPtr reduce_scatter_sum(Communicator& communicator, float* data, std::span<const Segment> segments,
                              size_t chunk, std::span<float> staging, int tag,
                              const CollectiveOptions& options = {});
RequestPtr reduce_scatter_sum(Communicator& communicator, float* data, size_t count, size_t chunk,
                              std::span<float> staging, int tag, const CollectiveOptions& options = {});

// Its second half, for elements of any size: every rank's own segment is copied to all other ranks.
RequestPtr all_gather(Communicator& communicator, void* data, std::span<const Segment> segments,
                      size_t element_bytes, size_t chunk, int tag, const CollectiveOptions& options = {});
RequestPtr all_gather(Communicator& communicator, void* data, size_t count, size_t element_bytes,
                      size_t chunk, int tag, const CollectiveOptions& options = {});

// The tree T over terms[0 .. n), element by element, into terms[0]; the others are overwritten. `adder`: of
// the memory they lie in, which may still be at it afterwards; null: host memory.
void tree_sum(std::span<float* const> terms, size_t count, const FloatAdder* adder = nullptr);

// Polls until the request is complete.
void wait(Request& request);

// Blocking; every rank of the communicator calls them in the same order, each from its own thread.

// `root`'s bytes to everyone, in place.
void broadcast(Communicator& communicator, void* data, size_t bytes, int root);
// Everyone's bytes, by rank; the ranks' sizes may differ. `gather` returns an empty vector except at `root`.
std::vector<std::string> gather(Communicator& communicator, std::string_view bytes, int root);
std::vector<std::string> all_gather_bytes(Communicator& communicator, std::string_view bytes);
// Element by element over the ranks, in rank order, in place; the same number of values on every rank. A NaN
// anywhere makes the maximum NaN.
void sum_over_ranks(Communicator& communicator, std::span<double> values);
void max_over_ranks(Communicator& communicator, std::span<double> values);
// Whether all ranks gave the same value.
bool all_equal(Communicator& communicator, uint64_t value);

}  // namespace trainer
