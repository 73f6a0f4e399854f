// The graphs that cuDNN is given: well formed, and known to its kernels for devices that need not be here.
#include <dlfcn.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "cuda/cudnn_attention.h"
#include "cuda/cudnn_attention_graphs.h"
#include "cuda/cudnn_pieces.h"

namespace trainer::cuda {
namespace {

// q, k and v side by side, as a layer's projection leaves them.
CudnnAttentionShape graph_shape(int64_t batch, int64_t length, int64_t heads, int64_t kv_heads,
                                int64_t head_dim) {
  const int64_t token = (heads + 2 * kv_heads) * head_dim, out = heads * head_dim,
                gradient = kv_heads * head_dim;
  return {.batch = batch,
          .length = length,
          .heads = heads,
          .kv_heads = kv_heads,
          .head_dim = head_dim,
          .q_token = token,
          .q_row = length * token,
          .k_token = token,
          .k_row = length * token,
          .v_token = token,
          .v_row = length * token,
          .out_token = out,
          .out_row = length * out,
          .gradient_token = gradient,
          .gradient_row = length * gradient,
          .statistic_row = heads * length};
}

const std::vector<CudnnAttentionShape>& shapes() {
  static const std::vector<CudnnAttentionShape> all = {
      graph_shape(2, 128, 4, 4, 64), graph_shape(1, 2048, 8, 2, 128), graph_shape(3, 100, 6, 2, 80),
      graph_shape(1, 7, 3, 1, 8), graph_shape(8, 1024, 12, 12, 64)};
  return all;
}

std::string describe(const CudnnAttentionShape& s) {
  return fmt::format("{} x {}, {} heads over {} of {}", s.batch, s.length, s.heads, s.kv_heads, s.head_dim);
}

// What cuDNN asks to know of a device.
std::string device(int version, int multiprocessors, int shared_bytes) {
  return fmt::format(
      R"({{"maxGridSize": [2147483647, 65535, 65535], "maxBlockSize": [1024, 1024, 64], "regsPerBlock": 65536,
          "multiProcessorCount": {}, "warpSize": 32, "maxSharedMemoryPerBlock": 49152,
          "maxSharedMemoryPerBlockOptin": {}, "reservedSharedMemoryPerBlock": 1024, "maxRegistersPerSM": 65536,
          "maxCtasPerSM": 32, "maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048, "pciDeviceId": 0,
          "isTccDriver": 0, "supportCoopLaunch": 1, "totalGlobalMem": 80000000000, "smClockRateKHz": 1500000,
          "memClockRateKHz": 1500000, "l2CacheSize": 41943040, "cudaDeviceId": 0, "deviceVer": {},
          "driverVer": 13000, "deviceName": "described"}})",
      multiprocessors, shared_bytes, version);
}

// A quarter of the shape's heads, of two rows of a larger batch.
CudnnAttentionShape part_of(CudnnAttentionShape s) {
  s.batch = 2;
  s.heads /= 4;
  s.kv_heads /= 4;
  return s;
}

TEST(CudnnGraphs, AreWellFormed) {
  for (const CudnnAttentionShape& s : shapes()) {
    SCOPED_TRACE(describe(s));
    EXPECT_NO_THROW(attention_forward_graph(s).finish());
    EXPECT_NO_THROW(attention_backward_graph(s).finish());
  }
}

TEST(CudnnGraphs, AWrongOneIsRefused) {
  CudnnAttentionShape s = shapes().front();
  s.kv_heads = 3;  // which 4 heads cannot share
  EXPECT_ANY_THROW(attention_forward_graph(s).finish());
}

TEST(CudnnGraphs, HaveKernels) {
  if (!dlopen("libcuda.so.1", RTLD_LAZY))
    GTEST_SKIP() << "cuDNN looks for kernels only where a driver's library is";
  for (const std::string& json : {device(800, 108, 166912), device(900, 132, 232448)}) {
    const CudnnDescriptor device = cudnn_device_from(json);
    std::vector<CudnnAttentionShape> all = shapes();
    all.push_back(part_of(graph_shape(4, 256, 16, 8, 64)));
    for (const CudnnAttentionShape& s : all) {
      SCOPED_TRACE(describe(s));
      const auto workspace = make_cudnn_attention(make_block_attention());
      const auto granted = static_cast<int64_t>(workspace->workspace_bytes({.dtype = DType::kBF16,
                                                                            .tokens = s.batch * s.length,
                                                                            .sequence = s.length,
                                                                            .heads = s.heads,
                                                                            .head_dim = s.head_dim}));
      const int64_t own = s.batch * s.length * (2 * s.kv_heads * s.head_dim * 2 + s.heads * 4) + 4 * 256;
      for (const bool backward : {false, true}) {
        SCOPED_TRACE(backward ? "backward" : "forward");
        std::string why;
        const auto engines = cudnn_engines(
            (backward ? attention_backward_graph(s) : attention_forward_graph(s)).finish(), device, why);
        ASSERT_FALSE(engines.empty()) << why;
        EXPECT_LE(engines.front().int64(CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE), granted - (backward ? own : 0));
      }
    }
  }
}

TEST(CudnnPieces, DivideTheWholeAndFit) {
  for (const int64_t batch : {1, 6, 7})
    for (const int64_t length : {1, 128, 129, 2048, 16384})
      for (const int64_t kv_heads : {1, 3, 8})
        for (const int64_t group : {1, 4})
          for (const size_t most : {size_t{1} << 10, size_t{1} << 20, size_t{64} << 20, kMostSlopeBytes}) {
            const BackwardPiece piece = backward_piece(batch, length, kv_heads * group, kv_heads, most);
            const size_t of_head = slope_bytes(length) * static_cast<size_t>(group);
            if (of_head > most) {
              EXPECT_EQ(piece.batch, 0);
              continue;
            }
            ASSERT_GT(piece.batch, 0);
            ASSERT_GT(piece.kv_heads, 0);
            EXPECT_EQ(batch % piece.batch, 0);
            EXPECT_EQ(kv_heads % piece.kv_heads, 0);
            EXPECT_LE(of_head * static_cast<size_t>(piece.batch * piece.kv_heads), most);
            EXPECT_TRUE(piece.batch == 1 || piece.kv_heads == kv_heads);
          }
}

}  // namespace
}  // namespace trainer::cuda
