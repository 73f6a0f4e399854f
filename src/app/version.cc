#include "app/version.h"

#include <cstdio>
#include <string>

#include "app/command.h"
#include "device/cores.h"
#include "device/cuda/cuda_device.h"
#include "ops/kernel_set.h"

namespace trainer {

int version_command(std::span<const std::string> arguments) {
  constexpr const char* kUsage =
      "usage: trainer version\n\nPrints version, compiler, kernels, cores and CUDA devices.\n";
  return run_command({"version", kUsage, false}, arguments, [&] {
    if (!arguments.empty()) input_error("unknown argument '{}': there are none", arguments[0]);
    const int devices = cuda_device_count();
    std::printf("trainer %s\ncompiler %s\nkernels %s\ncores %zu\nCUDA devices %s\n", TRAINER_VERSION,
                __VERSION__, make_host_kernels(1)->name().c_str(), allowed_cores().size(),
                devices > 0 ? std::to_string(devices).c_str() : ("0: " + why_no_cuda_device()).c_str());
  });
}

}  // namespace trainer
