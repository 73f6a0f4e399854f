// Training on memory that the host does not reach learns the same bits, and nothing but the device touches
// it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "app/training_state.h"
#include "checkpoint/synthetic_model.h"
#include "checkpoint/test_folder.h"
#include "ops/gemm_rate.h"
#include "simt/simt_kernels.h"
#include "support/guarded_backend.h"
#include "support/thinning.h"
#include "support/tiny_grid.h"

namespace trainer {
namespace {

using testing::describe;
using testing::expect_same_bits;
using testing::GridPlan;
using testing::GridResult;
using testing::guarded_backend;
using testing::GuardedDevice;
using testing::run_grid;

void expect_same_on_device(GridPlan plan) {
  SCOPED_TRACE(describe(plan));
  const GridResult host = run_grid(plan);
  plan.backend = [] { return guarded_backend(); };
  const GridResult device = run_grid(plan);
  expect_same_bits(host, device);
  EXPECT_EQ(host.tied_copies, device.tied_copies);
  if (plan.world() > 1) {
    testing::ChannelHubs hubs;
    plan.backend = [&] { return hubs.backend(); };
    expect_same_bits(host, run_grid(plan));
  }
  EXPECT_NE(host.steps.front().loss, host.steps.back().loss);
}

TEST(GuardedDeviceDeathTest, FaultsWhenTheHostReachesIn) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  GuardedDevice device;
  const DeviceMemoryPtr memory = device.allocate(64);
  auto* const first = reinterpret_cast<volatile char*>(memory->bytes().data());
  EXPECT_DEATH(*first = 1, "");
  EXPECT_DEATH(std::exit(*first), "");
  const GuardedDevice::Open open(device);
  *first = 1;
  const char value = *first;
  EXPECT_EQ(value, 1);
}

TEST(GuardedDevice, WorksAsLateAsItMay) {
  GuardedDevice device;
  const DeviceMemoryPtr memory = device.allocate(sizeof(int));
  int value = 1, result = 0;
  DeviceQueue& queue = device.compute();
  queue.copy_in(memory->bytes().data(), &value, sizeof value);
  queue.copy_out(&result, memory->bytes().data(), sizeof value);
  const DeviceEventPtr event = queue.record();
  value = 2;
  EXPECT_FALSE(event->reached());
  EXPECT_EQ(result, 0);
  EXPECT_TRUE(event->reached());
  EXPECT_EQ(result, 2) << "copies are made when they must";
  EXPECT_ANY_THROW(queue.copy_in(&result, &value, sizeof value)) << "not memory of the device";
  float host = 0;
  auto backend = guarded_backend();
  EXPECT_ANY_THROW(backend.kernels->fill_zero(&host, sizeof host)) << "kernels do not reach host memory";
}

TEST(DeviceMemory, OneRank) {
  for (const auto architecture : {Architecture::kLlama, Architecture::kGpt2, Architecture::kQwen3})
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      GridPlan plan;
      plan.model = testing::tiny_model(architecture);
      plan.dtype = dtype;
      plan.activation = ActivationPolicy::kSelective;
      plan.last_stage_keeps = false;
      expect_same_on_device(plan);
    }
}

TEST(DeviceMemory, StagesAndReplicas) {
  for (int zero = 0; zero <= 3; ++zero) {
    GridPlan plan;
    plan.stages = plan.replicas = 2;
    plan.micro_batches = 8;
    plan.zero_stage = zero;
    plan.dtype = zero % 2 ? DType::kBF16 : DType::kF32;
    expect_same_on_device(plan);
  }
}

TEST(DeviceMemory, FoldsAndShardedGradients) {
  GridPlan plan;
  plan.stages = plan.replicas = 2;
  plan.micro_batches = 8;
  plan.reproducible_group = 4;
  expect_same_on_device(plan);
  plan.zero_stage = 2;
  plan.shard_gradients = true;
  expect_same_on_device(plan);
  plan.reproducible_group = 0;
  plan.passes = {};
  expect_same_on_device(plan);
}

TEST(DeviceMemory, TensorParallel) {
  for (const bool sequence : {false, true})
    for (const auto architecture : {Architecture::kLlama, Architecture::kGpt2}) {
      GridPlan plan;
      plan.model = testing::tiny_model(architecture);
      plan.tensor_ranks = plan.stages = 2;
      plan.sequence_parallel = sequence;
      plan.dtype = sequence ? DType::kBF16 : DType::kF32;
      plan.steps = 2;
      expect_same_on_device(plan);
    }
}

// The devices that a run has used.
std::vector<std::shared_ptr<GuardedDevice>> devices_after(GridPlan plan) {
  std::vector<std::shared_ptr<GuardedDevice>> devices;
  std::mutex mutex;
  plan.backend = [&] {
    const std::lock_guard lock(mutex);
    return guarded_backend(devices.emplace_back(std::make_shared<GuardedDevice>()));
  };
  run_grid(plan);
  return devices;
}

TEST(DeviceMemory, PinnedMemoryStopsGrowing) {
  const auto allocations_after = [](int steps) {
    GridPlan plan;
    plan.replicas = 2;
    plan.steps = steps;
    int64_t most = 0;
    for (const auto& device : devices_after(plan)) most = std::max(most, device->pinned_allocations());
    return most;
  };
  const int64_t few = allocations_after(2);
  EXPECT_GT(few, 0);
  EXPECT_LE(allocations_after(12), 2 * few);
}

// A task of a layer is in the queue while the one before it is still under way, and what that one left may
// be sent before it is done.
TEST(DeviceMemory, TasksStartBehindThoseUnderWay) {
  const auto waits = [](const GridPlan& plan) {
    std::vector<int64_t> counts;
    for (const auto& device : devices_after(plan)) counts.push_back(device->waits_with_more_behind());
    return counts;
  };
  GridPlan plan;
  plan.steps = 2;
  plan.passes = {};
  // Of a micro-batch's forwards and backwards all but the first and the head's, which the host waits for.
  const int64_t layers = plan.model.num_layers + 2, micro_batches = plan.micro_batches;
  EXPECT_GE(waits(plan).front(), plan.steps * micro_batches * 2 * (layers - 2));
  plan.stages = 2;
  for (const int64_t count : waits(plan)) EXPECT_GT(count, 0);
  plan.stages = 1;
  plan.tensor_ranks = 2;
  for (const int64_t count : waits(plan)) EXPECT_EQ(count, 0) << "these ranks meet inside layers";
}

// The kernels of devices, simulated, in whole training steps: near the host's, and with the same bits in one
// stage as in two.
void expect_device_kernels_train(GridPlan plan) {
  SCOPED_TRACE(describe(plan));
  plan.model.num_layers = 2;
  plan.stages = 2;
  plan.steps = 2;
  const GridResult host = run_grid(plan);
  plan.backend = [] {
    return guarded_backend(std::make_shared<GuardedDevice>(), [] { return make_simt_kernels(); });
  };
  const GridResult device = run_grid(plan);
  const double tolerance = plan.dtype == DType::kF32 ? 1e-5 : 1e-2;
  for (size_t s = 0; s < host.steps.size(); ++s) {
    EXPECT_EQ(device.steps[s].valid_tokens, host.steps[s].valid_tokens);
    EXPECT_NEAR(device.steps[s].loss, host.steps[s].loss, tolerance * host.steps[s].loss);
    EXPECT_NEAR(device.steps[s].gradient_norm, host.steps[s].gradient_norm,
                10 * tolerance * host.steps[s].gradient_norm);
  }
  plan.stages = 1;
  expect_same_bits(device, run_grid(plan));
}

TEST(DeviceMemory, KernelsOfDevicesTrain) {
  if (trainer::testing::kThinned) GTEST_SKIP() << "AddressSanitizer goes without it: it takes long";
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    GridPlan plan;
    plan.replicas = 2;
    plan.dtype = dtype;
    expect_device_kernels_train(plan);
  }
}

TEST(DeviceMemory, KernelsOfDevicesTrainTensorParallel) {
  if (trainer::testing::kThinned) GTEST_SKIP() << "AddressSanitizer goes without it: it takes long";
  for (const bool sequence : {false, true}) {
    GridPlan plan;
    plan.model = testing::tiny_model(sequence ? Architecture::kQwen3 : Architecture::kGpt2, sequence);
    plan.tensor_ranks = 2;
    plan.sequence_parallel = sequence;
    plan.dtype = sequence ? DType::kBF16 : DType::kF32;
    expect_device_kernels_train(plan);
  }
}

// Weights from elsewhere, evaluation, a checkpoint and its restoration.
TEST(DeviceMemory, StateGoesInAndOut) {
  const auto run = [](RankBackend backend, const std::filesystem::path& folder) {
    GridPlan plan;
    const Config config = testing::grid_config(plan);
    const auto world = make_in_process_group(1);
    TrainingData data;
    data.model = plan.model;
    data.train = testing::grid_data(plan);
    data.valid = std::make_shared<testing::InventedSource>(12, plan.model.vocabulary_size, 21);
    TrainingRank rank(config, plan.model, std::move(backend), *world[0], data.train, data.valid);
    rank.allocate();
    Json shape = model_config_to_hugging_face(plan.model);
    rank.initialize_from(SyntheticWeights(shape));
    rank.run(1, 2, nullptr);
    std::vector<double> numbers = {rank.evaluate(0).loss_sum};
    TrainingState state(config, data, rank, *world[0]);
    for (int64_t step : {1, 2}) state.complete(step, rank.take_result(step));
    state.save(folder);
    rank.run(3, 1, nullptr);
    numbers.push_back(rank.take_result(3).loss);
    state.restore_newest(folder);
    numbers.push_back(rank.evaluate(0).loss_sum);
    rank.run(3, 1, nullptr);
    numbers.push_back(rank.take_result(3).loss);
    return numbers;
  };
  const TestFolder host, device;
  const auto expected = run(make_host_kernels(1), host / "checkpoints");
  EXPECT_EQ(expected[0], expected[2]);
  EXPECT_EQ(expected[1], expected[3]);
  EXPECT_EQ(run(guarded_backend(), device / "checkpoints"), expected);
}

TEST(DeviceMemory, MatrixProductsAreTimedOnTheDevice) {
  const auto backend = guarded_backend();
  const GemmShape shape{16, 16, 16};
  EXPECT_GT(measure_gemm_rate(*backend.kernels, DType::kF32, std::span(&shape, 1), 0.001, *backend.device),
            0);
}

TEST(HostDevice, CopiesNothingBesides) {
  DeviceQueue& queue = host_device().compute();
  int value = 1;
  const auto same = [&](auto values) { EXPECT_EQ(values.data(), &value); };
  read_on_host(queue, &value, 1, same);
  write_on_host(queue, &value, 1, same);
  change_on_host(queue, &value, 1, same);
}

}  // namespace
}  // namespace trainer
