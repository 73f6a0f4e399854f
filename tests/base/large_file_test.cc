#include "base/large_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <random>
#include <vector>

#include "base/error.h"
#include "checkpoint/test_folder.h"

namespace trainer {
namespace {

namespace fs = std::filesystem;

std::string random_bytes(size_t count) {
  std::mt19937_64 random(count);
  std::string bytes(count, '\0');
  for (char& c : bytes) c = static_cast<char>(random());
  return bytes;
}

// Across blocks, at their borders, and in pieces of any length.
TEST(LargeFile, HoldsWhatWasWritten) {
  const TestFolder folder;
  constexpr size_t kMiB = size_t{1} << 20;
  for (const size_t size : {size_t{0}, size_t{5}, 8 * kMiB, 16 * kMiB + 1, 33 * kMiB - 3}) {
    const std::string bytes = random_bytes(size);
    const fs::path path = folder / "large.bin";
    LargeFile file(path);
    for (size_t done = 0, piece = 1; done < size; piece = piece * 3 % (5 * kMiB) + 1) {
      const size_t n = std::min(piece, size - done);
      file.write(bytes.data() + done, n);
      done += n;
    }
    EXPECT_EQ(file.written(), size);
    file.commit();
    EXPECT_TRUE(read_file(path) == bytes) << size;
  }
}

TEST(LargeFile, WithoutACommitNothingIsLeft) {
  const TestFolder folder;
  {
    LargeFile file(folder / "large.bin");
    const std::string bytes = random_bytes(size_t{20} << 20);
    file.write(bytes.data(), bytes.size());
  }
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

// In a child process, where the file size limit holds: the block that cannot be written is not the last.
TEST(LargeFile, AnEarlierBlocksFailureIsThrown) {
  const TestFolder folder;
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {1 << 20, 1 << 20};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    bool named = false;
    try {
      LargeFile file(folder / "large.bin");
      const std::string bytes(size_t{64} << 20, 'x');
      file.write(bytes.data(), bytes.size());
    } catch (const RunError& error) {
      named = std::string(error.what()).find("large.bin") != std::string::npos;
    }
    ::_exit(named && fs::is_empty(folder.path()) ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace trainer
