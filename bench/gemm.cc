// Matrix products of a device, and on the simulated DSP cluster.
#include "gemm/backends.h"
#include "support/kernel_bench.h"

namespace trainer {
namespace {

constexpr const char* kAbout =
    R"(Matrix products of a linear layer, y[m, n] = x[m, k] w[n, k]^T, and those of its backward.

  host, cuda, simt: the products of the models' blocks and classifiers, in all three directions. The ceiling is the best
        rate that the kernels reach on the model's feed-forward shapes. Beside them: on the host oneDNN's matmul, where the build found it; on cuda
        our own kernels stand beside cuBLASLt, which training uses and the ceiling is of.
  dsp:  counted cycles of C[m, n] = A[m, k] B[k, n] on a simulated cluster of 24 DSPs, each with the best tile that fits
        its memories; by default the five products that RATrain publishes. Simulated: no such machine is measured.
        Of the options below it has --m, --k, --n, --quick and --json.)";

constexpr const char* kOwnOptions =
    R"(  --m M --k K --n N  one product instead, in elements
)";

}  // namespace
}  // namespace trainer

int main(int argc, char** argv) {
  using namespace trainer;
  return run_program({"gemm", kernel_usage("gemm", kAbout, kOwnOptions)}, argc, argv, [](Words words) {
    const std::string backend = take_backend(words, bench_backends({"dsp"}));
    return backend == "dsp" ? gemm_on_dsp(words) : gemm_on_kernels(backend, words);
  });
}
