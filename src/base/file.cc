#include "base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace trainer {
namespace {

constexpr uint64_t kWriteBackBytes = uint64_t{8} << 20;

class Descriptor {
 public:
  Descriptor(const std::filesystem::path& path, int flags)
      : value_(::open(path.c_str(), flags | O_CLOEXEC)) {}
  ~Descriptor() {
    if (value_ >= 0) ::close(value_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return value_; }

 private:
  int value_;
};

}  // namespace

std::string read_file(const std::filesystem::path& path) {
  const MappedFile map(path);
  return {reinterpret_cast<const char*>(map.bytes().data()), map.size()};
}

void write_file_atomically(const std::filesystem::path& path, std::string_view content) {
  AtomicFile file(path);
  file.write(content.data(), content.size());
  file.commit();
}

AtomicFile::AtomicFile(std::filesystem::path path) : path_(std::move(path)) {
  static std::atomic<int> counter{0};
  temporary_ = path_;
  temporary_ += fmt::format(".tmp-{}-{}", ::getpid(), counter++);
  descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (descriptor_ < 0) run_error("cannot create {}: {}", temporary_.string(), std::strerror(errno));
}

AtomicFile::~AtomicFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(temporary_.c_str());
}

void AtomicFile::write(const void* data, size_t bytes) {
  const char* p = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::write(descriptor_, p, bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0)
      run_error("cannot write {}: {}", path_.string(), n < 0 ? std::strerror(errno) : "no progress");
    p += n;
    bytes -= static_cast<size_t>(n);
    written_ += static_cast<uint64_t>(n);
  }
  // The disk starts while later bytes are still being made; left to `fsync`, it would sit idle until the end.
  if (written_ - scheduled_ < kWriteBackBytes) return;
  ::sync_file_range(descriptor_, static_cast<off_t>(scheduled_), static_cast<off_t>(written_ - scheduled_),
                    SYNC_FILE_RANGE_WRITE);
  scheduled_ = written_;
}

void AtomicFile::set_direct(bool direct) {
  const int flags = ::fcntl(descriptor_, F_GETFL);
  ::fcntl(descriptor_, F_SETFL, direct ? flags | O_DIRECT : flags & ~O_DIRECT);
}

void AtomicFile::commit() {
  if (::fsync(descriptor_) != 0) run_error("cannot sync {}: {}", path_.string(), std::strerror(errno));
  const int closed = ::close(std::exchange(descriptor_, -1));
  if (closed != 0 || ::rename(temporary_.c_str(), path_.c_str()) != 0) {
    const int error = errno;
    ::unlink(temporary_.c_str());
    run_error("cannot put {} in place: {}", path_.string(), std::strerror(error));
  }
  sync_directory(path_.has_parent_path() ? path_.parent_path() : ".");
}

ReadableFile::ReadableFile(std::filesystem::path path) : path_(std::move(path)) {
  descriptor_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor_ < 0) input_error("cannot open {}: {}", path_.string(), std::strerror(errno));
  struct stat info {};
  const bool known = ::fstat(descriptor_, &info) == 0;
  if (!known || !S_ISREG(info.st_mode)) {
    ::close(std::exchange(descriptor_, -1));
    input_error("cannot read {}: not a regular file", path_.string());
  }
  size_ = static_cast<uint64_t>(info.st_size);
}

ReadableFile::~ReadableFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

ReadableFile::ReadableFile(ReadableFile&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)), size_(other.size_) {}

ReadableFile& ReadableFile::operator=(ReadableFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(size_, other.size_);
  return *this;
}

void ReadableFile::read(uint64_t offset, void* data, size_t bytes) const {
  char* p = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::pread(descriptor_, p, bytes, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) input_error("cannot read {} at byte {}: {}", path_.string(), offset, std::strerror(errno));
    if (n == 0)
      input_error("{}: the file ends at byte {}, {} more were expected", path_.string(), offset, bytes);
    p += n;
    offset += static_cast<uint64_t>(n);
    bytes -= static_cast<size_t>(n);
  }
}

void ReadableFile::expect(uint64_t offset, uint64_t bytes) const {
  ::posix_fadvise(descriptor_, static_cast<off_t>(offset), static_cast<off_t>(bytes), POSIX_FADV_WILLNEED);
}

MappedFile::MappedFile(const std::filesystem::path& path) {
  const Descriptor file(path, O_RDONLY);
  struct stat info {};
  if (file.get() < 0 || ::fstat(file.get(), &info) != 0)
    input_error("cannot open {}: {}", path.string(), std::strerror(errno));
  if (!S_ISREG(info.st_mode)) input_error("cannot read {}: not a regular file", path.string());
  size_ = static_cast<size_t>(info.st_size);
  if (size_ == 0) return;
  void* map = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (map == MAP_FAILED)
    input_error("cannot map {} ({} bytes): {}", path.string(), size_, std::strerror(errno));
  data_ = static_cast<const std::byte*>(map);
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

std::filesystem::path find_resource(const std::filesystem::path& path) {
  std::error_code none;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", none).parent_path();
  for (const auto& root : {std::filesystem::current_path(), program, program.parent_path(),
                           program.parent_path() / "share/trainer"})
    if (std::filesystem::exists(root / path, none)) return root / path;
  return {};
}

void sync_directory(const std::filesystem::path& directory) {
  const Descriptor handle(directory, O_RDONLY | O_DIRECTORY);
  if (handle.get() >= 0) ::fsync(handle.get());
}

}  // namespace trainer
