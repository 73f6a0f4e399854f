// The non-blocking collectives: reduce-scatter and all-gather over one segment per rank, chunk by chunk.
#include <algorithm>
#include <memory>

#include "base/error.h"
#include "comm/collectives.h"
#include "comm/sum_plan.h"

namespace trainer {
namespace {

constexpr size_t kUnit = 16;     // elements; owned segments begin at multiples of it
constexpr size_t kSlots = 2;     // chunks that may be under way at once in each half
constexpr size_t kGated = 2;     // messages under way with a gate, together one chunk
constexpr size_t kBlock = 4096;  // elements summed while in the first-level cache

size_t longest_segment(std::span<const Segment> segments) {
  size_t longest = 0;
  for (const Segment& segment : segments) longest = std::max(longest, segment.count);
  return longest;
}

void add(float* __restrict sum, const float* __restrict term, size_t count) {
  for (size_t i = 0; i < count; ++i) sum[i] += term[i];
}

// What a collective does with each chunk: sum the contributions at the owner, hand the result to all, or
// both.
struct Halves {
  bool reduce = false, gather = false;
};

// Chunk c of every segment goes through: contributions received, summed, and sent on -> results received, and
// sent on. Windows of kSlots chunks slide over each half. A rank starts the messages of a half in the order
// of its plan and chunk after chunk, so the messages of one tag between two ranks match.
//
// With a gate a rank has kGated messages under way, which keep it from starting others until they are
// received. So that none waits for another in a circle, all ranks then keep to one order of steps:
// contributions of chunk c, then results of chunk c - kSlots + 1, then contributions of chunk c + 1. A
// message of the lowest step that is not over finds its receive posted, for all earlier steps are over; and
// of those messages one of the lowest level has what it passes on.
class SegmentedCollective : public Request {
 public:
  SegmentedCollective(Communicator& communicator, Halves halves, void* data,
                      std::span<const Segment> segments, size_t element_bytes, size_t chunk,
                      std::span<float> staging, int tag, const CollectiveOptions& options)
      : communicator_(communicator),
        data_(static_cast<std::byte*>(data)),
        element_bytes_(element_bytes),
        staging_(staging),
        tag_(tag),
        gate_(options.gate),
        adder_(options.adder),
        segments_(segments.begin(), segments.end()) {
    const int size = communicator.size();
    require(chunk >= 1, "a collective with a chunk of 0 elements");
    require(segments.size() == static_cast<size_t>(size), "{} segments for {} ranks", segments.size(), size);
    size_t end = 0;
    for (const Segment& segment : segments_) {
      require(segment.begin == end, "a segment begins at {}, the one before it ends at {}", segment.begin,
              end);
      end += segment.count;
    }
    if (gate_) chunk = (chunk + kGated - 1) / kGated;
    const size_t longest = longest_segment(segments_);
    chunk_ = std::min(chunk, std::max<size_t>(longest, 1));
    if (size > 1) chunks_ = (longest + chunk_ - 1) / chunk_;
    const std::vector<int> nodes = communicator.nodes();
    require(!halves.reduce || staging.size() >= staging_count(segments, chunk, options.algorithm, nodes),
            "a sum of {} elements over {} ranks has {} elements of staging", end, size, staging.size());
    plan_ = rank_plan(sum_trees(options.algorithm, nodes, size), communicator.rank());
    up_.begin(plan_.contributions_in, plan_.contributions_out, size, tag, halves.reduce ? 0 : chunks_);
    down_.begin(plan_.results_in, plan_.results_out, size, tag + 1, halves.gather ? 0 : chunks_);
  }

  bool test() override {
    for (bool moved = true; moved;) {
      moved = false;
      if (up_.posted < chunks_ && up_.posted < up_.done + kSlots) moved |= post(up_);
      // Only when its contributions have gone may a chunk's results be written over them.
      if (down_.posted < up_.done && down_.posted < down_.done + kSlots) moved |= post(down_);
      moved |= poll_incoming(up_) | poll_incoming(down_) | poll_outgoing();
      moved |= start_next(down_) || start_next(up_);
      moved |= finish(up_) | finish(down_);
    }
    std::erase_if(acknowledgements_, [](const RequestPtr& request) { return request->test(); });
    return up_.done == chunks_ && down_.done == chunks_ && acknowledgements_.empty();
  }

 private:
  using Message = RankPlan::Message;

  struct Window {
    std::vector<RequestPtr> incoming;  // by message; none: has arrived, or is empty
    std::vector<int> missing;          // by segment: messages that have not arrived
    size_t arriving = 0, unsent = 0;   // messages
  };
  struct Half {
    const std::vector<Message>*in = nullptr, *out = nullptr;
    int tag = 0;
    size_t posted = 0, done = 0;              // chunks
    size_t next_chunk = 0, next_message = 0;  // to be sent
    Window windows[kSlots];

    // `past`: chunks there is nothing to do for.
    void begin(const std::vector<Message>& incoming, const std::vector<Message>& outgoing, int size,
               int own_tag, size_t past) {
      in = &incoming;
      out = &outgoing;
      tag = own_tag;
      posted = done = next_chunk = past;
      for (Window& window : windows) {
        window.incoming.resize(incoming.size());
        window.missing.resize(static_cast<size_t>(size));
      }
    }
    Window& window(size_t c) { return windows[c % kSlots]; }
  };
  struct Outgoing {
    RequestPtr message, acknowledgement;
    size_t* unsent;
  };

  // Chunk `c` of a segment; empty past its end.
  Segment piece(int segment, size_t c) const {
    const Segment& whole = segments_[static_cast<size_t>(segment)];
    const size_t skip = std::min(c * chunk_, whole.count);
    return {whole.begin + skip, std::min(chunk_, whole.count - skip)};
  }
  std::byte* at(const Segment& piece) const { return data_ + piece.begin * element_bytes_; }
  size_t bytes(const Segment& piece) const { return piece.count * element_bytes_; }

  float* place(const Segment& own, size_t c, int index) const {
    if (index == RankPlan::kOwn) return reinterpret_cast<float*>(at(own));
    const size_t slot = (c % kSlots) * plan_.contributions_in.size() + static_cast<size_t>(index);
    return staging_.data() + slot * chunk_;
  }

  bool post(Half& half) {
    const size_t c = half.posted++;
    Window& window = half.window(c);
    for (size_t i = 0; i < half.in->size(); ++i) {
      const Message& message = (*half.in)[i];
      const Segment part = piece(message.segment, c);
      if (part.count == 0) continue;
      void* const to = &half == &up_ ? static_cast<void*>(place(part, c, static_cast<int>(i))) : at(part);
      window.incoming[i] = communicator_.receive(to, bytes(part), message.peer, half.tag);
      ++window.missing[static_cast<size_t>(message.segment)];
      ++window.arriving;
    }
    for (const Message& message : *half.out) window.unsent += piece(message.segment, c).count > 0;
    return true;
  }

  bool poll_incoming(Half& half) {
    bool moved = false;
    for (size_t c = half.done; c < half.posted; ++c) {
      Window& window = half.window(c);
      for (size_t i = 0; window.arriving > 0 && i < window.incoming.size(); ++i) {
        if (!window.incoming[i] || !window.incoming[i]->test()) continue;
        const Message& message = (*half.in)[i];
        window.incoming[i].reset();
        if (gate_) acknowledgements_.push_back(communicator_.send(nullptr, 0, message.peer, tag_ + 2));
        --window.arriving;
        if (--window.missing[static_cast<size_t>(message.segment)] == 0 && &half == &up_)
          sum(message.segment, c);
        moved = true;
      }
    }
    return moved;
  }

  // What this rank passes on of a segment: its own contribution, or the sum it has formed.
  const float* contribution(int segment, size_t c) const {
    const RankPlan::Sum* const formed = sum_of(segment);
    return place(piece(segment, c), c, formed ? formed->result : RankPlan::kOwn);
  }

  bool poll_outgoing() {
    return std::erase_if(outgoing_, [](Outgoing& outgoing) {
             if (outgoing.message && outgoing.message->test()) outgoing.message.reset();
             if (outgoing.acknowledgement && outgoing.acknowledgement->test())
               outgoing.acknowledgement.reset();
             if (outgoing.message || outgoing.acknowledgement) return false;
             --*outgoing.unsent;
             return true;
           }) > 0;
  }

  // Whether all sends of earlier steps have begun.
  bool its_turn(const Half& half, size_t c) const {
    if (&half == &up_) return down_.next_chunk + kSlots > c;
    return up_.next_chunk >= std::min(c + kSlots, chunks_);
  }

  bool start_next(Half& half) {
    while (half.next_chunk < half.posted) {
      const size_t c = half.next_chunk;
      if (half.next_message == half.out->size()) {
        half.next_message = 0;
        ++half.next_chunk;
        continue;
      }
      const Message& message = (*half.out)[half.next_message];
      const Segment part = piece(message.segment, c);
      if (part.count == 0) {
        ++half.next_message;
        continue;
      }
      Window& window = half.window(c);
      if (window.missing[static_cast<size_t>(message.segment)] > 0) return false;
      if (gate_ && (outgoing_.size() >= kGated || !its_turn(half, c) || !gate_->open())) return false;
      Outgoing& outgoing = outgoing_.emplace_back();
      outgoing.unsent = &window.unsent;
      if (gate_) outgoing.acknowledgement = communicator_.receive(nullptr, 0, message.peer, tag_ + 2);
      const void* const from =
          &half == &up_ ? static_cast<const void*>(contribution(message.segment, c)) : at(part);
      outgoing.message = communicator_.send(from, bytes(part), message.peer, half.tag);
      ++half.next_message;
      return true;
    }
    return false;
  }

  bool finish(Half& half) {
    bool moved = false;
    for (; half.done < half.posted; ++half.done, moved = true)
      if (half.window(half.done).arriving > 0 || half.window(half.done).unsent > 0) break;
    return moved;
  }

  const RankPlan::Sum* sum_of(int segment) const {
    const auto found = std::find_if(plan_.sums.begin(), plan_.sums.end(),
                                    [&](const RankPlan::Sum& sum) { return sum.segment == segment; });
    return found == plan_.sums.end() ? nullptr : &*found;
  }

  void sum(int segment, size_t c) {
    const Segment part = piece(segment, c);
    if (adder_) {
      for (const Addition& addition : sum_of(segment)->additions)
        adder_->add(place(part, c, addition.into), place(part, c, addition.from), part.count);
      return adder_->finish();
    }
    for (size_t begin = 0; begin < part.count; begin += kBlock)
      for (const Addition& addition : sum_of(segment)->additions)
        add(place(part, c, addition.into) + begin, place(part, c, addition.from) + begin,
            std::min(kBlock, part.count - begin));
  }

  Communicator& communicator_;
  std::byte* const data_;
  const size_t element_bytes_;
  const std::span<float> staging_;  // [slot, message, chunk]
  const int tag_;
  const ChunkGate* const gate_;
  const FloatAdder* const adder_;
  const std::vector<Segment> segments_;  // by rank
  size_t chunk_ = 0, chunks_ = 0;
  RankPlan plan_;
  Half up_, down_;  // contributions, results
  std::vector<Outgoing> outgoing_;
  std::vector<RequestPtr> acknowledgements_;
};

}  // namespace

const char* name_of(SumAlgorithm algorithm) {
  switch (algorithm) {
    case SumAlgorithm::kDirect:
      return "direct";
    case SumAlgorithm::kRing:
      return "ring";
    case SumAlgorithm::kTree:
      return "tree";
    case SumAlgorithm::kHierarchical:
      return "hierarchical";
  }
  return "";
}

Segment owned_segment(size_t count, int size, int rank) {
  const size_t units = (count + kUnit - 1) / kUnit;
  const auto bound = [&](int r) {
    return std::min(count, kUnit * (units * static_cast<size_t>(r) / static_cast<size_t>(size)));
  };
  return {bound(rank), bound(rank + 1) - bound(rank)};
}

std::vector<Segment> owned_segments(size_t count, int size) {
  std::vector<Segment> segments;
  for (int rank = 0; rank < size; ++rank) segments.push_back(owned_segment(count, size, rank));
  return segments;
}

size_t staging_count(std::span<const Segment> segments, size_t chunk, SumAlgorithm algorithm,
                     std::span<const int> nodes) {
  const int size = static_cast<int>(segments.size());
  const std::vector<SumTree> trees = sum_trees(algorithm, nodes, size);
  std::vector<size_t> messages(segments.size());  // by receiver
  for (const SumTree& tree : trees)
    for (const int parent : tree.parent)
      if (parent >= 0) ++messages[static_cast<size_t>(parent)];
  return kSlots * *std::max_element(messages.begin(), messages.end()) *
         std::min(chunk, longest_segment(segments));
}

size_t staging_count(size_t count, int size, size_t chunk, SumAlgorithm algorithm,
                     std::span<const int> nodes) {
  return staging_count(owned_segments(count, size), chunk, algorithm, nodes);
}

void tree_sum(std::span<float* const> terms, size_t count, const FloatAdder* adder) {
  // Adding neighbours at distance 1, 2, 4, ... builds just that tree: what stands at a multiple of a power of
  // two is the sum of that many terms, or of all that are left.
  const size_t block = adder ? count : kBlock;
  for (size_t begin = 0; begin < count; begin += block)
    for (size_t distance = 1; distance < terms.size(); distance *= 2)
      for (size_t i = 0; i + distance < terms.size(); i += 2 * distance) {
        float* const sum = terms[i] + begin;
        const float* const term = terms[i + distance] + begin;
        const size_t length = std::min(block, count - begin);
        if (adder)
          adder->add(sum, term, length);
        else
          add(sum, term, length);
      }
}

RequestPtr all_reduce_sum(Communicator& communicator, float* data, std::span<const Segment> segments,
                          size_t chunk, std::span<float> staging, int tag, const CollectiveOptions& options) {
  return std::make_unique<SegmentedCollective>(communicator, Halves{.reduce = true, .gather = true}, data,
                                               segments, sizeof(float), chunk, staging, tag, options);
}

RequestPtr reduce_scatter_sum(Communicator& communicator, float* data, std::span<const Segment> segments,
                              size_t chunk, std::span<float> staging, int tag,
                              const CollectiveOptions& options) {
  return std::make_unique<SegmentedCollective>(communicator, Halves{.reduce = true, .gather = false}, data,
                                               segments, sizeof(float), chunk, staging, tag, options);
}

RequestPtr all_gather(Communicator& communicator, void* data, std::span<const Segment> segments,
                      size_t element_bytes, size_t chunk, int tag, const CollectiveOptions& options) {
  return std::make_unique<SegmentedCollective>(communicator, Halves{.reduce = false, .gather = true}, data,
                                               segments, element_bytes, chunk, std::span<float>{}, tag,
                                               options);
}

RequestPtr all_reduce_sum(Communicator& communicator, float* data, size_t count, size_t chunk,
                          std::span<float> staging, int tag, const CollectiveOptions& options) {
  return all_reduce_sum(communicator, data, owned_segments(count, communicator.size()), chunk, staging, tag,
                        options);
}

RequestPtr reduce_scatter_sum(Communicator& communicator, float* data, size_t count, size_t chunk,
                              std::span<float> staging, int tag, const CollectiveOptions& options) {
  return reduce_scatter_sum(communicator, data, owned_segments(count, communicator.size()), chunk, staging,
                            tag, options);
}

RequestPtr all_gather(Communicator& communicator, void* data, size_t count, size_t element_bytes,
                      size_t chunk, int tag, const CollectiveOptions& options) {
  return all_gather(communicator, data, owned_segments(count, communicator.size()), element_bytes, chunk, tag,
                    options);
}

}  // namespace trainer
