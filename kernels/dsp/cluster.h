// The memories of a cluster, and the clock of the program that uses them.
#pragma once

#include <deque>
#include <string>

#include "dsp/memory.h"
#include "dsp/timeline.h"

namespace trainer::dsp {

// With values, all DSPs have memories. To count only, one stands for all: they do the same on tiles of one
// size.
class Cluster {
 public:
  Cluster(const Machine& machine, bool with_values)
      : machine_(machine),
        with_values_(with_values),
        ddr_("DDR", machine.ddr_bytes, with_values),
        gsm_("GSM", machine.shared_memory_bytes, with_values),
        timeline_(machine) {
    const int shown = with_values ? machine.dsps : 1;
    for (int d = 0; d < shown; ++d) {
      sm_.emplace_back("SM of DSP " + std::to_string(d), machine.scalar_memory_bytes, with_values);
      am_.emplace_back("AM of DSP " + std::to_string(d), machine.array_memory_bytes, with_values);
    }
  }
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  const Machine& machine() const { return machine_; }
  bool with_values() const { return with_values_; }
  // DSPs that have memories here.
  int shown_dsps() const { return static_cast<int>(am_.size()); }
  Memory& ddr() { return ddr_; }
  Memory& gsm() { return gsm_; }
  Memory& sm(int dsp) { return sm_[static_cast<size_t>(dsp)]; }
  Memory& am(int dsp) { return am_[static_cast<size_t>(dsp)]; }
  Timeline& timeline() { return timeline_; }

 private:
  Machine machine_;
  bool with_values_;
  Memory ddr_, gsm_;
  std::deque<Memory> sm_, am_;  // blocks point at them
  Timeline timeline_;
};

}  // namespace trainer::dsp
