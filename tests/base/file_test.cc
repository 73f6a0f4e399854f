#include "base/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "base/error.h"

namespace trainer {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class FileTest : public ::testing::Test {
 protected:
  FileTest() {
    std::string name = (fs::temp_directory_path() / "trainer-file-XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
  }
  ~FileTest() override { fs::remove_all(folder_); }

  size_t files() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }
  fs::path folder_;
};

TEST_F(FileTest, NothingStandsUnderTheFinalNameBeforeTheCommit) {
  const fs::path path = folder_ / "a.bin";
  {
    AtomicFile file(path);
    file.write("abc", 3);
    file.write("defg", 4);
    EXPECT_EQ(file.written(), 7u);
    EXPECT_FALSE(fs::exists(path));
    file.commit();
  }
  EXPECT_EQ(read_file(path), "abcdefg");
  EXPECT_EQ(files(), 1u);
}

TEST_F(FileTest, WithoutACommitTheOldFileStaysAndNoTemporaryIsLeft) {
  const fs::path path = folder_ / "a.bin";
  write_file_atomically(path, "old");
  {
    AtomicFile file(path);
    file.write("new", 3);
  }
  EXPECT_EQ(read_file(path), "old");
  EXPECT_EQ(files(), 1u);
}

TEST_F(FileTest, TwoWritersOfOneNameDoNotMeet) {
  const fs::path path = folder_ / "a.bin";
  AtomicFile first(path), second(path);
  first.write("first", 5);
  second.write("second", 6);
  first.commit();
  second.commit();
  EXPECT_EQ(read_file(path), "second");
  EXPECT_EQ(files(), 1u);
}

TEST_F(FileTest, AFolderThatIsNotThereIsNamed) {
  try {
    AtomicFile file(folder_ / "missing" / "a.bin");
    FAIL();
  } catch (const RunError& e) {
    EXPECT_THAT(e.what(), HasSubstr((folder_ / "missing" / "a.bin").string()));
  }
}

// Writes until the medium refuses; the old file must survive and the message must name the path.
void expect_refusal_of_a_megabyte(const fs::path& path) {
  const std::string megabyte(1 << 20, 'x');
  try {
    AtomicFile file(path);
    for (int i = 0; i < 4; ++i) file.write(megabyte.data(), megabyte.size());
    file.commit();
    ADD_FAILURE() << "a full disk was not noticed";
  } catch (const RunError& e) {
    EXPECT_THAT(e.what(), HasSubstr(path.string()));
  }
}

TEST_F(FileTest, AFullDiskIsAnErrorAndKeepsTheOldFile) {
  const fs::path mounted = folder_ / "small";
  fs::create_directory(mounted);
  if (::mount("tmpfs", mounted.c_str(), "tmpfs", 0, "size=1m") != 0) GTEST_SKIP() << "mounting needs root";
  write_file_atomically(mounted / "a.bin", "old");
  expect_refusal_of_a_megabyte(mounted / "a.bin");
  EXPECT_EQ(read_file(mounted / "a.bin"), "old");
  EXPECT_EQ(std::distance(fs::directory_iterator(mounted), fs::directory_iterator()), 1);
  EXPECT_EQ(::umount(mounted.c_str()), 0);
}

TEST_F(FileTest, AFileSizeLimitIsAnErrorAndKeepsTheOldFile) {
  const fs::path path = folder_ / "a.bin";
  write_file_atomically(path, "old");
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{1 << 19, before.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  expect_refusal_of_a_megabyte(path);
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(read_file(path), "old");
  EXPECT_EQ(files(), 1u);
}

TEST_F(FileTest, ReadsWholeFilesMapsAndPieces) {
  const fs::path path = folder_ / "a.bin";
  const std::string text("a\0b\nc", 5);
  write_file_atomically(path, text);
  EXPECT_EQ(read_file(path), text);
  MappedFile map(path);
  ASSERT_EQ(map.size(), 5u);
  EXPECT_EQ(static_cast<char>(map.bytes()[2]), 'b');
  const MappedFile moved(std::move(map));
  EXPECT_EQ(moved.size(), 5u);

  const ReadableFile file(path);
  char piece[2];
  file.read(2, piece, 2);
  EXPECT_EQ(std::string(piece, 2), "b\n");
  EXPECT_THROW(file.read(4, piece, 2), InputError);
}

TEST_F(FileTest, AnEmptyFileIsNoError) {
  write_file_atomically(folder_ / "empty", "");
  EXPECT_EQ(read_file(folder_ / "empty"), "");
  EXPECT_EQ(MappedFile(folder_ / "empty").size(), 0u);
}

TEST_F(FileTest, WhatCannotBeReadIsNamed) {
  for (const fs::path& path : {folder_ / "missing", folder_}) {
    try {
      read_file(path);
      ADD_FAILURE() << path;
    } catch (const InputError& e) {
      EXPECT_THAT(e.what(), HasSubstr(path.string()));
    }
  }
}

}  // namespace
}  // namespace trainer
