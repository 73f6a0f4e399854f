// A part of a checkpoint that is written while training goes on.
#pragma once

#include <atomic>
#include <exception>
#include <thread>

#include "checkpoint/training_checkpoint.h"
#include "device/arena.h"

namespace trainer {

// The values are copied aside, then a thread writes them by `write_part`. It runs at the lowest priority, so
// that threads that compute have the cores when they want them: where they always do, it takes about one part
// in seventy of a core, and writing takes so much longer. Used by one thread.
class BackgroundPart {
 public:
  BackgroundPart() = default;
  // What is still being written is given up.
  ~BackgroundPart();
  BackgroundPart(const BackgroundPart&) = delete;
  BackgroundPart& operator=(const BackgroundPart&) = delete;

  // Memory for so many bytes of values is made ready meanwhile, so that the first `start` need not: fresh memory
  // takes longer than the copy. What fails here is tried again there.
  void reserve(size_t bytes);
  // Begins; no other is under way. When this returns, what the tensors are views of may change. Values are
  // copied by `threads` threads into memory that is kept for the next time; tensors that bring a copy of
  // their own are not copied again. Throws RunError where there is not as much memory.
  void start(const std::filesystem::path& directory, int writer, std::vector<PartTensor> tensors,
             int64_t threads);
  // False: nothing was started, or it is written, or failed.
  bool writing() const { return writing_; }
  // Waits for the end. Throws what `write_part` threw.
  void finish();

 private:
  Arena memory_;
  std::vector<PartTensor> tensors_;
  bool reserving_ = false;
  std::atomic<bool> writing_ = false;
  std::exception_ptr failure_;
  std::jthread thread_;
};

}  // namespace trainer
