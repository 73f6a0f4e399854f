#include "app/version.h"

#include <cstdio>

#include "device/cores.h"
#include "ops/kernel_set.h"

namespace trainer {

int version_command(std::span<const std::string> arguments) {
  if (!arguments.empty()) {
    std::fputs("usage: trainer version\n", arguments[0] == "--help" ? stdout : stderr);
    return arguments[0] == "--help" ? 0 : 2;
  }
  std::printf("trainer %s\ncompiler %s\nkernels %s\ncores %zu\n", TRAINER_VERSION, __VERSION__,
              make_host_kernels(1)->name().c_str(), allowed_cores().size());
  return 0;
}

}  // namespace trainer
