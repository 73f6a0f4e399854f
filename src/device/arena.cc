#include "device/arena.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/on_threads.h"
#include "base/units.h"
#include "device/cores.h"

namespace trainer {
namespace {
constexpr size_t kHugePage = size_t{2} << 20, kPage = 4096;
constexpr size_t kTouchedAtOnce = 16 * kHugePage;  // by one thread

// Clearing pages is the kernel's work, and each of this thread's cores has its share of it.
void touch(std::byte* data, size_t size) {
  const auto threads = size > 2 * kTouchedAtOnce ? int64_t{allowed_core_count()} : int64_t{1};
  pieces_on_threads(threads, static_cast<int64_t>(size), kTouchedAtOnce, [&](int64_t begin, int64_t end) {
    for (int64_t offset = begin; offset < end; offset += kPage) data[offset] = std::byte{0};
  });
}
}  // namespace

Arena::Arena(size_t bytes) : size_(bytes) {
  if (bytes == 0) return;
  // Small arenas stay on small pages, so that what is resident is what was asked for.
  const bool huge = bytes >= kHugePage;
  mapped_ = huge ? (bytes + kPage - 1) / kPage * kPage + kHugePage : (bytes + kPage - 1) / kPage * kPage;
  void* map =
      ::mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map == MAP_FAILED)
    run_error("cannot reserve {:.2f} GiB of memory: {}", static_cast<double>(bytes) / kGiB,
              std::strerror(errno));
  auto* begin = static_cast<std::byte*>(map);
  if (huge) {
    // Start on a huge page; the ends outside [begin, begin + size) are unmapped so they never count.
    const auto address = reinterpret_cast<uintptr_t>(map);
    const uintptr_t aligned = (address + kHugePage - 1) / kHugePage * kHugePage;
    const size_t used = (bytes + kPage - 1) / kPage * kPage;
    if (aligned > address) ::munmap(map, aligned - address);
    if (const size_t tail = mapped_ - (aligned - address) - used)
      ::munmap(reinterpret_cast<void*>(aligned + used), tail);
    begin = reinterpret_cast<std::byte*>(aligned);
    mapped_ = used;
    ::madvise(begin, mapped_, MADV_HUGEPAGE);
  }
  data_ = begin;
  touch(data_, size_);
}

Arena::~Arena() {
  if (data_) ::munmap(data_, mapped_);
}

Arena::Arena(Arena&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      mapped_(std::exchange(other.mapped_, 0)) {}

Arena& Arena::operator=(Arena&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(mapped_, other.mapped_);
  return *this;
}

ResidentMemory resident_memory() {
  ResidentMemory memory;
  std::ifstream status("/proc/self/status");
  for (std::string key; status >> key;) {
    int64_t kibibytes = 0;
    if (key == "VmRSS:" && status >> kibibytes) memory.now = kibibytes * 1024;
    if (key == "VmHWM:" && status >> kibibytes) memory.peak = kibibytes * 1024;
  }
  return memory;
}

}  // namespace trainer
