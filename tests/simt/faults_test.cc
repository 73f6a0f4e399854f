// Every fault that the SIMT layer promises to find, shown by a small faulty kernel, in turn and in random
// orders, with both switches between fibers; beside each the kernel without the fault.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "base/error.h"
#include "cuda/device.h"

namespace trainer::simt {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::vector<SimtOptions> orders() {
  std::vector<SimtOptions> all = {{}, {.seed = 0, .portable_switch = true}};
  for (uint64_t seed = 1; seed <= 6; ++seed) all.push_back({.seed = seed, .portable_switch = seed == 1});
  return all;
}

// What `run` says is wrong, in every order; then that the machine can be used again.
void expect_fault(const std::function<void(Stream)>& run, const ::testing::Matcher<std::string>& message) {
  for (const SimtOptions& order : orders()) {
    Machine machine(order);
    for (int twice = 0; twice < 2; ++twice) {
      try {
        run(&machine);
        ADD_FAILURE() << "no fault was found in the order of seed " << order.seed;
      } catch (const RunError& error) {
        EXPECT_THAT(error.what(), message) << "seed " << order.seed;
      }
    }
    int visits = 0;
    launch([](int* count) { ++*count; }, 2, 40, 0, &machine, &visits);
    EXPECT_EQ(visits, 80);
  }
}
void expect_none(const std::function<void(Stream)>& run) {
  for (const SimtOptions& order : orders()) {
    Machine machine(order);
    EXPECT_NO_THROW(run(&machine)) << "seed " << order.seed;
  }
}

__global__ void past_the_end(int size) {
  SharedArena arena;
  const SharedSpan<float> values = arena.take<float>(size);
  values[static_cast<int>(threadIdx.y * 8 + threadIdx.x)] = 1.0f;
}
TEST(SimtFaults, SharedAccessOutOfBounds) {
  const auto run = [](int size) {
    return [size](Stream stream) {
      launch(past_the_end, dim3(2, 2), dim3(8, 4), shared_bytes<float>(64), stream, size);
    };
  };
  expect_none(run(32));
  expect_fault(run(31), AllOf(HasSubstr("faults_test.cc"), HasSubstr("block ("), HasSubstr("thread (7,3,0)"),
                              HasSubstr("element 31 of a span of 31 elements")));
  expect_fault(run(65), HasSubstr("takes 260 bytes at offset 0 of shared memory, which has 256 bytes"));
}

__global__ void misaligned(int first) {
  SharedArena arena;
  const SharedSpan<float> values = arena.take<float>(12);
  (values + first).as<float4>()[0] = make_float4(1, 2, 3, 4);
}
TEST(SimtFaults, MisalignedVector) {
  const auto run = [](int first) {
    return [first](Stream stream) { launch(misaligned, 1, 1, shared_bytes<float>(12), stream, first); };
  };
  expect_none(run(4));
  expect_fault(run(5), HasSubstr("offset 20 of shared memory as a type that is aligned to 16 bytes"));
  expect_fault(run(12), HasSubstr("element 0 of a span of 0 elements"));
}

__global__ void reads_element(int written, int read, float* out) {
  SharedArena arena;
  const SharedSpan<float> values = arena.take<float>(64);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < written) values[thread] = 1.0f;
  __syncthreads();
  if (thread == 0) *out = values[read];
}
TEST(SimtFaults, UninitialisedSharedRead) {
  float out = 0;
  const auto run = [&](int written) {
    return [&out, written](Stream stream) {
      launch(reads_element, 3, 64, shared_bytes<float>(64), stream, written, 40, &out);
    };
  };
  expect_none(run(41));
  expect_fault(run(40), AllOf(HasSubstr("reads offset 160 of shared memory, which nothing wrote"),
                              HasSubstr("thread (0,0,0)")));
}

// A block finds nothing of what the one before it wrote.
__global__ void writes_in_the_first_block(float* out) {
  SharedArena arena;
  const SharedSpan<float> values = arena.take<float>(1);
  if (blockIdx.x == 0) values[0] = 1.0f;
  *out = values[0];
}
TEST(SimtFaults, SharedMemoryOfAnotherBlock) {
  float out = 0;
  expect_none([&](Stream stream) { launch(writes_in_the_first_block, 1, 1, 16, stream, &out); });
  expect_fault([&](Stream stream) { launch(writes_in_the_first_block, 2, 1, 16, stream, &out); },
               AllOf(HasSubstr("block (1,0,0)"), HasSubstr("which nothing wrote")));
}

// Sums over the block by halves; each barrier can be left out.
enum class Left { kNone, kFirst, kInLoop, kBeforeReuse };
__global__ void sum_by_halves(Left left, float* out) {
  SharedArena arena;
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const SharedSpan<float> values = arena.take<float>(threads);
  for (int round = 0; round < 2; ++round) {
    values[thread] = static_cast<float>(thread + round);
    if (left != Left::kFirst) __syncthreads();
    for (int half = threads / 2; half > 0; half /= 2) {
      if (thread < half) values[thread] += values[thread + half];
      if (left != Left::kInLoop) __syncthreads();
    }
    out[threads * round + thread] = values[0];
    if (left != Left::kBeforeReuse) __syncthreads();
  }
}
TEST(SimtFaults, MissingBarrier) {
  std::vector<float> out(256);
  const auto run = [&](Left left) {
    return [&out, left](Stream stream) {
      launch(sum_by_halves, 1, 128, shared_bytes<float>(128), stream, left, out.data());
    };
  };
  expect_none(run(Left::kNone));
  EXPECT_EQ(out[0], 127.0f * 64);
  EXPECT_EQ(out[255], 127.0f * 64 + 128);
  using ::testing::AnyOf;
  const auto race = HasSubstr("no barrier between them");
  expect_fault(run(Left::kFirst), AnyOf(race, HasSubstr("which nothing wrote")));
  expect_fault(run(Left::kInLoop), race);
  expect_fault(run(Left::kBeforeReuse), race);
}

// Neighbours exchange through shared memory; a warp needs __syncwarp for it, all of it or a mask that holds
// both.
__global__ void neighbours(unsigned mask_of_lower, unsigned mask_of_upper, int* out) {
  SharedArena arena;
  const SharedSpan<int> values = arena.take<int>(32);
  const int lane = static_cast<int>(threadIdx.x);
  values[lane] = lane;
  const unsigned mask = lane < 16 ? mask_of_lower : mask_of_upper;
  if (mask != 0) __syncwarp(mask);
  out[lane] = values[lane ^ 1];
}
TEST(SimtFaults, MissingSyncOfAWarp) {
  std::vector<int> out(32);
  const auto run = [&](unsigned lower, unsigned upper) {
    return [&out, lower, upper](Stream stream) {
      launch(neighbours, 1, 32, shared_bytes<int>(32), stream, lower, upper, out.data());
    };
  };
  expect_none(run(0xFFFFFFFF, 0xFFFFFFFF));
  EXPECT_EQ(out[6], 7);
  expect_none(run(0x0000FFFF, 0xFFFF0000));
  using ::testing::AnyOf;
  const auto race = AnyOf(HasSubstr("no barrier between them"), HasSubstr("which nothing wrote"));
  expect_fault(run(0, 0), race);
  expect_fault(run(0x0000FFFF, 0), race);
}

__global__ void two_barriers() {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}
TEST(SimtFaults, DifferentBarriers) {
  expect_fault([](Stream stream) { launch(two_barriers, 1, 64, 0, stream); },
               AllOf(HasSubstr("waits at the barrier of faults_test.cc:"), HasSubstr("wait at that of")));
}

__global__ void ends_early(unsigned last) {
  if (threadIdx.x > last) return;
  __syncthreads();
}
TEST(SimtFaults, ThreadEndsWhileOthersWait) {
  expect_none([](Stream stream) { launch(ends_early, 1, 64, 0, stream, 63u); });
  using ::testing::AnyOf;
  expect_fault([](Stream stream) { launch(ends_early, 1, 64, 0, stream, 40u); },
               AnyOf(HasSubstr("threads wait at the barrier"), HasSubstr("threads have ended")));
}

__global__ void barrier_and_shuffle() {
  if (threadIdx.x == 5) {
    __syncthreads();
  } else {
    __syncwarp();
  }
}
TEST(SimtFaults, WaitingForEver) {
  expect_fault([](Stream stream) { launch(barrier_and_shuffle, 1, 32, 0, stream); },
               AllOf(HasSubstr("waits for ever"), HasSubstr("thread (5,0,0)"), HasSubstr("at the barrier of"),
                     HasSubstr("for the lanes 0xffffffff")));
}

__global__ void shuffles(unsigned mask, int source, unsigned ended) {
  if (threadIdx.x >= ended) return;
  __shfl_sync(mask, 1, source);
}
TEST(SimtFaults, MasksThatDoNotFit) {
  const auto run = [](int threads, unsigned mask, int source, unsigned ended) {
    return [=](Stream stream) { launch(shuffles, 1, threads, 0, stream, mask, source, ended); };
  };
  expect_none(run(20, 0xFFFFF, 19, 32));
  expect_fault(run(32, 0xFFFF, 0, 32), HasSubstr("is not in its own mask 0xffff"));
  expect_fault(run(20, 0xFFFFFFFF, 0, 32), HasSubstr("has lanes that the block lacks"));
  expect_none(run(32, 0xFF, 3, 8));
  expect_fault(run(32, 0xFF, 9, 8), HasSubstr("lane 9, which is not in the mask 0xff"));
  using ::testing::AnyOf;
  expect_fault(run(32, 0x1FF, 0, 8),
               AnyOf(HasSubstr("thread 8, which has ended"), HasSubstr("waits for ever")));
}

TEST(SimtFaults, LaunchThatNoDeviceRuns) {
  const auto run = [](int threads, size_t bytes) {
    return [=](Stream stream) { launch(two_barriers, 1, threads, bytes, stream); };
  };
  expect_fault(run(1025, 0), HasSubstr("no device runs"));
  expect_fault(run(0, 0), HasSubstr("no device runs"));
  expect_fault(run(32, SharedMemory::kMostBytes + 1), HasSubstr("no device runs"));
}

}  // namespace
}  // namespace trainer::simt
