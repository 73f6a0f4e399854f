#include "checkpoint/background_part.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <map>
#include <numeric>
#include <random>

#include "base/file.h"
#include "checkpoint/rotate.h"
#include "checkpoint/test_folder.h"

namespace trainer {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr size_t kElements = 3'000'000;  // more than are copied, and written, at a time

std::vector<float> numbers(int64_t step, size_t count = kElements) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), static_cast<float>(step));
  return values;
}

// Tensors "a", of `values`, and "b", which brings a copy of its own.
std::vector<PartTensor> two_tensors(std::span<const float> values) {
  const auto copy = std::make_shared<const std::vector<float>>(numbers(-1, 5));
  return {{{"a", {std::ssize(values)}, {0, std::ssize(values)}}, values}, {{"b", {5}, {0, 5}}, *copy, copy}};
}

std::map<std::string, std::string> contents_of(const fs::path& folder) {
  std::map<std::string, std::string> contents;
  for (const auto& entry : fs::directory_iterator(folder))
    contents[entry.path().filename().string()] = read_file(entry.path());
  return contents;
}

TEST(BackgroundPart, WritesTheBytesOfTheMomentItBegan) {
  const TestFolder folder;
  std::vector<float> values = numbers(7);
  const fs::path waited = begin_checkpoint(folder / "waited", 1),
                 background = begin_checkpoint(folder / "background", 1);
  write_part(waited, 2, two_tensors(values));
  BackgroundPart part;
  part.reserve(values.size() * sizeof(float) / 2);  // too little: more is taken
  for (int round = 0; round < 2; ++round) {         // the second time in the memory of the first
    values = numbers(7);
    part.start(background, 2, two_tensors(values), 2);
    for (int change = 0; part.writing(); ++change)
      std::fill(values.begin(), values.end(), static_cast<float>(change));
    part.finish();
    EXPECT_TRUE(contents_of(background) == contents_of(waited));
    fs::remove_all(background);
    fs::create_directory(background);
  }
}

TEST(BackgroundPart, WhatCannotBeWrittenIsNamedAtTheEnd) {
  const TestFolder folder;
  const std::vector<float> values = numbers(1, 100);
  write_test_file(folder / "taken", "a file, not a folder");
  BackgroundPart part;
  part.start(folder / "taken", 0, two_tensors(values), 1);
  EXPECT_THAT(message_of<RunError>([&] { part.finish(); }), HasSubstr("taken/part-00000.safetensors"));
  EXPECT_FALSE(part.writing());
  part.finish();  // said once

  std::vector<float> infinite = values;
  infinite[40] = INFINITY;
  part.start(folder.path(), 0, two_tensors(infinite), 1);
  EXPECT_THAT(message_of<RunError>([&] { part.finish(); }), HasSubstr("tensor 'a' holds inf at element 40"));
  EXPECT_FALSE(fs::exists(folder / "part-00000.safetensors"));

  part.start(folder.path(), 0, two_tensors(values), 1);
  part.finish();
  EXPECT_EQ(read_part_info(folder.path(), 0).slices.size(), 2u);
}

TEST(BackgroundPart, MemoryMayBeReservedAhead) {
  const TestFolder folder;
  const std::vector<float> values = numbers(3);
  BackgroundPart part;
  part.reserve(values.size() * sizeof(float));
  part.start(folder.path(), 0, two_tensors(values), 2);
  part.finish();
  EXPECT_EQ(read_part_info(folder.path(), 0).slices.size(), 2u);
  BackgroundPart unused;
  unused.reserve(1 << 20);
  unused.finish();
}

TEST(BackgroundPart, IsGivenUpWhenNobodyWaits) {
  const TestFolder folder;
  const std::vector<float> values = numbers(1, size_t{40'000'000});
  {
    BackgroundPart part;
    part.start(folder.path(), 0, two_tensors(values), 2);
  }
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(BackgroundPart, AKillLeavesTheLastCompleteCheckpoint) {
  const TestFolder folder;
  const auto save = [&](int64_t step) {
    const fs::path directory = begin_checkpoint(folder.path(), step);
    const std::vector<float> values = numbers(step);
    BackgroundPart part;
    part.start(directory, 0, two_tensors(values), 1);
    part.finish();
    const std::vector<PartInfo> parts = {read_part_info(directory, 0)};
    finish_checkpoint(directory, parts, {step, step, {}});
    testing::rotate_checkpoints(folder.path(), 1);
  };
  save(1);
  std::mt19937 random(3);
  int interrupted = 0;
  for (int round = 0; round < 10; ++round) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      try {
        for (int64_t step = CheckpointReader(*find_latest_checkpoint(folder.path())).step() + 1;; ++step)
          save(step);
      } catch (...) {
        ::_exit(1);
      }
    }
    ::usleep(static_cast<useconds_t>(5000 + random() % 150'000));
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the save itself failed";
    for (const auto& entry : fs::directory_iterator(folder.path()))
      interrupted += entry.path().extension() == ".incomplete";
    const auto found = find_latest_checkpoint(folder.path());
    ASSERT_TRUE(found);
    const CheckpointReader reader(*found);
    std::vector<float> values(kElements);
    reader.read("a", 0, values);
    EXPECT_TRUE(values == numbers(reader.step()));
  }
  EXPECT_GT(interrupted, 0) << "no save was interrupted: the test shows nothing";
}

}  // namespace
}  // namespace trainer
