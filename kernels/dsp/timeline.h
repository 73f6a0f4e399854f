// Cycles of a tile program: two DMA channels, each serving its requests in order, beside the DSPs.
#pragma once

#include <array>
#include <cstdint>

#include "dsp/machine.h"

namespace trainer::dsp {

enum class Channel { kDdr, kOnChip };

// What a program took. `cycles` is from its begin to the last byte written; the DSPs compute for
// `compute_cycles` of them and wait for the rest.
struct Count {
  int64_t cycles = 0;
  int64_t compute_cycles = 0;
  int64_t ddr_cycles = 0;      // that the channel is busy
  int64_t on_chip_cycles = 0;  // likewise
  int64_t ddr_bytes = 0;
  int64_t on_chip_bytes = 0;
};

// Times are cycles since the program's begin.
class Timeline {
 public:
  explicit Timeline(const Machine& machine) : machine_(machine) {}

  // A DMA of `bytes` asked for at `at`; returns when its last byte has arrived. A channel takes requests in
  // the order of the calls, so one that must wait holds up those behind it. Starting up overlaps the transfer
  // before.
  int64_t transfer(Channel channel, int64_t bytes, int64_t at);
  // All DSPs compute for `cycles` (the slowest's) once they are done with what came before and `ready` is
  // reached; returns the end.
  int64_t compute(int64_t cycles, int64_t ready);

  Count count() const;

 private:
  struct Queue {
    int64_t free_at = 0;
    int64_t busy = 0;
    int64_t bytes = 0;
  };

  Machine machine_;
  std::array<Queue, 2> queues_;
  int64_t computed_until_ = 0;
  int64_t compute_cycles_ = 0;
  int64_t end_ = 0;
};

}  // namespace trainer::dsp
