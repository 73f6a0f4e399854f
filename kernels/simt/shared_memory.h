// The shared memory of one block of simulated threads, with a record of who touched what since which meeting
// of threads, so that a wrong access is an error and not a value.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace trainer::simt {

inline constexpr int kWarpThreads = 32;

// Every check throws RunError with the offset in bytes; whoever catches it knows kernel, block and thread.
class SharedMemory {
 public:
  // Two accesses to one granule by different threads count as accesses to the same memory, so elements are at
  // least this wide.
  static constexpr int64_t kGranule = 2;
  // What every device that kernels are compiled for grants a block.
  static constexpr size_t kMostBytes = 99 << 10;

  SharedMemory();

  // A new block of `threads` threads with `bytes` of memory that nothing was written to.
  void begin_block(size_t bytes, int threads);

  // `thread` is about to read or write `count` bytes at `offset`.
  void reads(int64_t offset, int64_t count, int thread);
  void writes(int64_t offset, int64_t count, int thread);
  std::byte* data() { return data_.data(); }
  size_t size() const { return size_; }

  // All threads of the block have met: what was done before comes before what is done after.
  void block_met() { ++block_epoch_; }
  // The threads of `mask` of a warp have met; `whole`: that is all of them.
  void warp_met(int warp, uint32_t mask, bool whole);

 private:
  static constexpr uint16_t kSeveral = 0xFFFF;  // readers in more than one warp
  struct Granule {
    uint64_t write_epoch = 0, read_epoch = 0;  // of the block; 0: never
    uint32_t write_warp_epoch = 0, read_warp_epoch = 0;
    uint32_t readers = 0;  // lanes of `read_warp` since its threads last met
    uint16_t writer = 0, read_warp = 0;
  };
  struct Warp {
    uint32_t epoch = 0;                           // meetings of all its threads
    std::array<uint32_t, kWarpThreads> met = {};  // with whom each lane met since, itself or by others
  };

  void check_place(int64_t offset, int64_t count, const char* what) const;
  bool ordered(uint32_t warp_epoch, uint32_t lanes, int warp, int lane) const;
  [[noreturn]] void conflict(int64_t offset, const char* now, const char* before, int other) const;

  std::vector<std::byte> data_;
  std::vector<Granule> granules_;
  std::vector<Warp> warps_;
  size_t size_ = 0;
  uint64_t block_epoch_ = 0, first_epoch_ = 0;  // epochs before the first are of earlier blocks
};

}  // namespace trainer::simt
