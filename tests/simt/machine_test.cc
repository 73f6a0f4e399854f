#include <gtest/gtest.h>

#include <set>

#include "cuda/device.h"

namespace trainer::simt {
namespace {

std::vector<SimtOptions> switches() {
  return {{}, {.seed = 3}, {.portable_switch = true}, {.seed = 3, .portable_switch = true}};
}

// The order in which threads come out of a barrier.
__global__ void record_order(std::vector<int>* order) {
  __syncthreads();
  order->push_back(static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x));
}
TEST(Simt, OrdersDependOnTheSeedAlone) {
  const auto order_of = [](SimtOptions options) {
    Machine machine(options);
    std::vector<int> order;
    launch(record_order, 7, 70, 0, &machine, &order);
    EXPECT_EQ(std::set<int>(order.begin(), order.end()).size(), 490u) << "every thread runs once";
    return order;
  };
  std::set<std::vector<int>> all;
  for (uint64_t seed = 0; seed < 5; ++seed) {
    const std::vector<int> order = order_of({.seed = seed});
    EXPECT_EQ(order, order_of({.seed = seed}));
    EXPECT_EQ(order, order_of({.seed = seed, .portable_switch = true}));
    all.insert(order);
  }
  EXPECT_EQ(all.size(), 5u);
}

struct Indices {
  unsigned thread[3], block[3], threads[3], blocks[3];
};
__global__ void record_indices(Indices* out) {
  const unsigned threads = blockDim.x * blockDim.y * blockDim.z;
  const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  __syncthreads();
  out[block * threads + thread] = {{threadIdx.x, threadIdx.y, threadIdx.z},
                                   {blockIdx.x, blockIdx.y, blockIdx.z},
                                   {blockDim.x, blockDim.y, blockDim.z},
                                   {gridDim.x, gridDim.y, gridDim.z}};
}
TEST(Simt, IndicesAreTheThreadsOwnAfterABarrier) {
  for (const SimtOptions& options : switches()) {
    Machine machine(options);
    std::vector<Indices> out(3 * 2 * 2 * 5 * 3 * 2);
    launch(record_indices, dim3(3, 2, 2), dim3(5, 3, 2), 0, &machine, out.data());
    for (unsigned i = 0; i < out.size(); ++i) {
      const unsigned thread = i % 30, block = i / 30;
      EXPECT_EQ(out[i].thread[0] + 5 * (out[i].thread[1] + 3 * out[i].thread[2]), thread);
      EXPECT_EQ(out[i].block[0] + 3 * (out[i].block[1] + 2 * out[i].block[2]), block);
      EXPECT_EQ(out[i].threads[0] * 100 + out[i].threads[1] * 10 + out[i].threads[2], 532u);
      EXPECT_EQ(out[i].blocks[0] * 100 + out[i].blocks[1] * 10 + out[i].blocks[2], 322u);
    }
  }
}

struct Shuffled {
  int broadcast, up, down, exchanged, part;
  unsigned ballot;
  int any, all;
};
__global__ void shuffle(Shuffled* out) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const unsigned whole = 0xFFFFFFFF;
  Shuffled s;
  s.broadcast = __shfl_sync(whole, lane, 5);
  s.up = __shfl_up_sync(whole, lane, 3);
  s.down = __shfl_down_sync(whole, lane, 3, 8);
  s.exchanged = __shfl_xor_sync(whole, lane, 12);
  s.part = __shfl_sync(whole, lane, 9, 8);
  s.ballot = __ballot_sync(whole, lane % 3 == 0);
  s.any = __any_sync(whole, lane == 31);
  s.all = __all_sync(whole, lane < 31);
  out[threadIdx.x] = s;
}
TEST(Simt, ShufflesAndVotes) {
  for (const SimtOptions& options : switches()) {
    Machine machine(options);
    std::vector<Shuffled> out(96);
    launch(shuffle, 1, 96, 0, &machine, out.data());
    for (int thread = 0; thread < 96; ++thread) {
      const int lane = thread % 32;
      const Shuffled& s = out[static_cast<size_t>(thread)];
      EXPECT_EQ(s.broadcast, 5);
      EXPECT_EQ(s.up, lane < 3 ? lane : lane - 3);
      EXPECT_EQ(s.down, lane % 8 + 3 < 8 ? lane + 3 : lane);
      EXPECT_EQ(s.exchanged, lane ^ 12);
      EXPECT_EQ(s.part, lane / 8 * 8 + 1);
      EXPECT_EQ(s.ballot, 0x49249249u);
      EXPECT_EQ(s.any, 1);
      EXPECT_EQ(s.all, 0);
    }
  }
}

// Three groups of lanes of one warp exchange at different times, several times in a row.
__global__ void exchange_in_groups(int* out) {
  const int lane = static_cast<int>(threadIdx.x);
  const unsigned masks[] = {0x000000FF, 0x00555500, 0xFFAAAA00};
  const int group = lane < 8 ? 0 : lane < 24 && lane % 2 == 0 ? 1 : 2;
  int value = lane;
  for (int round = 0; round <= 2 * group; ++round) {
    const int source = group == 0 ? (lane + 1) % 8 : group == 1 ? 8 + (lane - 8 + 2) % 16 : 9 + 2 * round;
    value = 100 * round + __shfl_sync(masks[group], value, source);
  }
  __syncwarp();
  out[lane] = value;
}
TEST(Simt, GroupsOfAWarpMeetByThemselves) {
  for (const SimtOptions& options : switches()) {
    Machine machine(options);
    std::vector<int> out(32);
    launch(exchange_in_groups, 1, 32, 0, &machine, out.data());
    for (int lane = 0; lane < 32; ++lane) {
      const int group = lane < 8 ? 0 : lane < 24 && lane % 2 == 0 ? 1 : 2;
      const int expected = group == 0   ? (lane + 1) % 8
                           : group == 1 ? 8 + (lane - 8 + 6) % 16 + 100 + 200
                                        : 9 + 100 + 200 + 300 + 400;
      EXPECT_EQ(out[static_cast<size_t>(lane)], expected) << "lane " << lane;
    }
  }
}

__global__ void block_sum(const float* x, int count, float* out) {
  SharedArena arena;
  const SharedSpan<float> sums = arena.take<float>(32);
  const int thread = static_cast<int>(threadIdx.x), warps = static_cast<int>(blockDim.x) / 32;
  float sum = 0;
  for (int i = static_cast<int>(blockIdx.x) * count + thread; i < (static_cast<int>(blockIdx.x) + 1) * count;
       i += static_cast<int>(blockDim.x)) {
    sum += x[i];
  }
  sum = warp_sum(sum);
  if (thread % 32 == 0) sums[thread / 32] = sum;
  __syncthreads();
  if (thread < 32) {
    sum = warp_sum(thread < warps ? static_cast<float>(sums[thread]) : 0.0f);
    if (thread == 0) out[blockIdx.x] = sum;
  }
}
TEST(Simt, SameBitsInEveryOrder) {
  std::vector<float> x(5 * 1000);
  for (size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i));
  std::vector<float> first(5), again(5);
  launch(block_sum, 5, 256, shared_bytes<float>(32), nullptr, x.data(), 1000, first.data());
  for (int block = 0; block < 5; ++block) {
    double sum = 0;
    for (int i = 0; i < 1000; ++i) sum += x[static_cast<size_t>(1000 * block + i)];
    EXPECT_NEAR(first[static_cast<size_t>(block)], sum, 1e-4);
  }
  for (uint64_t seed = 1; seed < 9; ++seed) {
    Machine machine({.seed = seed, .portable_switch = seed % 2 == 0});
    launch(block_sum, 5, 256, shared_bytes<float>(32), &machine, x.data(), 1000, again.data());
    EXPECT_EQ(first, again) << seed;
  }
}

struct Counted {
  explicit Counted(int* alive) : alive(alive) { ++*alive; }
  ~Counted() { --*alive; }
  int* alive;
};
__global__ void throws_in_one_thread(int* alive) {
  const Counted counted(alive);
  if (threadIdx.x == 40) throw std::runtime_error("thrown by a thread");
  __syncthreads();
}
TEST(Simt, AnExceptionLeavesTheKernelAndUnwindsAllThreads) {
  for (const SimtOptions& options : switches()) {
    Machine machine(options);
    int alive = 0;
    try {
      launch(throws_in_one_thread, 2, 64, 0, &machine, &alive);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const std::exception& error) {
      EXPECT_NE(std::string(error.what()).find("thread (40,0,0): thrown by a thread"), std::string::npos)
          << error.what();
    }
    EXPECT_EQ(alive, 0);
  }
}

// Values that a thread keeps over a switch, of every kind of register.
__global__ void keep_values(double* out) {
  const int thread = static_cast<int>(threadIdx.x);
  double a = thread, b = 2.0 * thread;
  int64_t c = thread, d = 3 * thread;
  for (int round = 0; round < 10; ++round) {
    __syncthreads();
    a += b, c += d;
    __syncwarp();
    b = b * 0.5 + a, d = d / 2 + c;
  }
  out[thread] = a + b + static_cast<double>(c + d);
}
TEST(Simt, ThreadsKeepTheirValues) {
  std::vector<double> one(64), many(64);
  for (const SimtOptions& options : switches()) {
    Machine machine(options);
    launch(keep_values, 1, 64, 0, &machine, many.data());
    if (one[1] == 0) one = many;
    EXPECT_EQ(one, many);
  }
  double a = 63, b = 126;
  int64_t c = 63, d = 189;
  for (int round = 0; round < 10; ++round) a += b, c += d, b = b * 0.5 + a, d = d / 2 + c;
  EXPECT_EQ(one[63], a + b + static_cast<double>(c + d));
}

}  // namespace
}  // namespace trainer::simt
