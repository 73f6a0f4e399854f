// What cuDNN does not serve goes to the other attention; where there is a device, the two agree.
#include "cuda/cudnn_attention.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>

#include "base/philox.h"
#include "ops/element.h"
#include "support/attention_shape.h"

namespace trainer::cuda {
namespace {

class CountingAttention final : public Attention {
 public:
  explicit CountingAttention(int& calls) : calls_(calls) {}
  std::string name() const override { return "counting"; }
  size_t workspace_bytes(const WorkspaceShape&) const override { return 12; }
  void forward(Ref, float*, ConstRef, ConstRef, ConstRef, const AttentionShape&, const int32_t*,
               std::span<std::byte>, Stream) override {
    ++calls_;
  }
  void backward(Ref, float*, float*, ConstRef, ConstRef, const float*, ConstRef, ConstRef, ConstRef,
                const AttentionShape&, const int32_t*, std::span<std::byte>, Stream) override {
    ++calls_;
  }

 private:
  int& calls_;
};

bool has_device() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

// Nothing is read: the other attention only counts.
TEST(CudnnAttention, LeavesTheRestToTheOther) {
  alignas(16) static std::byte memory[64];
  const auto called = [](const AttentionShape& s, DType type, const int32_t* documents, size_t skipped) {
    int calls = 0;
    const auto attention = make_cudnn_attention(std::make_unique<CountingAttention>(calls));
    const Ref data{memory + skipped, type};
    float number = 0;
    attention->forward(data, &number, data, data, data, s, documents, {}, nullptr);
    attention->backward(data, &number, &number, data, data, &number, data, data, data, s, documents, {},
                        nullptr);
    return calls;
  };
  const AttentionShape plain = whole_sequences(2, 128, 4, 2, 64);
  AttentionShape segment = plain;
  segment.query_length = 64;
  segment.query_offset = 64;
  const int32_t documents = 0;
  EXPECT_EQ(called(plain, DType::kF32, nullptr, 0), 2) << "fp32";
  EXPECT_EQ(called(plain, DType::kBF16, &documents, 0), 2) << "documents";
  EXPECT_EQ(called(segment, DType::kBF16, nullptr, 0), 2) << "a segment";
  EXPECT_EQ(called(whole_sequences(2, 128, 4, 2, 12), DType::kBF16, nullptr, 0), 2) << "heads of 12";
  EXPECT_EQ(called(plain, DType::kBF16, nullptr, 2), 2) << "odd addresses";
  if (has_device()) return;
  EXPECT_EQ(called(plain, DType::kBF16, nullptr, 0), 2) << "no device";
}

TEST(CudnnAttention, AsksForNoLessWorkspaceThanTheOther) {
  int calls = 0;
  const auto attention = make_cudnn_attention(std::make_unique<CountingAttention>(calls));
  const WorkspaceShape fp32{.tokens = 64, .sequence = 64, .heads = 2, .head_dim = 8};
  WorkspaceShape bf16 = fp32;
  bf16.dtype = DType::kBF16;
  EXPECT_EQ(attention->workspace_bytes(fp32), 12u);
  EXPECT_GT(attention->workspace_bytes(bf16), 12u);
}

// Memory that host and device reach.
class Managed {
 public:
  explicit Managed(DType type, int64_t count, uint64_t seed = 0) : type_(type), count_(count) {
    const size_t bytes = static_cast<size_t>(count) * size_of(type);
    check(cudaMallocManaged(&data_, std::max<size_t>(bytes, 256)), "cudaMallocManaged");
    std::memset(data_, 0, bytes);
    const Philox random(seed);
    for (int64_t i = 0; seed > 0 && i < count; ++i)
      store_element({data_, type}, i, random.normal(static_cast<uint64_t>(i)));
  }
  ~Managed() { cudaFree(data_); }
  Managed(const Managed&) = delete;
  Managed& operator=(const Managed&) = delete;

  Ref ref() const { return {data_, type_}; }
  float* f32() const { return static_cast<float*>(data_); }
  std::vector<double> values() const {
    std::vector<double> values;
    for (int64_t i = 0; i < count_; ++i) values.push_back(load_element({data_, type_}, i));
    return values;
  }

 private:
  void* data_ = nullptr;
  DType type_;
  int64_t count_;
};

using Results = std::map<std::string, std::vector<double>>;

Results run(Attention& attention, const AttentionShape& s) {
  const int64_t tokens = s.batch * s.query_length, queries = tokens * s.heads * s.head_dim,
                keys = tokens * s.kv_heads * s.head_dim;
  const Managed q(DType::kBF16, queries, 1), k(DType::kBF16, keys, 2), v(DType::kBF16, keys, 3),
      dout(DType::kBF16, queries, 4), out(DType::kBF16, queries), dq(DType::kBF16, queries),
      log_sum_exp(DType::kF32, tokens * s.heads), dk(DType::kF32, keys, 5), dv(DType::kF32, keys, 6);
  const size_t bytes = attention.workspace_bytes({.dtype = DType::kBF16,
                                                  .tokens = tokens,
                                                  .sequence = s.query_length,
                                                  .heads = s.heads,
                                                  .head_dim = s.head_dim});
  const Managed workspace(DType::kF32, static_cast<int64_t>(bytes / sizeof(float)) + 1);
  const std::span<std::byte> space(static_cast<std::byte*>(workspace.ref().data), bytes);
  attention.forward(out.ref(), log_sum_exp.f32(), q.ref(), k.ref(), v.ref(), s, nullptr, space, nullptr);
  attention.backward(dq.ref(), dk.f32(), dv.f32(), dout.ref(), out.ref(), log_sum_exp.f32(), q.ref(), k.ref(),
                     v.ref(), s, nullptr, space, nullptr);
  wait(nullptr);
  return {{"out", out.values()},
          {"log_sum_exp", log_sum_exp.values()},
          {"dq", dq.values()},
          {"dk", dk.values()},
          {"dv", dv.values()}};
}

TEST(CudnnAttention, AgreesWithBlocksOnADevice) {
  if (!has_device()) GTEST_SKIP() << "there is no device";
  for (const AttentionShape& s : {whole_sequences(2, 256, 4, 4, 64), whole_sequences(3, 200, 8, 2, 128),
                                  whole_sequences(1, 7, 2, 1, 32), whole_sequences(1, 4096, 40, 8, 64)}) {
    SCOPED_TRACE(fmt::format("{} x {}, {} heads of {}", s.batch, s.query_length, s.heads, s.head_dim));
    const auto blocks = make_block_attention();
    const auto cudnn = make_cudnn_attention(make_block_attention());
    const Results expected = run(*blocks, s), actual = run(*cudnn, s), again = run(*cudnn, s);
    for (const auto& [name, values] : expected) {
      EXPECT_EQ(actual.at(name), again.at(name)) << name << " has the same bits every time";
      double largest = 0, worst = 0;
      for (size_t i = 0; i < values.size(); ++i) {
        largest = std::max(largest, std::abs(values[i]));
        worst = std::max(worst, std::abs(values[i] - actual.at(name)[i]));
      }
      EXPECT_LE(worst, 0x1p-6 * largest) << name;
    }
  }
}

}  // namespace
}  // namespace trainer::cuda
