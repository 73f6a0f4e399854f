#include "cuda/cublaslt_library.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>

namespace trainer::cuda {
namespace {

bool is_loaded() {
  std::ifstream file("/proc/self/maps");
  const std::string maps{std::istreambuf_iterator<char>(file), {}};
  return maps.find("libcublasLt") != std::string::npos;
}

TEST(CublasLtLibrary, IsLoadedWhenItIsUsed) {
  EXPECT_FALSE(is_loaded());
  EXPECT_NE(cublas_lt().matmul, nullptr);
  EXPECT_TRUE(is_loaded());
}

}  // namespace
}  // namespace trainer::cuda
