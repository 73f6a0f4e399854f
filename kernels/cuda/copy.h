// Tiles from global into shared memory, in the background.
#pragma once

#include "cuda/device.h"

namespace trainer::TRAINER_DEVICE_NAMESPACE {

// One thread's copies of 16 bytes that go on while it computes (cp.async). They arrive by `wait`, and for
// other threads by a barrier behind it.
class CopyQueue {
 public:
  // Unless `inside`, zeros, and `from` is not looked at.
  template <class T>
  __device__ __forceinline__ void copy(SharedSpan<T> to, const T* from, bool inside);
  // Closes a group of copies, which may be empty.
  __device__ __forceinline__ void commit();
  // Until all groups but the last kLeft are there.
  template <int kLeft>
  __device__ __forceinline__ void wait();

#if !defined(TRAINER_CUDA)
 private:
  // What is under way is nonsense until `wait`, so that a read that comes too early shows.
  struct Pending {
    SharedSpan<uint4> to;
    const void* from;  // null: zeros
    int group;
  };
  static constexpr int kMost = 256;
  Pending pending_[kMost];
  int count_ = 0, group_ = 0;
#endif
};

#if defined(TRAINER_CUDA)

template <class T>
__device__ __forceinline__ void CopyQueue::copy(SharedSpan<T> to, const T* from, bool inside) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(to.data()));
  const int bytes = inside ? 16 : 0;
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void CopyQueue::commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kLeft>
__device__ __forceinline__ void CopyQueue::wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

#else

template <class T>
void CopyQueue::copy(SharedSpan<T> to, const T* from, bool inside) {
  require(!inside || reinterpret_cast<uintptr_t>(from) % 16 == 0,
          "a copy of 16 bytes from where it is not aligned");
  require(count_ < kMost, "a thread has more than {} copies under way", kMost);
  const SharedSpan<uint4> there = to.template as<uint4>();
  there[0] = {~0u, ~0u, ~0u, ~0u};
  pending_[count_++] = {there, inside ? from : nullptr, group_};
}
inline void CopyQueue::commit() { ++group_; }
template <int kLeft>
void CopyQueue::wait() {
  int left = 0;
  for (int i = 0; i < count_; ++i) {
    const Pending& pending = pending_[i];
    if (pending.group < group_ - kLeft) {
      uint4 value = {0, 0, 0, 0};
      if (pending.from) memcpy(&value, pending.from, sizeof value);
      pending.to[0] = value;
    } else {
      pending_[left++] = pending;
    }
  }
  count_ = left;
}

#endif

// Rows of a matrix in global memory, from one element on; what lies beyond `rows` or `columns` is taken for
// zeros.
template <class T>
struct GlobalTile {
  const T* data;
  int64_t stride;     // elements from one row to the next
  int rows, columns;  // that there are; may be 0 or less
  bool vectors;       // every row begins at a multiple of 16 bytes, and columns are whole pieces of 16 bytes
};

// Begins to fill [kRows, kColumns] of shared memory, its rows kStride elements apart, by kThreads threads, of
// which this is one. The caller commits, waits and has its threads meet.
template <int kRows, int kColumns, int kStride, int kThreads, class T>
__device__ __forceinline__ void copy_tile(CopyQueue& queue, SharedSpan<T> to, const GlobalTile<T>& from) {
  constexpr int kPiece = 16 / static_cast<int>(sizeof(T)), kPieces = kColumns / kPiece;
  static_assert(kColumns % kPiece == 0 && kStride % kPiece == 0);
  if (from.vectors) {
    TRAINER_UNROLL
    for (int first = 0; first < kRows * kPieces; first += kThreads) {
      const int piece = first + static_cast<int>(threadIdx.x);
      if (kRows * kPieces % kThreads != 0 && piece >= kRows * kPieces) break;
      const int row = piece / kPieces, column = piece % kPieces * kPiece;
      const bool inside = row < from.rows && column < from.columns;
      queue.copy(to + (row * kStride + column), from.data + row * from.stride + column, inside);
    }
  } else {
    for (int element = static_cast<int>(threadIdx.x); element < kRows * kColumns; element += kThreads) {
      const int row = element / kColumns, column = element % kColumns;
      const bool inside = row < from.rows && column < from.columns;
      to[row * kStride + column] = inside ? from.data[row * from.stride + column] : T{};
    }
  }
}

}  // namespace trainer::TRAINER_DEVICE_NAMESPACE
