#include "simt/shared_memory.h"

#include <bit>

#include "base/error.h"

namespace trainer::simt {

SharedMemory::SharedMemory() : data_(kMostBytes + 16), granules_(kMostBytes / kGranule) {}

void SharedMemory::begin_block(size_t bytes, int threads) {
  size_ = bytes;
  first_epoch_ = ++block_epoch_;
  warps_.assign(static_cast<size_t>((threads + kWarpThreads - 1) / kWarpThreads), Warp{});
}

void SharedMemory::check_place(int64_t offset, int64_t count, const char* what) const {
  if (offset >= 0 && offset + count <= static_cast<int64_t>(size_)) return;
  run_error("{} {} bytes at offset {} of shared memory, which has {} bytes", what, count, offset, size_);
}

// Whether `lane` of a warp has met all of `lanes` of the same warp since they did something at `warp_epoch`.
// Meetings of some lanes count since the last meeting of all, whatever was done in between: an error may be
// missed, none invented.
bool SharedMemory::ordered(uint32_t warp_epoch, uint32_t lanes, int warp, int lane) const {
  const Warp& w = warps_[static_cast<size_t>(warp)];
  return warp_epoch != w.epoch || (lanes & ~(w.met[static_cast<size_t>(lane)] | 1u << lane)) == 0;
}

void SharedMemory::conflict(int64_t offset, const char* now, const char* before, int other) const {
  run_error("{} offset {} of shared memory, which thread {} {} with no barrier between them", now, offset,
            other, before);
}

void SharedMemory::reads(int64_t offset, int64_t count, int thread) {
  check_place(offset, count, "reads");
  const int warp = thread / kWarpThreads, lane = thread % kWarpThreads;
  const uint32_t warp_epoch = warps_[static_cast<size_t>(warp)].epoch;
  for (int64_t at = offset / kGranule; at * kGranule < offset + count; ++at) {
    Granule& g = granules_[static_cast<size_t>(at)];
    if (g.write_epoch < first_epoch_)
      run_error("reads offset {} of shared memory, which nothing wrote", at * kGranule);
    if (g.write_epoch == block_epoch_ && g.writer != thread) {
      const bool same_warp = g.writer / kWarpThreads == warp;
      if (!same_warp || !ordered(g.write_warp_epoch, 1u << g.writer % kWarpThreads, warp, lane)) {
        conflict(at * kGranule, "reads", "wrote", g.writer);
      }
    }
    if (g.read_epoch != block_epoch_ || (g.read_warp == warp && g.read_warp_epoch != warp_epoch)) {
      g.read_epoch = block_epoch_;
      g.read_warp = static_cast<uint16_t>(warp);
      g.read_warp_epoch = warp_epoch;
      g.readers = 1u << lane;
    } else if (g.read_warp == warp) {
      g.readers |= 1u << lane;
    } else {
      g.read_warp = kSeveral;
    }
  }
}

void SharedMemory::writes(int64_t offset, int64_t count, int thread) {
  check_place(offset, count, "writes");
  const int warp = thread / kWarpThreads, lane = thread % kWarpThreads;
  for (int64_t at = offset / kGranule; at * kGranule < offset + count; ++at) {
    Granule& g = granules_[static_cast<size_t>(at)];
    if (g.write_epoch == block_epoch_ && g.writer != thread) {
      const bool same_warp = g.writer / kWarpThreads == warp;
      if (!same_warp || !ordered(g.write_warp_epoch, 1u << g.writer % kWarpThreads, warp, lane)) {
        conflict(at * kGranule, "writes", "wrote", g.writer);
      }
    }
    if (g.read_epoch == block_epoch_) {
      if (g.read_warp == kSeveral)
        run_error(
            "writes offset {} of shared memory, which threads of several warps read with "
            "no barrier between them",
            at * kGranule);
      const uint32_t others = g.readers & ~(1u << lane);
      if (g.read_warp != warp) {
        conflict(at * kGranule, "writes", "read", g.read_warp * kWarpThreads + std::countr_zero(g.readers));
      }
      if (!ordered(g.read_warp_epoch, others, warp, lane)) {
        conflict(at * kGranule, "writes", "read", warp * kWarpThreads + std::countr_zero(others));
      }
    }
    g.write_epoch = block_epoch_;
    g.writer = static_cast<uint16_t>(thread);
    g.write_warp_epoch = warps_[static_cast<size_t>(warp)].epoch;
  }
}

void SharedMemory::warp_met(int warp, uint32_t mask, bool whole) {
  Warp& w = warps_[static_cast<size_t>(warp)];
  if (whole) {
    ++w.epoch;
    w.met = {};
    return;
  }
  uint32_t all = mask;
  for (uint32_t rest = mask; rest != 0; rest &= rest - 1)
    all |= w.met[static_cast<size_t>(std::countr_zero(rest))];
  for (uint32_t rest = mask; rest != 0; rest &= rest - 1)
    w.met[static_cast<size_t>(std::countr_zero(rest))] = all;
}

}  // namespace trainer::simt
