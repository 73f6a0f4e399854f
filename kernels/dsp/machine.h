// One accelerator cluster of the MT-3000 as a machine with explicit memories, simulated: 24 DSPs without
// caches, each a VLIW processor with its own memories, share one on-chip memory, DDR and the DMA channels
// between them.
#pragma once

#include <cstdint>

namespace trainer::dsp {

// Bytes of an element: every memory of the machine holds fp16.
inline constexpr int64_t kHalfBytes = 2;

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Published for RATrain's platform unless said otherwise; docs/results/dsp.md shows what the assumptions
// decide.
struct Machine {
  int dsps = 24;
  int64_t scalar_memory_bytes = 64 << 10;  // SM, each DSP: operands that are broadcast over the lanes
  int64_t array_memory_bytes = 768 << 10;  // AM, each DSP: operands of vector loads
  int64_t shared_memory_bytes = 6 << 20;   // GSM, the cluster; assumed
  int64_t ddr_bytes = 20'000'000'000;      // usable
  double peak_macs_per_second = 8.10e12;   // FP16 multiply-adds of the cluster
  int lanes = 256;  // FP16 multiply-adds of one VMAC; assumed: a clock near the chip's 1.2 GHz
  double ddr_bytes_per_second = 30e9;  // effective, all DSPs together
  int64_t ddr_start_cycles = 500;      // from the request to the first byte; assumed
  int64_t dma_alignment = 32;          // bytes: of addresses, rows and distances of rows; assumed
  int64_t vector_latency = 16;         // words from the first load to the first store; assumed

  // Three constants are fitted, none is published.
  // Words without a VMAC in each step of the inner loop: the whole number that comes nearest to the published
  // utilisation of 2048 x 4096 by 4096 x 4096; no other shape was used.
  int64_t stall_words = 9;
  // GSM to and from SM and AM, all DSPs together: the rate, and the cycles from a request to its first byte,
  // fitted together on the published range of attention's backward at 512 to 4096 positions. Such a start,
  // seven times DDR's, is more than a DMA request: a hand-over between DSPs that add into one sum would
  // explain it, but that is not known, and transfers without one have it, too.
  double on_chip_bytes_per_second = 250e9;
  int64_t on_chip_start_cycles = 3500;

  double clock_hz() const { return peak_macs_per_second / (static_cast<double>(dsps) * lanes); }
  double seconds(int64_t cycles) const { return static_cast<double>(cycles) / clock_hz(); }
};

}  // namespace trainer::dsp
