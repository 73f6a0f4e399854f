#include "base/large_file.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

namespace trainer {
namespace {

// A multiple of what disks and memory are asked for; large enough that the disk does not wait for the thread.
constexpr size_t kBlockBytes = size_t{8} << 20, kBlockAlignment = size_t{2} << 20;

}  // namespace

LargeFile::LargeFile(std::filesystem::path path) : file_(std::move(path)) {}

LargeFile::~LargeFile() { end_thread(); }

void LargeFile::write(const void* data, size_t bytes) {
  const auto* p = static_cast<const std::byte*>(data);
  written_ += bytes;
  while (bytes > 0) {
    Block& block = blocks_[current_];
    if (!block) {
      block.reset(static_cast<std::byte*>(std::aligned_alloc(kBlockAlignment, kBlockBytes)));
      if (!block) throw std::bad_alloc();
      ::madvise(block.get(), kBlockBytes, MADV_HUGEPAGE);
    }
    const size_t taken = std::min(bytes, kBlockBytes - filled_);
    std::memcpy(block.get() + filled_, p, taken);
    filled_ += taken;
    p += taken;
    bytes -= taken;
    if (filled_ == kBlockBytes) hand_over();
  }
}

void LargeFile::hand_over() {
  if (!thread_.joinable()) {
    file_.set_direct(true);
    thread_ = std::thread([this] { write_blocks(); });
  }
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !handed_; });
  if (error_) std::rethrow_exception(error_);
  handed_ = blocks_[current_].get();
  current_ = 1 - current_;
  filled_ = 0;
  changed_.notify_all();
}

void LargeFile::write_blocks() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return handed_ || over_; });
    if (!handed_) return;
    const std::byte* const block = handed_;
    if (!error_) {
      lock.unlock();
      std::exception_ptr error;
      try {
        file_.write(block, kBlockBytes);
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      error_ = error;
    }
    handed_ = nullptr;
    changed_.notify_all();
  }
}

void LargeFile::end_thread() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void LargeFile::commit() {
  end_thread();
  if (error_) std::rethrow_exception(error_);
  file_.set_direct(false);
  if (filled_ > 0) file_.write(blocks_[current_].get(), filled_);
  file_.commit();
}

}  // namespace trainer
