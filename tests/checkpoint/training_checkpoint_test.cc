#include "checkpoint/training_checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "checkpoint/rotate.h"
#include "checkpoint/test_folder.h"

namespace trainer {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Values that tell tensor, step and element apart.
std::vector<float> values_of(int tensor, int64_t step, size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i)
    values[i] = static_cast<float>(tensor * 1000 + step) + static_cast<float>(i) / 256;
  return values;
}

// The elements of tensor `name` that `values` are, from `begin` on.
PartTensor part_of(const std::string& name, const std::vector<int64_t>& shape, int64_t begin,
                   std::span<const float> values, int64_t run = 0, int64_t stride = 0) {
  return {{name, shape, {begin, std::ssize(values), run, stride}}, values};
}

constexpr size_t kLarge = 60'000;

// Tensor "a" [6, 10000] in two writers' halves, "b" [3] whole in writer 1.
fs::path save(const fs::path& root, int64_t step) {
  const fs::path directory = begin_checkpoint(root, step);
  const auto a = values_of(1, step, kLarge), b = values_of(2, step, 3);
  const auto first = std::span(a).first(kLarge / 3), second = std::span(a).subspan(kLarge / 3);
  write_part(directory, 0, std::vector{part_of("a", {6, 10000}, 0, first)});
  write_part(directory, 1,
             std::vector{part_of("b", {3}, 0, b), part_of("a", {6, 10000}, std::ssize(first), second)});
  const std::vector<PartInfo> parts = {read_part_info(directory, 0), read_part_info(directory, 1)};
  return finish_checkpoint(directory, parts, {step, step * 8, {{"learning_rate", 0.1}, {"note", "x"}}});
}

void expect_step(const fs::path& directory, int64_t step) {
  const CheckpointReader reader(directory);
  EXPECT_EQ(reader.step(), step);
  std::vector<float> a(kLarge), b(3);
  reader.read("a", 0, a);
  reader.read("b", 0, b);
  EXPECT_EQ(a, values_of(1, step, kLarge));
  EXPECT_EQ(b, values_of(2, step, 3));
}

void cut_by_one_byte(const fs::path& file) { fs::resize_file(file, fs::file_size(file) - 1); }

void change_one_byte(const fs::path& file, int64_t from_end) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(-from_end, std::ios::end);
  const char old = static_cast<char>(stream.get());
  stream.seekp(-from_end, std::ios::end);
  stream.put(static_cast<char>(old ^ 1));
}

std::vector<std::string> names_in(const fs::path& root) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(root)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

TEST(TrainingCheckpoint, HoldsLogicalTensorsWhoeverWroteThem) {
  const TestFolder folder;
  const fs::path saved = save(folder.path(), 10);
  EXPECT_EQ(saved, folder / "step_00000010");
  EXPECT_THAT(names_in(saved), ElementsAre("manifest.json", "part-00000.json", "part-00000.safetensors",
                                           "part-00001.json", "part-00001.safetensors"));
  expect_step(saved, 10);
  const CheckpointReader reader(saved);
  reader.verify();
  EXPECT_EQ(reader.consumed_samples(), 80);
  EXPECT_EQ(reader.state()["learning_rate"].get<double>(), 0.1);
  EXPECT_THAT(reader.names(), ElementsAre("a", "b"));
  EXPECT_THAT(*reader.shape("a"), ElementsAre(6, 10000));
  EXPECT_EQ(reader.shape("c"), nullptr);
}

TEST(TrainingCheckpoint, ReadsAnyRunOfElements) {
  const TestFolder folder;
  const CheckpointReader reader(save(folder.path(), 3));
  const auto all = values_of(1, 3, kLarge);
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    const size_t begin = random() % kLarge, count = random() % (kLarge - begin);
    std::vector<float> values(count);
    reader.read("a", static_cast<int64_t>(begin), values);
    ASSERT_TRUE(std::equal(values.begin(), values.end(), all.begin() + static_cast<int64_t>(begin)));
  }
  std::vector<float> two(2);
  EXPECT_THAT(message_of([&] { reader.read("b", 2, two); }), HasSubstr("tensor 'b' has 3 elements"));
  EXPECT_THAT(message_of([&] { reader.read("c", 0, two); }), HasSubstr("no tensor 'c'"));
}

// Columns 0-2 and 3-4 of a matrix [40, 5] by two writers, read in any runs.
TEST(TrainingCheckpoint, ColumnsOfAMatrixByDifferentWriters) {
  const TestFolder folder;
  constexpr int64_t kRows = 40, kWidth = 5;
  std::vector<float> whole(kRows * kWidth);
  std::iota(whole.begin(), whole.end(), 1.0f);
  const auto columns = [&](int64_t begin, int64_t count) {
    std::vector<float> values;
    for (int64_t row = 0; row < kRows; ++row)
      for (int64_t c = begin; c < begin + count; ++c)
        values.push_back(whole[static_cast<size_t>(row * kWidth + c)]);
    return values;
  };
  const auto left = columns(0, 3), right = columns(3, 2);
  const fs::path directory = begin_checkpoint(folder.path(), 1);
  write_part(directory, 0, std::vector{part_of("m", {kRows, kWidth}, 0, left, 3, kWidth)});
  // The last row on its own.
  const auto most = std::span(right).first(2 * (kRows - 1)), last = std::span(right).last(2);
  write_part(directory, 1,
             std::vector{part_of("m", {kRows, kWidth}, 3, most, 2, kWidth),
                         part_of("m", {kRows, kWidth}, (kRows - 1) * kWidth + 3, last)});
  const std::vector<PartInfo> parts = {read_part_info(directory, 0), read_part_info(directory, 1)};
  const CheckpointReader reader(finish_checkpoint(directory, parts, {1, 8, {}}));
  for (int64_t begin = 0; begin < kRows * kWidth; ++begin)
    for (int64_t count = 1; begin + count <= kRows * kWidth; count += 3) {
      std::vector<float> values(static_cast<size_t>(count));
      reader.read("m", begin, values);
      for (int64_t i = 0; i < count; ++i)
        ASSERT_EQ(values[static_cast<size_t>(i)], whole[static_cast<size_t>(begin + i)]) << begin << " " << i;
    }
}

TEST(TrainingCheckpoint, EveryElementMustBeSavedOnce) {
  const TestFolder folder;
  const auto values = values_of(1, 1, 4);
  const auto finish = [&](std::vector<PartTensor> tensors) {
    const fs::path directory = begin_checkpoint(folder.path(), 1);
    const std::vector<PartInfo> parts = {write_part(directory, 0, tensors)};
    finish_checkpoint(directory, parts, {1, 0, {}});
  };
  const auto span = std::span<const float>(values);
  const auto refusal = [&](std::vector<PartTensor> tensors) {
    return message_of<std::logic_error>([&] { finish(std::move(tensors)); });
  };
  EXPECT_THAT(refusal({part_of("a", {4}, 0, span.first(3))}), HasSubstr("element 3 was saved by nobody"));
  EXPECT_THAT(refusal({part_of("a", {4}, 1, span.first(3))}), HasSubstr("element 0 was saved by nobody"));
  EXPECT_THAT(refusal({part_of("a", {4}, 0, span.first(3)), part_of("a", {4}, 2, span.first(2))}),
              HasSubstr("element 2 was saved twice"));
  EXPECT_THAT(refusal({{{"a", {4}, {0, 4}}, span.first(3)}}), HasSubstr("3 values for 4 elements"));
  EXPECT_THAT(refusal({part_of("a", {4}, 0, span, 0, 2)}), HasSubstr("in runs of 0 by 2"));
  EXPECT_THAT(refusal({part_of("a", {-4}, 0, span)}), HasSubstr("shape is negative"));
  EXPECT_FALSE(find_latest_checkpoint(folder.path()));
}

TEST(TrainingCheckpoint, ValuesThatAreNotFiniteAreRefused) {
  const TestFolder folder;
  save(folder.path(), 10);
  for (float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    auto values = values_of(1, 20, 3);
    values[2] = bad;
    const fs::path directory = begin_checkpoint(folder.path(), 20);
    const std::vector tensors = {part_of("a.moment1", {3}, 0, values)};
    const std::string message = message_of<RunError>([&] { write_part(directory, 0, tensors); });
    EXPECT_THAT(message, HasSubstr("tensor 'a.moment1'"));
    EXPECT_THAT(message, HasSubstr("element 2"));
    EXPECT_THAT(message_of<RunError>([&] { read_part_info(directory, 0); }),
                HasSubstr("part of writer 0 is missing"));
    abandon_checkpoint(directory);
  }
  EXPECT_THAT(names_in(folder.path()), ElementsAre("step_00000010"));
  expect_step(*find_latest_checkpoint(folder.path()), 10);
}

// Each kind of damage to step 20 must be noticed, named, and step 10 used.
class DamagedCheckpoint : public ::testing::Test {
 protected:
  void SetUp() override {
    save(folder_.path(), 10);
    newest_ = save(folder_.path(), 20);
    ASSERT_EQ(find_latest_checkpoint(folder_.path()), newest_);
  }
  void expect_passed_over(const std::string& file) {
    const std::string message = message_of([&] { CheckpointReader(newest_).verify(); });
    EXPECT_THAT(message, HasSubstr((newest_ / file).string()));
    const auto found = find_latest_checkpoint(folder_.path());
    ASSERT_TRUE(found);
    expect_step(*found, 10);
    // A good one is never rotated away in favour of a damaged one, where that shows without reading every
    // byte.
    if (!message_of([&] { CheckpointReader{newest_}; }).empty()) {
      testing::rotate_checkpoints(folder_.path(), 1);
      expect_step(*found, 10);
    }
  }
  TestFolder folder_;
  fs::path newest_;
};

TEST_F(DamagedCheckpoint, MissingPart) {
  fs::remove(newest_ / "part-00001.safetensors");
  expect_passed_over("part-00001.safetensors");
}
TEST_F(DamagedCheckpoint, PartCutByOneByte) {
  cut_by_one_byte(newest_ / "part-00000.safetensors");
  expect_passed_over("part-00000.safetensors");
}
TEST_F(DamagedCheckpoint, OneBitOfAPart) {
  change_one_byte(newest_ / "part-00001.safetensors", 1000);
  expect_passed_over("part-00001.safetensors");
}
TEST_F(DamagedCheckpoint, MissingManifest) {
  fs::remove(newest_ / "manifest.json");
  expect_passed_over("manifest.json");
}
TEST_F(DamagedCheckpoint, ManifestCutInHalf) {
  fs::resize_file(newest_ / "manifest.json", fs::file_size(newest_ / "manifest.json") / 2);
  expect_passed_over("manifest.json");
}
TEST_F(DamagedCheckpoint, OneDigitOfTheManifest) {
  std::string text = read_file(newest_ / "manifest.json");
  text[text.find("\"consumed_samples\":160") + 19] = '2';
  write_test_file(newest_ / "manifest.json", text);
  expect_passed_over("manifest.json");
}
TEST_F(DamagedCheckpoint, PartsOfTwoCheckpointsAreNotMixed) {
  fs::copy_file(folder_ / "step_00000010/part-00000.safetensors", newest_ / "part-00000.safetensors",
                fs::copy_options::overwrite_existing);
  expect_passed_over("part-00000.safetensors");
}
TEST_F(DamagedCheckpoint, NoneIsLeft) {
  for (const char* step : {"step_00000010", "step_00000020"})
    cut_by_one_byte(folder_ / step / "part-00000.safetensors");
  EXPECT_THAT(message_of([&] { find_latest_checkpoint(folder_.path()); }),
              HasSubstr("no checkpoint can be used"));
}

TEST(TrainingCheckpoint, AnEmptyOrMissingFolderHoldsNone) {
  const TestFolder folder;
  EXPECT_EQ(find_latest_checkpoint(folder.path()), std::nullopt);
  EXPECT_EQ(find_latest_checkpoint(folder / "nothing"), std::nullopt);
}

TEST(TrainingCheckpoint, AMissingWriterIsNoticedAtTheEnd) {
  const TestFolder folder;
  const fs::path directory = begin_checkpoint(folder.path(), 5);
  const auto values = values_of(1, 5, 4);
  std::vector<PartInfo> parts = {write_part(directory, 0, std::vector{part_of("a", {4}, 0, values)})};
  EXPECT_THAT(message_of<RunError>([&] { read_part_info(directory, 1); }), HasSubstr("writer 1"));
  fs::remove(directory / parts[0].file);
  EXPECT_THAT(message_of<RunError>([&] {
                finish_checkpoint(directory, parts, {5, 0, {}});
              }),
              HasSubstr(parts[0].file));
  EXPECT_EQ(find_latest_checkpoint(folder.path()), std::nullopt);
}

// Numbers that make no sense are told by their file, not taken for extents or shapes.
TEST(TrainingCheckpoint, DamagedNumbersOfAPartAreRefused) {
  const TestFolder folder;
  const fs::path directory = begin_checkpoint(folder.path(), 5);
  const auto values = values_of(1, 5, 6);
  write_part(directory, 0, std::vector{part_of("a", {3, 4}, 1, values, 2, 4)});
  const fs::path file = directory / "part-00000.json";
  const Json good = parse_json_file(file.string());
  EXPECT_EQ(read_part_info(directory, 0).slices.front().extent.end(), 11);
  for (const auto& [key, value] : std::vector<std::pair<std::string, std::string>>{{"run", "0"},
                                                                                   {"run", "-2"},
                                                                                   {"run", "5"},
                                                                                   {"run", "4"},
                                                                                   {"stride", "-4"},
                                                                                   {"stride", "1"},
                                                                                   {"stride", "6"},
                                                                                   {"begin", "-1"},
                                                                                   {"begin", "3"},
                                                                                   {"count", "-6"},
                                                                                   {"count", "8"},
                                                                                   {"shape", "[-3, 4]"},
                                                                                   {"shape", "[3, 3]"}}) {
    SCOPED_TRACE(key + " " + value);
    Json bad = good;
    bad["slices"][0][key] = Json::parse(value);
    write_test_file(file, bad.dump());
    EXPECT_THAT(message_of<RunError>([&] { read_part_info(directory, 0); }),
                HasSubstr("part-00000.json: damaged: its elements of tensor 'a'"));
  }
  // More elements than a number can hold, and more than the part has bytes for.
  for (const char* shape : {"[4611686018427387904, 4611686018427387904]", "[4611686018427387904]"}) {
    Json bad = good;
    bad["slices"][0]["shape"] = Json::parse(shape);
    bad["slices"][0]["count"] = int64_t{1} << 62;
    bad["slices"][0]["begin"] = bad["slices"][0]["stride"] = 0;
    write_test_file(file, bad.dump());
    EXPECT_THAT(message_of<RunError>([&] { read_part_info(directory, 0); }), HasSubstr("damaged")) << shape;
  }
}

TEST(TrainingCheckpoint, RotationKeepsTheLastComplete) {
  const TestFolder folder;
  for (int64_t step : {10, 20, 30, 40}) save(folder.path(), step);
  testing::rotate_checkpoints(folder.path(), 0);
  EXPECT_EQ(names_in(folder.path()).size(), 4u);
  fs::remove(folder / "step_00000030" / "part-00000.safetensors");
  testing::rotate_checkpoints(folder.path(), 2);
  EXPECT_THAT(names_in(folder.path()), ElementsAre("step_00000020", "step_00000030", "step_00000040"));
  save(folder.path(), 50);
  testing::rotate_checkpoints(folder.path(), 2);
  EXPECT_THAT(names_in(folder.path()), ElementsAre("step_00000040", "step_00000050"));
}

TEST(TrainingCheckpoint, AStepSavedAgainReplacesTheOldOne) {
  const TestFolder folder;
  const fs::path saved = save(folder.path(), 20);
  cut_by_one_byte(saved / "part-00000.safetensors");
  save(folder.path(), 20);
  EXPECT_THAT(names_in(folder.path()), ElementsAre("step_00000020"));
  expect_step(*find_latest_checkpoint(folder.path()), 20);
}

TEST(TrainingCheckpoint, BigStepsSortByNumber) {
  const TestFolder folder;
  save(folder.path(), 99'999'999);
  save(folder.path(), 100'000'000);
  EXPECT_EQ(find_latest_checkpoint(folder.path()), folder / "step_100000000");
}

// A process killed at any moment of a save leaves the last complete checkpoint to be found, and nothing that
// is taken for one.
TEST(TrainingCheckpoint, KilledDuringSave) {
  const TestFolder folder;
  save(folder.path(), 1);
  std::mt19937 random(3);
  int interrupted = 0;
  for (int round = 0; round < 12; ++round) {
    const int64_t newest = CheckpointReader(*find_latest_checkpoint(folder.path())).step();
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      try {
        for (int64_t step = newest + 1;; ++step) {
          save(folder.path(), step);
          testing::rotate_checkpoints(folder.path(), 1);
        }
      } catch (...) {
        ::_exit(1);
      }
    }
    ::usleep(static_cast<useconds_t>(2000 + random() % 150'000));
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the save itself failed";
    for (const auto& name : names_in(folder.path())) interrupted += name.ends_with(".incomplete");
    const auto found = find_latest_checkpoint(folder.path());
    ASSERT_TRUE(found);
    const int64_t step = CheckpointReader(*found).step();
    EXPECT_GE(step, newest);
    expect_step(*found, step);
  }
  EXPECT_GT(interrupted, 0) << "no save was interrupted: the test shows nothing";
}

// Run in a child process, where the file size limit holds: the same error that a full disk gives, without
// privileges.
TEST(TrainingCheckpoint, AWriteThatFailsLeavesTheLastGoodOne) {
  const TestFolder folder;
  save(folder.path(), 10);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {100'000, 100'000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const std::string message = message_of<RunError>([&] { save(folder.path(), 20); });
    ::_exit(message.find("part-00001.safetensors") != std::string::npos ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  const auto found = find_latest_checkpoint(folder.path());
  ASSERT_TRUE(found);
  expect_step(*found, 10);
}

TEST(TrainingCheckpoint, FullDisk) {
  const TestFolder folder;
  struct Unmount {
    const TestFolder& folder;
    ~Unmount() { ::umount2(folder.path().c_str(), MNT_DETACH); }
  } unmount{folder};
  if (::mount("tmpfs", folder.path().c_str(), "tmpfs", 0, "size=400k") != 0)
    GTEST_SKIP() << "a small file system cannot be mounted here";
  save(folder.path(), 10);
  const std::string message = message_of<RunError>([&] { save(folder.path(), 20); });
  EXPECT_THAT(message, HasSubstr("No space left"));
  EXPECT_THAT(message, HasSubstr("step_00000020"));
  const auto found = find_latest_checkpoint(folder.path());
  ASSERT_TRUE(found);
  expect_step(*found, 10);
  // The next save clears what the failed one left before it needs the room.
  abandon_checkpoint(folder / "step_00000020.incomplete");
  EXPECT_THAT(names_in(folder.path()), ElementsAre("step_00000010"));
}

}  // namespace
}  // namespace trainer
