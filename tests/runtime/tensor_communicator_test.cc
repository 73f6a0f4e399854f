#include "runtime/tensor_communicator.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <thread>

#include "base/philox.h"
#include "comm/in_process.h"
#include "ops/element.h"

namespace trainer {
namespace {

using Body = std::function<void(TensorCommunicator&)>;

void on_ranks(int size, const InProcessOptions& options, const Body& body) {
  auto communicators = make_in_process_group(size, options);
  std::vector<std::jthread> threads;
  for (auto& communicator : communicators)
    threads.emplace_back([&] {
      std::vector<std::byte> staging(static_cast<size_t>(TensorCommunicator::staging_bytes(size)) + 64);
      void* begin = staging.data();
      size_t space = staging.size();
      std::align(64, space - 64, begin, space);
      const auto kernels = make_host_kernels(1);
      TensorCommunicator group(*communicator, {static_cast<std::byte*>(begin), space}, *kernels);
      body(group);
    });
}

double value(int rank, int64_t i) {
  return std::ldexp(Philox(static_cast<uint64_t>(rank)).normal(static_cast<uint64_t>(i)),
                    static_cast<int>(i % 7));
}

std::vector<std::byte> filled(DType dtype, int rank, int64_t count) {
  std::vector<std::byte> data(static_cast<size_t>(count) * size_of(dtype));
  for (int64_t i = 0; i < count; ++i) store_element({data.data(), dtype}, i, value(rank, i));
  return data;
}

// The tree over the rank index in fp32, rounded once.
std::vector<std::byte> expected_sum(DType dtype, int size, int64_t count) {
  std::vector<std::byte> data(static_cast<size_t>(count) * size_of(dtype));
  std::vector<std::vector<std::byte>> terms;
  for (int r = 0; r < size; ++r) terms.push_back(filled(dtype, r, count));
  const std::function<float(int64_t, int, int)> tree = [&](int64_t i, int low, int high) -> float {
    if (high - low == 1)
      return static_cast<float>(load_element({terms[static_cast<size_t>(low)].data(), dtype}, i));
    int half = 1;
    while (2 * half < high - low) half *= 2;
    return tree(i, low, low + half) + tree(i, low + half, high);
  };
  for (int64_t i = 0; i < count; ++i) store_element({data.data(), dtype}, i, tree(i, 0, size));
  return data;
}

TEST(TensorCommunicator, SumsAndGathers) {
  for (const int size : {2, 3, 4})
    for (const DType dtype : {DType::kF32, DType::kBF16})
      for (const int64_t count : {1, 15, 1000, 70'001}) {
        SCOPED_TRACE(fmt::format("{} ranks, {} x {}", size, count, name_of(dtype)));
        const int64_t element = static_cast<int64_t>(size_of(dtype));
        const auto all = expected_sum(dtype, size, count), parts = expected_sum(dtype, size, count * size);
        on_ranks(size, {Delivery::kRendezvous, {}}, [&](TensorCommunicator& group) {
          auto data = filled(dtype, group.rank(), count);
          group.all_reduce({data.data(), dtype}, count);
          EXPECT_EQ(data, all) << "all_reduce";

          data = filled(dtype, group.rank(), count * size);
          group.reduce_scatter({data.data(), dtype}, count);
          const auto own = [&](const std::vector<std::byte>& from) {
            const auto begin = from.begin() + group.rank() * count * element;
            return std::vector<std::byte>(begin, begin + count * element);
          };
          EXPECT_EQ(own(data), own(parts)) << "reduce_scatter";
          group.all_gather(data.data(), static_cast<size_t>(count * element));
          EXPECT_EQ(data, parts) << "all_gather";
        });
      }
}

TEST(TensorCommunicator, DelaysChangeNothing) {
  const auto expected = expected_sum(DType::kBF16, 3, 777);
  for (uint64_t seed = 1; seed <= 20; ++seed)
    on_ranks(3, {Delivery::kEager, {seed, std::chrono::microseconds(200)}}, [&](TensorCommunicator& group) {
      for (int i = 0; i < 3; ++i) {
        auto data = filled(DType::kBF16, group.rank(), 777);
        group.all_reduce({data.data(), DType::kBF16}, 777);
        EXPECT_EQ(data, expected);
      }
    });
}

}  // namespace
}  // namespace trainer
