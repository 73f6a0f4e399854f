#include "dsp/timeline.h"

#include <algorithm>
#include <cmath>

namespace trainer::dsp {

int64_t Timeline::transfer(Channel channel, int64_t bytes, int64_t at) {
  Queue& queue = queues_[static_cast<size_t>(channel)];
  const bool ddr = channel == Channel::kDdr;
  const double rate = ddr ? machine_.ddr_bytes_per_second : machine_.on_chip_bytes_per_second;
  const int64_t start = ddr ? machine_.ddr_start_cycles : machine_.on_chip_start_cycles;
  const auto cycles =
      static_cast<int64_t>(std::ceil(static_cast<double>(bytes) * machine_.clock_hz() / rate));
  queue.free_at = std::max(queue.free_at, at + start) + cycles;
  queue.busy += cycles;
  queue.bytes += bytes;
  end_ = std::max(end_, queue.free_at);
  return queue.free_at;
}

int64_t Timeline::compute(int64_t cycles, int64_t ready) {
  computed_until_ = std::max(computed_until_, ready) + cycles;
  compute_cycles_ += cycles;
  end_ = std::max(end_, computed_until_);
  return computed_until_;
}

Count Timeline::count() const {
  const Queue& ddr = queues_[static_cast<size_t>(Channel::kDdr)];
  const Queue& on_chip = queues_[static_cast<size_t>(Channel::kOnChip)];
  return {.cycles = end_,
          .compute_cycles = compute_cycles_,
          .ddr_cycles = ddr.busy,
          .on_chip_cycles = on_chip.busy,
          .ddr_bytes = ddr.bytes,
          .on_chip_bytes = on_chip.bytes};
}

}  // namespace trainer::dsp
