// Memory of one lifetime tier: one mapping, advised for huge pages, touched once and never given back while
// it lives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace trainer {

// Move-only. Zero-filled and resident after construction: no page fault is left for a training step. Throws
// RunError naming the bytes when the machine does not have them.
class Arena {
 public:
  Arena() = default;
  explicit Arena(size_t bytes);
  ~Arena();
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;

  std::span<std::byte> bytes() const { return {data_, size_}; }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0, mapped_ = 0;
};

// VmRSS and VmHWM of this process, in bytes.
struct ResidentMemory {
  int64_t now = 0, peak = 0;
};
ResidentMemory resident_memory();

}  // namespace trainer
