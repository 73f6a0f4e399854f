// Seconds on one clock for all ranks.
#pragma once

#include <chrono>

#include "comm/communicator.h"

namespace trainer {

class Clock {
 public:
  Clock() : origin_(std::chrono::steady_clock::now()) {}
  double now() const {
    return offset_ + std::chrono::duration<double>(std::chrono::steady_clock::now() - origin_).count();
  }
  // Collective: shifts every rank's clock to rank 0's, by the fastest of some round trips (Cristian's
  // method).
  void synchronise(Communicator& world);

 private:
  std::chrono::steady_clock::time_point origin_;
  double offset_ = 0;
};

}  // namespace trainer
