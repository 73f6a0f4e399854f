// Files: read whole, mapped, and written so that a crash never leaves half of one under its final name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace trainer {

// The whole file. Throws InputError naming the path when it cannot be read.
std::string read_file(const std::filesystem::path& path);

// Writes beside the final name, syncs, renames. Throws RunError naming the path (disk full included).
void write_file_atomically(const std::filesystem::path& path, std::string_view content);

// A file written piece by piece under a temporary name; `commit` syncs and renames. Without a commit the
// temporary is removed by the destructor. All methods throw RunError on failure.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, size_t bytes);
  // Whether what is written from now on goes past the page cache; addresses, sizes and what was written
  // before are then multiples of a page. A wish: some file systems cannot.
  void set_direct(bool direct);
  uint64_t written() const { return written_; }
  void commit();

 private:
  std::filesystem::path path_, temporary_;
  int descriptor_ = -1;
  uint64_t written_ = 0, scheduled_ = 0;
};

// A file read at chosen places; move-only. Unlike a map it adds nothing to the resident memory of the
// process, and a file cut short by somebody else is an error instead of a signal. Throws InputError naming
// the path.
class ReadableFile {
 public:
  explicit ReadableFile(std::filesystem::path path);
  ~ReadableFile();
  ReadableFile(ReadableFile&& other) noexcept;
  ReadableFile& operator=(ReadableFile&& other) noexcept;

  // Exactly `bytes` bytes from `offset`. Any number of threads may read at once.
  void read(uint64_t offset, void* data, size_t bytes) const;
  // The disk may begin to bring these bytes; a hint, which returns at once.
  void expect(uint64_t offset, uint64_t bytes) const;
  uint64_t size() const { return size_; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  uint64_t size_ = 0;
};

// A read-only memory map; move-only. An empty file maps to an empty span. Throws InputError naming the path.
class MappedFile {
 public:
  MappedFile() = default;
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  size_t size() const { return size_; }

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// `path`, which is relative, below the working folder, or below where the program lies, its build folder or
// its installation; empty: nowhere.
std::filesystem::path find_resource(const std::filesystem::path& path);

// Makes the directory entry of `path` durable after a rename in it.
void sync_directory(const std::filesystem::path& directory);

}  // namespace trainer
