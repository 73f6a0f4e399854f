#include "app/version.h"

#include <cstdio>

#include "app/command.h"
#include "device/cores.h"
#include "ops/kernel_set.h"

namespace trainer {

int version_command(std::span<const std::string> arguments) {
  constexpr const char* kUsage = "usage: trainer version\n\nPrints version, compiler, kernels and cores.\n";
  return run_command({"version", kUsage, false}, arguments, [&] {
    if (!arguments.empty()) input_error("unknown argument '{}': there are none", arguments[0]);
    std::printf("trainer %s\ncompiler %s\nkernels %s\ncores %zu\n", TRAINER_VERSION, __VERSION__,
                make_host_kernels(1)->name().c_str(), allowed_cores().size());
  });
}

}  // namespace trainer
