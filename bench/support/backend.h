// What the programs measure: the kernels of a device.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "app/backend.h"

namespace trainer {

// "host": this machine's cores. "cuda": the first GPU that the process may use. "simt": the kernels of "cuda"
// on the SIMT layer, with memory that the host cannot touch and a queue that works as late as it may. And
// what a program has beside them; the first is the default.
std::vector<std::string> bench_backends(const std::vector<std::string>& further = {});

struct BenchBackend {
  std::string name;
  std::string machine;     // see describe_machine
  bool simulated = false;  // times mean nothing
  // Attention rounds what it multiplies in between to bf16, where operands are: on tensor cores, or by such
  // instructions of the host.
  bool tensor_cores = false, host_bf16 = false;
  std::shared_ptr<Device> device;
  // Kernels of the device's compute queue.
  std::unique_ptr<KernelSet> kernels;
  std::unique_ptr<KernelSet> ceiling_kernels;  // the same, with a workspace of their own
  // Where `kernels` leave matrix products to cuBLASLt and attention to cuDNN: without them; else null.
  std::unique_ptr<KernelSet> own;
};

// `threads`: of "host". Throws InputError where this build or this machine has no such device.
BenchBackend make_bench_backend(const std::string& name, int threads);

// The same for a rank that trains, which is alone on its device.
RankBackend make_training_backend(const std::string& name, Config config, const Communicator& world);

// For people. `threads`: of "host".
std::string describe_machine(const std::string& name, const Device& device, const KernelSet& kernels,
                             int threads);

}  // namespace trainer
