// Speed of single operations of a KernelSet: each is first held against the reference, then timed beside what
// it could reach at most, measured in the same run.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "app/options.h"
#include "ops/kernel_set.h"
#include "support/backend.h"
#include "support/models.h"
#include "support/program.h"
#include "support/values.h"

namespace trainer {

// What a result may be off the reference, by the type of its elements: rounding to bf16 is one unit of 2^-7.
inline constexpr double kOneUnit = 0x1p-7;
struct AllowedError {
  double f32 = 1e-5, bf16 = kOneUnit;
};

// What the operation could reach: see KernelBench::add.
enum class Ceiling { kMatrixProducts, kMemory };

struct KernelCase {
  std::string operation = {};
  DType dtype = DType::kF32;
  Json shape = {};  // numbers by name
  Ceiling ceiling = Ceiling::kMemory;
  double work = 0;                 // FLOPs of one call, a multiply-add being two, or bytes read and written
  std::function<void()> run = {};  // one call; may be repeated before the device has done it
  // After the first call: compares what it wrote, by KernelBench::compare.
  std::function<void()> check = {};
  std::function<void()> peer = {};  // the same work by another library; may be empty
  std::string peer_name = {};
};

class KernelBench {
 public:
  // Options of every such program; `own` are a program's further ones, which take values. Throws InputError
  // where there is no such backend.
  KernelBench(const char* name, const std::string& backend, const Words& words,
              const std::vector<std::string>& own);

  const Options& options() const { return options_; }
  bool quick() const { return quick_; }
  int threads() const { return threads_; }
  int64_t tokens() const { return tokens_; }
  const std::vector<NamedModel>& models() const { return models_; }
  const std::vector<DType>& dtypes() const { return dtypes_; }
  // Where operands and results are.
  Device& device() { return *backend_.device; }
  const BenchBackend& backend() const { return backend_; }
  // Works on host memory.
  KernelSet& reference() { return *reference_; }

  // The kernels, with a workspace for calls within `shape`, which `backend().own` is granted, too.
  KernelSet& kernels(const WorkspaceShape& shape);
  // The same for a model's block; `vocabulary`: for its classifier, too.
  KernelSet& kernels(DType dtype, const ModelConfig& model, bool vocabulary = false);

  // For KernelCase::check, with `want` in host memory and `got` in the device's or, for the second, in host
  // memory as well. Throw RunError when they differ by more than is tolerated.
  void compare(const std::string& what, const Rows& want, const Rows& got, const AllowedError& allowed);
  void compare_on_host(const std::string& what, const Rows& want, const Rows& got,
                       const AllowedError& allowed);

  // Checks and times one case of `model`. The ceiling of matrix products is the best rate of its feed-forward
  // shapes; of memory, the faster of a copy and an addition that move as many bytes, in turn with the
  // operation.
  void add(const NamedModel& model, const KernelCase& c);

  Report report() const;

 private:
  struct Seconds {
    double run = 0, peer = 0;
    double memory_rate = 0;  // bytes a second
  };
  Seconds measure(const KernelCase& c);
  double product_rate(const NamedModel& model, DType dtype);

  std::string name_, command_;
  Options options_;
  bool quick_;
  int threads_;
  int64_t tokens_;
  double seconds_;
  std::vector<NamedModel> models_;
  std::vector<DType> dtypes_;
  BenchBackend backend_;
  std::unique_ptr<KernelSet> reference_;
  DeviceMemoryPtr workspace_;
  double worst_share_ = 0, worst_error_ = 0, worst_tolerance_ = 0;  // of the case at hand
  std::map<std::pair<std::string, DType>, double> product_rates_;
  Json rows_ = Json::array();
};

// Of `about`, lines of a program's own options and the options that every such program has.
std::string kernel_usage(const char* name, const std::string& about, const std::string& own_options);

// All of main of a program that has kernels as backends only.
int run_kernel_program(const char* name, const char* about, int argc, char** argv,
                       void (*measure)(KernelBench&));

}  // namespace trainer
