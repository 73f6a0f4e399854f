#include "runtime/tensor_communicator.h"

#include <algorithm>

#include "base/error.h"
#include "comm/back_off.h"

namespace trainer {
namespace {

constexpr int kSummandTag = 1, kResultTag = 2;
constexpr size_t kChunk = size_t{64} << 10;  // elements of one message of a sum

// The staging holds, by rank, a chunk of floats, then a chunk of bf16 as it came.
float* floats_of(std::span<std::byte> staging, int rank) {
  return reinterpret_cast<float*>(staging.data()) + static_cast<size_t>(rank) * kChunk;
}
uint16_t* halves_of(std::span<std::byte> staging, int size, int rank) {
  return reinterpret_cast<uint16_t*>(floats_of(staging, size)) + static_cast<size_t>(rank) * kChunk;
}

}  // namespace

int64_t TensorCommunicator::staging_bytes(int size) {
  return size > 1 ? static_cast<int64_t>(size) * static_cast<int64_t>(kChunk) * (4 + 2) : 0;
}

TensorCommunicator::TensorCommunicator(Communicator& communicator, std::span<std::byte> staging,
                                       KernelSet& kernels, DeviceQueue& queue)
    : communicator_(communicator), staging_(staging), kernels_(kernels), queue_(queue) {
  if (!queue.host_reaches()) adder_.emplace(kernels, queue);
  require(static_cast<int64_t>(staging.size()) >= staging_bytes(communicator.size()),
          "{} bytes of staging for a tensor-parallel group of {}", staging.size(), communicator.size());
}

// Polls all of them, so that none waits for another's turn.
void TensorCommunicator::finish() {
  BackOff back_off;
  while (true) {
    if (std::erase_if(requests_, [](const RequestPtr& request) { return request->test(); }) > 0)
      back_off.reset();
    if (requests_.empty()) return;
    back_off.pause();
  }
}

void TensorCommunicator::sum_own_segment(Ref data, std::span<const Segment> segments) {
  const int me = rank(), ranks = size();
  const size_t element = size_of(data.dtype);
  const bool wide = data.dtype == DType::kF32;
  size_t longest = 0;
  for (const Segment& s : segments) longest = std::max(longest, s.count);
  const auto piece = [&](int r, size_t begin) {
    const Segment& s = segments[static_cast<size_t>(r)];
    const size_t skipped = std::min(begin, s.count);
    return Segment{s.begin + skipped, std::min(kChunk, s.count - skipped)};
  };
  const auto at = [&](const Segment& s) { return static_cast<std::byte*>(data.data) + s.begin * element; };
  for (size_t begin = 0; begin < longest; begin += kChunk) {
    queue_.synchronise();  // what is sent is there, and what is received over is no longer read
    const Segment own = piece(me, begin);
    for (int step = 1; step < ranks && own.count > 0; ++step) {
      const int peer = (me + step) % ranks;
      void* into = wide ? static_cast<void*>(floats_of(staging_, peer)) : halves_of(staging_, ranks, peer);
      requests_.push_back(communicator_.receive(into, own.count * element, peer, kSummandTag));
    }
    for (int step = 1; step < ranks; ++step) {
      const int peer = (me + step) % ranks;
      const Segment theirs = piece(peer, begin);
      if (theirs.count > 0)
        requests_.push_back(communicator_.send(at(theirs), theirs.count * element, peer, kSummandTag));
    }
    finish();
    if (own.count == 0) continue;
    const auto count = static_cast<int64_t>(own.count);
    const Ref mine{at(own), data.dtype};
    std::vector<float*> terms;
    for (int r = 0; r < ranks; ++r) {
      float* term = floats_of(staging_, r);
      if (wide && r == me) term = mine.f32();
      if (!wide) {
        const Ref narrow = r == me ? mine : Ref{halves_of(staging_, ranks, r), data.dtype};
        kernels_.convert(ref(term), narrow, count);
      }
      terms.push_back(term);
    }
    tree_sum(terms, own.count, adder_ ? &*adder_ : nullptr);
    if (terms[0] != mine.data) kernels_.convert(mine, ref(static_cast<const float*>(terms[0])), count);
  }
}

void TensorCommunicator::share_segments(std::byte* data, std::span<const Segment> segments,
                                        size_t element_bytes) {
  const int me = rank(), ranks = size();
  queue_.synchronise();
  const Segment own = segments[static_cast<size_t>(me)];
  for (int step = 1; step < ranks; ++step) {
    const int peer = (me + step) % ranks;
    const Segment theirs = segments[static_cast<size_t>(peer)];
    if (theirs.count > 0)
      requests_.push_back(communicator_.receive(data + theirs.begin * element_bytes,
                                                theirs.count * element_bytes, peer, kResultTag));
  }
  for (int step = 1; step < ranks && own.count > 0; ++step)
    requests_.push_back(communicator_.send(data + own.begin * element_bytes, own.count * element_bytes,
                                           (me + step) % ranks, kResultTag));
  finish();
}

void TensorCommunicator::all_gather(void* data, size_t bytes) {
  std::vector<Segment> segments;
  for (int r = 0; r < size(); ++r) segments.push_back({static_cast<size_t>(r) * bytes, bytes});
  share_segments(static_cast<std::byte*>(data), segments, 1);
}

void TensorCommunicator::reduce_scatter(Ref data, int64_t count) {
  std::vector<Segment> segments;
  for (int r = 0; r < size(); ++r)
    segments.push_back({static_cast<size_t>(r * count), static_cast<size_t>(count)});
  sum_own_segment(data, segments);
}

void TensorCommunicator::all_reduce(Ref data, int64_t count) {
  std::vector<Segment> segments;
  for (int r = 0; r < size(); ++r) segments.push_back(owned_segment(static_cast<size_t>(count), size(), r));
  sum_own_segment(data, segments);
  share_segments(static_cast<std::byte*>(data.data), segments, size_of(data.dtype));
}

}  // namespace trainer
