// Causal attention of a device, and its backward on the simulated DSP cluster.
#include "attention/backends.h"
#include "support/kernel_bench.h"

namespace trainer {
namespace {

constexpr const char* kAbout =
    R"(Causal attention.

  host, cuda, simt: all heads of a block over one sequence of --tokens positions, forward and backward. Counted: 2 FLOPs
        for each multiply-add of the two products forward and the five backward, over the keys that a query sees.
  dsp:  counted cycles of the backward of one head on a simulated cluster of 24 DSPs, with the best tile that fits its
        memories: with all intermediates on chip, and with those of each tile staged through DDR. Staged: GP, GS and the
        sums GK_j and GV_j make a round trip through DDR for each tile. "Each part": the DSPs' parts of GK_j and GV_j
        make it one by one, not summed on chip before. A short sequence is computed in fp16 in the same run and held
        against double precision. Simulated: no such machine is measured. It has the options
          --sequence S   one length instead of 512, 1024, 2048, 4096 and 8192; a multiple of 16
          --head-dim D   a multiple of 16 (default 128)
        and of those below --quick and --json.)";

}  // namespace
}  // namespace trainer

int main(int argc, char** argv) {
  using namespace trainer;
  return run_program({"attention", kernel_usage("attention", kAbout, "")}, argc, argv, [](Words words) {
    const std::string backend = take_backend(words, bench_backends({"dsp"}));
    return backend == "dsp" ? attention_on_dsp(words) : attention_on_kernels(backend, words);
  });
}
