// The non-blocking collectives: reduce-scatter and all-gather over one segment per rank, chunk by chunk.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "comm/collectives.h"

namespace trainer {
namespace {

constexpr size_t kUnit = 16;     // elements; segments begin at multiples of it
constexpr size_t kSlots = 2;     // chunks whose contributions may be under way at once
constexpr size_t kBlock = 4096;  // elements summed while in the first-level cache

size_t longest_segment(std::span<const Segment> segments) {
  size_t longest = 0;
  for (const Segment& segment : segments) longest = std::max(longest, segment.count);
  return longest;
}

void add(float* __restrict sum, const float* __restrict term, size_t count) {
  for (size_t i = 0; i < count; ++i) sum[i] += term[i];
}

class RequestList {
 public:
  void push(RequestPtr request) { requests_.push_back(std::move(request)); }
  // True once all are complete.
  bool poll() {
    std::erase_if(requests_, [](const RequestPtr& request) { return request->test(); });
    return requests_.empty();
  }

 private:
  std::vector<RequestPtr> requests_;
};

// What a collective does with each chunk: sum the contributions at the owner, hand the result to all, or
// both.
struct Halves {
  bool reduce = false, gather = false;
};

// Chunk c of every segment goes through: contributions posted -> own contributions sent -> results expected
// there, and contributions received -> summed -> result sent. Chunks stay in order within every arrow, so the
// messages of one tag between two ranks match.
class SegmentedCollective : public Request {
 public:
  SegmentedCollective(Communicator& communicator, Halves halves, void* data,
                      std::span<const Segment> segments, size_t element_bytes, size_t chunk,
                      std::span<float> staging, int tag)
      : communicator_(communicator),
        halves_(halves),
        data_(static_cast<std::byte*>(data)),
        element_bytes_(element_bytes),
        staging_(staging),
        tag_(tag),
        rank_(communicator.rank()),
        size_(communicator.size()),
        segments_(segments.begin(), segments.end()) {
    require(chunk >= 1, "a collective with a chunk of 0 elements");
    require(segments.size() == static_cast<size_t>(size_), "{} segments for {} ranks", segments.size(),
            size_);
    size_t end = 0;
    for (const Segment& segment : segments_) {
      require(segment.begin == end, "a segment begins at {}, the one before it ends at {}", segment.begin,
              end);
      end += segment.count;
    }
    const size_t longest = longest_segment(segments_);
    chunk_ = std::min(chunk, std::max<size_t>(longest, 1));
    if (size_ > 1) chunks_ = (longest + chunk_ - 1) / chunk_;
    require(!halves.reduce || staging.size() >= staging_count(segments, chunk),
            "a sum of {} elements over {} ranks has {} elements of staging", end, size_, staging.size());
  }

  bool test() override {
    for (bool moved = true; moved;) {
      moved = false;
      if (posted_ < chunks_ && posted_ < received_ + kSlots && posted_ < sent_ + kSlots) {
        post_contributions(posted_++);
        moved = true;
      }
      if (sent_ < posted_ && outgoing_[sent_ % kSlots].poll()) {
        // Only now may results be written over what was sent.
        if (halves_.gather) receive_results(sent_);
        ++sent_;
        moved = true;
      }
      if (received_ < posted_ && incoming_[received_ % kSlots].poll()) {
        if (halves_.reduce) sum(received_);
        if (halves_.gather) send_result(received_);
        ++received_;
        moved = true;
      }
    }
    return results_.poll() && sent_ == chunks_ && received_ == chunks_;
  }

 private:
  // Chunk `c` of the segment of `owner`; empty past its end.
  Segment piece(int owner, size_t c) const {
    const Segment& segment = segments_[static_cast<size_t>(owner)];
    const size_t skip = std::min(c * chunk_, segment.count);
    return {segment.begin + skip, std::min(chunk_, segment.count - skip)};
  }
  std::byte* at(const Segment& piece) const { return data_ + piece.begin * element_bytes_; }
  size_t bytes(const Segment& piece) const { return piece.count * element_bytes_; }

  // Every rank but this one, each rank beginning with its successor, so that not all send to the same one
  // first.
  template <class Visit>
  void for_each_peer(Visit visit) const {
    for (int step = 1; step < size_; ++step) visit((rank_ + step) % size_);
  }

  float* slot(size_t c, int peer) const {
    const auto index =
        (c % kSlots) * static_cast<size_t>(size_ - 1) + static_cast<size_t>(peer - (peer > rank_));
    return staging_.data() + index * chunk_;
  }

  void post_contributions(size_t c) {
    if (!halves_.reduce) return;
    const Segment own = piece(rank_, c);
    for_each_peer([&](int peer) {
      if (own.count > 0)
        incoming_[c % kSlots].push(communicator_.receive(slot(c, peer), bytes(own), peer, tag_));
    });
    for_each_peer([&](int peer) {
      const Segment theirs = piece(peer, c);
      if (theirs.count > 0)
        outgoing_[c % kSlots].push(communicator_.send(at(theirs), bytes(theirs), peer, tag_));
    });
  }

  void sum(size_t c) {
    const Segment own = piece(rank_, c);
    float* const mine = reinterpret_cast<float*>(at(own));
    std::vector<float*> terms(static_cast<size_t>(size_));
    for (int rank = 0; rank < size_; ++rank)
      terms[static_cast<size_t>(rank)] = rank == rank_ ? mine : slot(c, rank);
    tree_sum(terms, own.count);
    if (rank_ != 0 && own.count > 0) std::memcpy(mine, terms[0], bytes(own));
  }

  void send_result(size_t c) {
    const Segment own = piece(rank_, c);
    if (own.count == 0) return;
    for_each_peer([&](int peer) { results_.push(communicator_.send(at(own), bytes(own), peer, tag_ + 1)); });
  }

  void receive_results(size_t c) {
    for_each_peer([&](int peer) {
      const Segment theirs = piece(peer, c);
      if (theirs.count > 0) results_.push(communicator_.receive(at(theirs), bytes(theirs), peer, tag_ + 1));
    });
  }

  Communicator& communicator_;
  const Halves halves_;
  std::byte* const data_;
  const size_t element_bytes_;
  const std::span<float> staging_;  // [slot, peer, chunk]
  const int tag_, rank_, size_;
  const std::vector<Segment> segments_;  // by rank
  size_t chunk_ = 0, chunks_ = 0;
  // Chunks that have gone through each arrow.
  size_t posted_ = 0, sent_ = 0, received_ = 0;
  RequestList incoming_[kSlots], outgoing_[kSlots];  // contributions
  RequestList results_;
};

}  // namespace

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

size_t staging_count(std::span<const Segment> segments, size_t chunk) {
  return kSlots * (segments.size() - 1) * std::min(chunk, longest_segment(segments));
}

size_t staging_count(size_t count, int size, size_t chunk) {
  return staging_count(owned_segments(count, size), chunk);
}

void tree_sum(std::span<float* const> terms, size_t count) {
  // Adding neighbours at distance 1, 2, 4, ... builds just that tree: what stands at a multiple of a power of
  // two is the sum of that many terms, or of all that are left.
  for (size_t begin = 0; begin < count; begin += kBlock)
    for (size_t distance = 1; distance < terms.size(); distance *= 2)
      for (size_t i = 0; i + distance < terms.size(); i += 2 * distance)
        add(terms[i] + begin, terms[i + distance] + begin, std::min(kBlock, count - begin));
}

RequestPtr all_reduce_sum(Communicator& communicator, float* data, std::span<const Segment> segments,
                          size_t chunk, std::span<float> staging, int tag) {
  return std::make_unique<SegmentedCollective>(communicator, Halves{.reduce = true, .gather = true}, data,
                                               segments, sizeof(float), chunk, staging, tag);
}

RequestPtr reduce_scatter_sum(Communicator& communicator, float* data, std::span<const Segment> segments,
                              size_t chunk, std::span<float> staging, int tag) {
  return std::make_unique<SegmentedCollective>(communicator, Halves{.reduce = true, .gather = false}, data,
                                               segments, sizeof(float), chunk, staging, tag);
}

RequestPtr all_gather(Communicator& communicator, void* data, std::span<const Segment> segments,
                      size_t element_bytes, size_t chunk, int tag) {
  return std::make_unique<SegmentedCollective>(communicator, Halves{.reduce = false, .gather = true}, data,
                                               segments, element_bytes, chunk, std::span<float>{}, tag);
}

RequestPtr all_reduce_sum(Communicator& communicator, float* data, size_t count, size_t chunk,
                          std::span<float> staging, int tag) {
  return all_reduce_sum(communicator, data, owned_segments(count, communicator.size()), chunk, staging, tag);
}

RequestPtr reduce_scatter_sum(Communicator& communicator, float* data, size_t count, size_t chunk,
                              std::span<float> staging, int tag) {
  return reduce_scatter_sum(communicator, data, owned_segments(count, communicator.size()), chunk, staging,
                            tag);
}

RequestPtr all_gather(Communicator& communicator, void* data, size_t count, size_t element_bytes,
                      size_t chunk, int tag) {
  return all_gather(communicator, data, owned_segments(count, communicator.size()), element_bytes, chunk,
                    tag);
}

}  // namespace trainer
