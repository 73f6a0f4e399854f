// Matrix products on the host, and on the simulated DSP cluster.
#include "gemm/backends.h"
#include "support/kernel_bench.h"

namespace trainer {
namespace {

constexpr const char* kAbout =
    R"(Matrix products of a linear layer, y[m, n] = x[m, k] w[n, k]^T, and those of its backward.

  host: the products of the models' blocks and classifiers, in all three directions, beside oneDNN's matmul. The ceiling
        is the best rate that the kernels reach on the model's feed-forward shapes.
  dsp:  counted cycles of C[m, n] = A[m, k] B[k, n] on a simulated cluster of 24 DSPs, each with the best tile that fits
        its memories; by default the five products that RATrain publishes. Simulated: no such machine is measured.
        Of the options below it has --m, --k, --n, --quick and --json.)";

constexpr const char* kOwnOptions =
    R"(  --backend NAME   host (default) or dsp
  --m M --k K --n N  one product instead, in elements
)";

}  // namespace
}  // namespace trainer

int main(int argc, char** argv) {
  using namespace trainer;
  return run_program({"gemm", kernel_usage("gemm", kAbout, kOwnOptions)}, argc, argv, [](Words words) {
    return take_backend(words, {"host", "dsp"}) == "host" ? gemm_on_host(words) : gemm_on_dsp(words);
  });
}
