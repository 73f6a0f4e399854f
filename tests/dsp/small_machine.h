// A cluster small enough to try every tile on.
#pragma once

#include "dsp/machine.h"

namespace trainer::dsp {

inline Machine small_machine() {
  Machine machine;
  machine.dsps = 2;
  machine.lanes = 16;
  machine.scalar_memory_bytes = 1 << 10;
  machine.array_memory_bytes = 4 << 10;
  machine.shared_memory_bytes = 2 << 10;
  machine.ddr_start_cycles = 20;
  machine.on_chip_start_cycles = 20;
  return machine;
}

}  // namespace trainer::dsp
