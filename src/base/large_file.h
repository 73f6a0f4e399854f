// Files of many megabytes, written past the page cache while their next bytes are being made.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>

#include "base/file.h"

namespace trainer {

// Like AtomicFile. Bytes are collected in blocks that a thread writes, straight to the disk where the file
// system can do that: nothing is copied again, no memory fills with what the disk has not taken yet, and the
// end has little left to wait for. All methods throw RunError on failure, `write` also for an earlier block.
class LargeFile {
 public:
  explicit LargeFile(std::filesystem::path path);
  ~LargeFile();

  void write(const void* data, size_t bytes);
  uint64_t written() const { return written_; }
  void commit();

 private:
  struct Free {
    void operator()(std::byte* block) const { std::free(block); }
  };
  using Block = std::unique_ptr<std::byte, Free>;

  void hand_over();
  void end_thread();
  void write_blocks();

  AtomicFile file_;  // once there is a thread, its own
  uint64_t written_ = 0;
  std::array<Block, 2> blocks_;
  size_t current_ = 0, filled_ = 0;  // the block being filled
  std::mutex mutex_;
  std::condition_variable changed_;
  const std::byte* handed_ = nullptr;  // being written
  bool over_ = false;                  // no more blocks come
  std::exception_ptr error_;
  std::thread thread_;
};

}  // namespace trainer
