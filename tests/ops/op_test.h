// What every test of operations shares: the backends and element types it runs over, the tolerances, and a
// granted workspace of exactly the size the backend asked for.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/label.h"
#include "cpu/host_kernels.h"
#include "cpu/isa.h"
#include "cpu/tile_table.h"
#include "cpu/vector_table.h"
#include "ops/array.h"
#include "ops/kernel_set.h"
#include "simt/simt_kernels.h"
#include "support/thinning.h"

namespace trainer {

struct Backend {
  std::string name;
  std::function<std::unique_ptr<KernelSet>(int threads)> make;
  std::vector<DType> dtypes = {DType::kF32, DType::kBF16};
};

// The host backend at every instruction level that this processor has, each with the types for which it has
// code of its own.
inline std::vector<Backend> backends() {
  std::vector<Backend> all;
  for (const Isa isa : available_isas()) {
    Backend backend{name_of(isa),
                    [isa](int threads) { return std::make_unique<HostKernels>(threads, isa); }};
    const Isa below = isa == Isa::kPlain ? isa : static_cast<Isa>(static_cast<int>(isa) - 1);
    if (isa != below && &tile_table(isa) == &tile_table(below) && &vector_table(isa) == &vector_table(below))
      backend.dtypes = {DType::kBF16};
    all.push_back(std::move(backend));
  }
  return all;
}

// The device kernels on the host. What would be another number of threads is another order of theirs.
inline Backend simt_backend() {
  return {"simt", [](int threads) {
            const auto order = static_cast<uint64_t>(threads - 1);
            return make_simt_kernels({.seed = order, .portable_switch = false});
          }};
}
// AddressSanitizer goes without: the SIMT layer's own tests run under it.
inline std::vector<Backend> simulated_backends() {
  if (trainer::testing::kThinned) return {};
  return {simt_backend()};
}

struct OpCase {
  Backend backend;
  DType dtype;
};

inline std::vector<OpCase> op_cases(const std::vector<Backend>& backends) {
  std::vector<OpCase> all;
  for (const Backend& backend : backends) {
    for (const DType dtype : backend.dtypes) all.push_back({backend, dtype});
  }
  return all;
}

inline std::string op_case_name(const ::testing::TestParamInfo<OpCase>& info) {
  return info.param.backend.name + "_" + name_of(info.param.dtype);
}

inline void PrintTo(const OpCase& c, std::ostream* out) { *out << c.backend.name << " " << name_of(c.dtype); }

// Largest relative deviation from the reference. A result in bf16 may be one unit in the last place off
// (2^-7). Instructions that multiply bf16 take operands in bf16: there the weights and slopes of attention
// are rounded on their way.
struct Tolerance {
  double f32, bf16, tensor_core = bf16, host_bf16 = tensor_core;
  double of(DType dtype) const { return dtype == DType::kF32 ? f32 : bf16; }
};
inline Tolerance tolerance(const std::string& operation) {
  constexpr double kOneUnit = 0x1p-7;
  static const std::map<std::string, Tolerance> table = {
      {"linear", {1e-5, kOneUnit}},     // sums of up to a few hundred products
      {"linear weight", {1e-5, 1e-5}},  // fp32 whatever the operands
      {"norm", {2e-6, kOneUnit}},
      {"norm backward", {1e-5, kOneUnit}},
      {"norm weight", {1e-5, 1e-5}},
      {"pointwise", {2e-6, kOneUnit}},
      {"embedding", {1e-6, kOneUnit}},
      {"embedding weight", {1e-6, 1e-6}},
      {"attention", {1e-5, kOneUnit, kOneUnit, 2 * kOneUnit}},
      {"attention backward", {5e-5, kOneUnit, 2 * kOneUnit, 3 * kOneUnit}},
      {"attention keys", {5e-5, 5e-5, 1e-2}},
      {"loss", {1e-5, 1e-5}},
      {"classifier", {5e-5, 2 * kOneUnit}},  // slopes may be rounded to bf16 before their product
      {"classifier weight", {5e-5, 2 * kOneUnit}},
      {"adamw", {1e-6, kOneUnit}},
  };
  return table.at(operation);
}

// A kernel set of `backend` with the workspace that it wants for `shape`.
class Granted {
 public:
  Granted(const Backend& backend, int threads, const WorkspaceShape& shape)
      : kernels_(backend.make(threads)), bytes_(kernels_->workspace_bytes(shape)) {
    const size_t whole = (bytes_ + kGuardBytes + 63) / 64 * 64;
    memory_.reset(static_cast<std::byte*>(std::aligned_alloc(64, whole)));
    std::fill_n(memory_.get(), bytes_, std::byte{0xFF});
    std::fill_n(memory_.get() + bytes_, kGuardBytes, std::byte{0xA5});
    kernels_->grant_workspace({memory_.get(), bytes_});
  }
  ~Granted() {
    const std::byte* end = memory_.get() + bytes_;
    EXPECT_TRUE(std::all_of(end, end + kGuardBytes, [](std::byte b) { return b == std::byte{0xA5}; }))
        << "written past the workspace";
  }
  KernelSet& operator*() const { return *kernels_; }
  KernelSet* operator->() const { return kernels_.get(); }

 private:
  static constexpr size_t kGuardBytes = 256;
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::unique_ptr<KernelSet> kernels_;
  size_t bytes_;
  std::unique_ptr<std::byte, Free> memory_;
};

class OpTest : public ::testing::TestWithParam<OpCase> {
 protected:
  DType dtype() const { return GetParam().dtype; }
  Granted granted(WorkspaceShape shape, int threads = 2) const {
    shape.dtype = dtype();
    return Granted(GetParam().backend, threads, shape);
  }
  bool simt() const { return GetParam().backend.name == simt_backend().name; }
  // Of the host: whether products take their operands in bf16 where the operation's are.
  bool host_bf16() const {
    const auto levels = available_isas();
    return std::any_of(levels.begin(), levels.end(), [](Isa isa) {
      return multiplies_bf16(isa) && GetParam().backend.name == name_of(isa);
    });
  }
  double within(const std::string& operation) const {
    const Tolerance allowed = tolerance(operation);
    if (dtype() == DType::kF32) return allowed.f32;
    if (simt()) return allowed.tensor_core;
    return host_bf16() ? allowed.host_bf16 : allowed.bf16;
  }

  std::unique_ptr<KernelSet> reference_ = make_reference_kernels();
};

#define TRAINER_HOST_CASES(Suite) \
  INSTANTIATE_TEST_SUITE_P(Host, Suite, ::testing::ValuesIn(op_cases(backends())), op_case_name)
#define TRAINER_OP_CASES(Suite) \
  TRAINER_HOST_CASES(Suite);    \
  INSTANTIATE_TEST_SUITE_P(Simt, Suite, ::testing::ValuesIn(op_cases(simulated_backends())), op_case_name)

}  // namespace trainer
