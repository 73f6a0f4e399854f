// Stop and resume: a run in pieces, each by other objects and by other plans of one arithmetic class, equals
// one run.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <mutex>

#include "app/training_job.h"
#include "checkpoint/test_folder.h"
#include "support/tiny_grid.h"

namespace trainer {
namespace {

using testing::GridPlan;
namespace fs = std::filesystem;

// Remembers which samples were read.
class Recorded : public SampleSource {
 public:
  explicit Recorded(std::shared_ptr<const SampleSource> source) : source_(std::move(source)) {}
  int64_t size() const override { return source_->size(); }
  int64_t sequence_length() const override { return source_->sequence_length(); }
  int64_t valid_tokens(int64_t index) const override { return source_->valid_tokens(index); }
  uint64_t fingerprint() const override { return source_->fingerprint(); }
  void fetch(int64_t index, Sample& sample) const override {
    {
      const std::lock_guard lock(mutex_);
      ids_.insert(index);
    }
    source_->fetch(index, sample);
  }
  std::vector<int64_t> take() const {
    const std::lock_guard lock(mutex_);
    const std::vector<int64_t> ids(ids_.begin(), ids_.end());
    ids_.clear();
    return ids;
  }

 private:
  std::shared_ptr<const SampleSource> source_;
  mutable std::mutex mutex_;
  mutable std::set<int64_t> ids_;  // pipeline stages at both ends read the same
};

std::vector<int64_t> range(int64_t begin, int64_t end) {
  std::vector<int64_t> ids;
  for (int64_t i = begin; i < end; ++i) ids.push_back(i);
  return ids;
}

// What a process does, on every rank of a grid: a job up to `steps`.
void run_job(const GridPlan& plan, int64_t steps, const fs::path& directory, bool resume,
             const std::shared_ptr<const SampleSource>& data, const CheckpointSection& checkpoint = {}) {
  Config config = testing::grid_config(plan);
  config.checkpoint = checkpoint;
  config.training.steps = steps;
  config.optimizer.lr_decay_style = LrDecayStyle::kCosine;
  config.optimizer.lr_warmup_steps = 2;
  config.optimizer.lr_decay_steps = 8;
  config.run.directory = directory.string();
  config.run.tensorboard = false;
  config.run.progress = ProgressStyle::kLine;
  config.training.log_interval = 1000;
  fs::create_directories(directory);
  const int world = plan.world();
  auto communicators = make_in_process_group(world);
  std::vector<std::exception_ptr> errors(communicators.size());
  std::vector<std::jthread> threads;
  for (size_t r = 0; r < communicators.size(); ++r)
    threads.emplace_back([&, r] {
      try {
        TrainingData inputs;
        inputs.model = plan.model;
        inputs.train = data;
        TrainingJob job(config, std::move(inputs), make_host_kernels(plan.threads), *communicators[r],
                        directory, 0);
        job.prepare(resume);
        if (plan.prepare) plan.prepare(job.rank(), static_cast<int>(r));
        job.train();
      } catch (const std::exception& error) {
        errors[r] = std::current_exception();
        communicators[r]->abort(error.what());
      }
    });
  threads.clear();
  for (const auto& error : errors)
    if (error) std::rethrow_exception(error);
}

struct RunState {
  std::vector<std::array<double, 3>> steps;  // loss, gradient norm, learning rate
  std::map<std::string, std::vector<float>> tensors;
  int64_t consumed = 0, updates = 0;
  bool operator==(const RunState&) const = default;
};

RunState state_of(const fs::path& directory) {
  RunState state;
  const RunFiles files(directory);
  for (const StepMetrics& m : read_metrics(files.metrics))
    state.steps.push_back({m.loss, m.grad_norm, m.learning_rate});
  const CheckpointReader checkpoint(find_latest_checkpoint(files.checkpoints).value());
  for (const std::string& name : checkpoint.names()) {
    int64_t count = 1;
    for (int64_t n : *checkpoint.shape(name)) count *= n;
    std::vector<float>& values = state.tensors[name];
    values.resize(static_cast<size_t>(count));
    checkpoint.read(name, 0, values);
  }
  state.consumed = checkpoint.consumed_samples();
  state.updates = json_integer(checkpoint.state(), "updates_done", "checkpoint");
  return state;
}

struct Piece {
  int64_t steps;
  int stages, replicas;
};

void expect_pieces_equal_one_run(GridPlan plan, const std::vector<Piece>& pieces) {
  const TestFolder folder;
  const auto data = std::make_shared<Recorded>(testing::grid_data(plan));
  const int64_t batch = int64_t{plan.micro_batch_size} * plan.micro_batches;
  run_job(plan, pieces.back().steps, folder / "whole", false, data);
  const RunState whole = state_of(folder / "whole");
  EXPECT_EQ(data->take(), range(0, pieces.back().steps * batch));
  ASSERT_EQ(whole.steps.size(), static_cast<size_t>(pieces.back().steps));
  EXPECT_NE(whole.steps.front()[0], whole.steps.back()[0]);
  EXPECT_GE(whole.tensors.size(), 3u * 30);
  int64_t done = 0;
  for (const Piece& piece : pieces) {
    plan.stages = piece.stages;
    plan.replicas = piece.replicas;
    run_job(plan, piece.steps, folder / "pieces", done > 0, data);
    EXPECT_EQ(data->take(), range(done * batch, piece.steps * batch)) << "samples repeated or left out";
    done = piece.steps;
  }
  const RunState joined = state_of(folder / "pieces");
  EXPECT_EQ(joined.steps, whole.steps);
  EXPECT_EQ(joined.consumed, whole.consumed);
  EXPECT_EQ(joined.updates, whole.updates);
  for (const auto& [name, values] : whole.tensors) EXPECT_EQ(joined.tensors.at(name), values) << name;
}

TEST(Resume, ThreeAndThreeStepsEqualSix) {
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    GridPlan plan;
    plan.dtype = dtype;
    expect_pieces_equal_one_run(plan, {{3, 1, 1}, {6, 1, 1}});
  }
}

TEST(Resume, AcrossPipelineDegrees) {
  expect_pieces_equal_one_run({}, {{2, 1, 1}, {4, 2, 1}, {6, 3, 1}});
  expect_pieces_equal_one_run({}, {{1, 3, 1}, {5, 1, 1}, {6, 2, 1}});
}

TEST(Resume, AcrossReplicasWithAReproducibleGroup) {
  GridPlan plan;
  plan.micro_batches = 8;
  plan.reproducible_group = 4;
  expect_pieces_equal_one_run(plan, {{2, 1, 1}, {4, 1, 2}, {6, 2, 4}});
}

TEST(Resume, OneTensorParallelSizeAcrossPipelineDegrees) {
  GridPlan plan;
  plan.tensor_ranks = 2;
  expect_pieces_equal_one_run(plan, {{2, 1, 1}, {4, 2, 1}, {6, 1, 1}});
}

TEST(Resume, ShardsOfTensorParallelRanks) {
  GridPlan plan;
  plan.tensor_ranks = 2;
  plan.micro_batches = 8;
  plan.reproducible_group = 2;
  plan.zero_stage = 2;
  expect_pieces_equal_one_run(plan, {{2, 1, 2}, {4, 2, 1}, {6, 1, 2}});
}

// Another arithmetic class from step 3 on, but from the same state.
TEST(Resume, AcrossTensorParallelSizes) {
  const TestFolder folder;
  GridPlan plan;
  plan.model = testing::tiny_model(Architecture::kGpt2);
  plan.tensor_ranks = 2;
  const auto data = testing::grid_data(plan);
  run_job(plan, 3, folder / "start", false, data);
  const RunState start = state_of(folder / "start");
  std::map<int, RunState> ends;
  for (const int size : {1, 2, 4}) {
    const fs::path run = folder / fmt::format("from_{}", size);
    fs::copy(folder / "start", run, fs::copy_options::recursive);
    plan.tensor_ranks = size;
    // Nothing is lost or moved by reading the parts and writing others.
    plan.prepare = [&](TrainingRank& rank, int) {
      for (const PartTensor& t : rank.checkpoint_tensors()) {
        std::vector<float> whole = start.tensors.at(t.slice.name);
        testing::add_to_state(whole, t);
        EXPECT_EQ(whole, start.tensors.at(t.slice.name)) << t.slice.name;
      }
    };
    run_job(plan, 5, run, true, data);
    ends[size] = state_of(run);
  }
  for (const auto& [size, end] : ends) {
    ASSERT_EQ(end.steps.size(), 5u);
    for (size_t i = 3; i < 5; ++i) EXPECT_NEAR(end.steps[i][0], ends[2].steps[i][0], 1e-4) << size;
    EXPECT_EQ(end.consumed, ends[2].consumed);
    EXPECT_EQ(end.updates, ends[2].updates);
    ASSERT_EQ(end.tensors.size(), start.tensors.size());
    for (const auto& [name, values] : start.tensors) EXPECT_EQ(end.tensors.at(name).size(), values.size());
  }
}

// Other replicas without a group: other bits, but the same data in the same order.
TEST(Resume, OtherReplicasReadTheSamplesThatFollow) {
  const TestFolder folder;
  GridPlan plan;
  plan.micro_batch_size = 1;
  plan.micro_batches = 8;
  plan.replicas = 2;
  const auto data = std::make_shared<Recorded>(testing::grid_data(plan));
  run_job(plan, 2, folder / "run", false, data);
  EXPECT_EQ(data->take(), range(0, 16));
  plan.replicas = 1;
  run_job(plan, 3, folder / "run", true, data);
  EXPECT_EQ(data->take(), range(16, 24));
}

TEST(Resume, AnUnfinishedOrDamagedCheckpointIsPassedOver) {
  const TestFolder folder;
  GridPlan plan;
  plan.stages = 2;
  const auto data = testing::grid_data(plan);
  run_job(plan, 3, folder / "whole", false, data);
  fs::copy(folder / "whole", folder / "cut", fs::copy_options::recursive);
  run_job(plan, 5, folder / "whole", true, data);
  const RunState whole = state_of(folder / "whole");

  // Killed while saving step 5: nothing but a folder of parts; then one with a part cut short.
  const fs::path good = *find_latest_checkpoint(RunFiles(folder / "whole").checkpoints);
  const fs::path root = RunFiles(folder / "cut").checkpoints;
  fs::copy(good, root / (good.filename().string() + ".incomplete"), fs::copy_options::recursive);
  fs::remove(root / (good.filename().string() + ".incomplete") / "manifest.json");
  run_job(plan, 5, folder / "cut", true, data);
  EXPECT_EQ(state_of(folder / "cut"), whole);

  for (const auto& entry : fs::directory_iterator(*find_latest_checkpoint(root)))
    if (entry.path().extension() == ".safetensors") {
      fs::resize_file(entry.path(), fs::file_size(entry.path()) - 1);
      break;
    }
  run_job(plan, 5, folder / "cut", true, data);
  EXPECT_EQ(state_of(folder / "cut"), whole);

  // One bit of a value: what was read with it is replaced.
  for (const int rank : {0, 1}) {
    const fs::path part = *find_latest_checkpoint(root) / (part_name(rank) + ".safetensors");
    std::string bytes = read_file(part);
    bytes[bytes.size() - 1] ^= 1;
    write_file_atomically(part, bytes);
    run_job(plan, 5, folder / "cut", true, data);
    EXPECT_EQ(state_of(folder / "cut"), whole);
  }
}

TEST(Resume, NonFiniteStepsEndTheJobAndKeepTheLastGoodCheckpoint) {
  const TestFolder folder;
  GridPlan plan;
  plan.replicas = 2;
  const auto data = testing::grid_data(plan);
  run_job(plan, 2, folder / "run", false, data);
  const RunState good = state_of(folder / "run");
  plan.prepare = [&](TrainingRank& rank, int r) {
    const std::string name = rank.model().layer(1).parameters().front().name;
    if (r == 1) const_cast<float*>(rank.parameter(name))[0] = std::numeric_limits<float>::infinity();
  };
  try {
    run_job(plan, 50, folder / "run", true, data);
    FAIL() << "it went on";
  } catch (const RunError& error) {
    EXPECT_NE(std::string(error.what()).find("not finite in 3 steps in a row"), std::string::npos)
        << error.what();
  }
  EXPECT_EQ(state_of(folder / "run").tensors, good.tensors);
  const auto metrics = read_metrics(RunFiles(folder / "run").metrics);
  ASSERT_EQ(metrics.size(), 5u);
  for (const StepMetrics& m : metrics) EXPECT_EQ(m.skipped, m.step > 2);
  plan.prepare = nullptr;
  run_job(plan, 4, folder / "run", true, data);
  run_job(plan, 4, folder / "whole", false, data);
  EXPECT_EQ(state_of(folder / "run"), state_of(folder / "whole"));
}

// What training is waited for and what goes on beside it leave the same checkpoints.
TEST(Resume, CheckpointsOfTheBackgroundAreThoseThatTrainingWaitsFor) {
  GridPlan single, grid;
  grid.stages = grid.replicas = 2;
  grid.zero_stage = 2;
  for (GridPlan plan : {single, grid}) {
    plan.prepare = [](TrainingRank& rank, int) {
      size_t bytes = 0;
      for (const PartTensor& t : rank.checkpoint_tensors()) bytes += t.values.size_bytes();
      EXPECT_EQ(rank.checkpoint_bytes(), static_cast<int64_t>(bytes));
    };
    const TestFolder folder;
    const auto data = testing::grid_data(plan);
    // A save every step: each finishes the one before. Then one that is over long before the next.
    for (const int64_t interval : {1, 4}) {
      CheckpointSection section{.save_interval = interval, .keep_last = 0};
      section.background = false;
      const fs::path waited = folder / fmt::format("waited_{}", interval),
                     background = folder / fmt::format("background_{}", interval);
      run_job(plan, 9, waited, false, data, section);
      section.background = true;
      run_job(plan, 9, background, false, data, section);
      EXPECT_EQ(state_of(background), state_of(waited));
      const fs::path root = RunFiles(background).checkpoints, expected = RunFiles(waited).checkpoints;
      int parts = 0;
      for (int64_t step = interval; step <= 9; step += interval) {
        const std::string name = fmt::format("step_{:08}", step);
        CheckpointReader(root / name).verify();
        for (const auto& entry : fs::directory_iterator(expected / name)) {
          const std::string file = entry.path().filename().string();
          if (!file.starts_with("part-")) continue;  // the manifest holds the config
          ++parts;
          EXPECT_TRUE(read_file(entry.path()) == read_file(root / name / file)) << name << " " << file;
        }
      }
      EXPECT_EQ(parts, 9 / interval * 2 * plan.world());
      for (const auto& entry : fs::directory_iterator(root))
        EXPECT_NE(entry.path().extension(), ".incomplete") << entry.path();
    }
  }
}

TEST(Resume, AFailureInTheBackgroundEndsTheJobAndKeepsTheLastGoodCheckpoint) {
  const TestFolder folder;
  GridPlan plan;
  plan.replicas = 2;
  const auto data = testing::grid_data(plan);
  run_job(plan, 2, folder / "run", false, data);
  const RunState good = state_of(folder / "run");
  plan.prepare = [&](TrainingRank& rank, int) {
    const std::string name = rank.model().layer(1).parameters().front().name;
    const_cast<float*>(rank.parameter(name))[0] = std::numeric_limits<float>::infinity();
  };
  plan.max_consecutive_skips = 100;
  try {
    run_job(plan, 9, folder / "run", true, data, {.save_interval = 3});
    FAIL() << "it went on";
  } catch (const RunError& error) {
    EXPECT_NE(std::string(error.what()).find("step 3 could not be saved: "), std::string::npos)
        << error.what();
    EXPECT_NE(std::string(error.what()).find("holds inf at element 0"), std::string::npos) << error.what();
  }
  EXPECT_EQ(state_of(folder / "run").tensors, good.tensors);
  for (const auto& entry : fs::directory_iterator(RunFiles(folder / "run").checkpoints))
    EXPECT_EQ(entry.path().filename(), "step_00000002");
}

// No labels in the first `samples`.
class LabelsLater : public testing::InventedSource {
 public:
  LabelsLater(int64_t vocabulary, int64_t samples)
      : InventedSource(12, vocabulary, 4096), samples_(samples) {}
  void fetch(int64_t index, Sample& s) const override {
    InventedSource::fetch(index, s);
    if (index >= samples_) return;
    std::fill(s.labels.begin(), s.labels.end(), kIgnoredLabel);
    s.valid_tokens = 0;
  }

 private:
  int64_t samples_;
};

TEST(Resume, StepsWithoutLabelsAreNotCountedAsNonFinite) {
  const TestFolder folder;
  GridPlan plan;
  const auto data = std::make_shared<LabelsLater>(plan.model.vocabulary_size, 2 * 8);
  plan.prepare = [](TrainingRank& rank, int) {
    const std::string name = rank.model().layer(1).parameters().front().name;
    const_cast<float*>(rank.parameter(name))[0] = std::numeric_limits<float>::infinity();
  };
  try {
    run_job(plan, 50, folder / "run", false, data);
    FAIL() << "it went on";
  } catch (const RunError& error) {
    EXPECT_NE(std::string(error.what()).find("in 3 steps in a row, the last being step 5"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace trainer
