// The classifier: logits, softmax, loss and its gradients, a chunk of tokens at a time.
#include <array>

#include "support/kernel_bench.h"

namespace trainer {
namespace {

constexpr const char* kAbout =
    R"(Times the loss of a model's vocabulary, forward alone and with both gradients. Counted: 2 FLOPs for each product,
one of them forward and two more for the gradients. Logits exist for a chunk of tokens at a time.)";

constexpr int32_t kNoLabel = -100;
// Of all tokens when results are compared: the reference works on each for a long time.
constexpr int64_t kCheckedTokens = 2;

struct ClassifierBench {
  int64_t tokens, hidden, vocabulary;
  Values x, weight, dx, dweight, losses;
  std::vector<int32_t> labels;

  ClassifierBench(DType dtype, int64_t tokens, const ModelConfig& m)
      : tokens(tokens),
        hidden(m.hidden_size),
        vocabulary(m.vocabulary_size),
        x(dtype, tokens * hidden, 1),
        weight(dtype, vocabulary * hidden, 2, 0.1),
        dx(dtype, tokens * hidden),
        dweight(DType::kF32, vocabulary * hidden),
        losses(DType::kF32, tokens) {
    for (int64_t t = 0; t < tokens; ++t) labels.push_back(static_cast<int32_t>(t * 7919 % vocabulary));
  }
  Classifier arguments(const std::vector<int32_t>& of, bool backward, const Values& to_dx,
                       const Values& to_dweight, const Values& to_losses) const {
    return {.tokens = tokens,
            .hidden = hidden,
            .vocabulary = vocabulary,
            .x = x.ref(),
            .weight = weight.ref(),
            .labels = of.data(),
            .dx = backward ? to_dx.ref() : Ref{},
            .dweight = backward ? to_dweight.f32() : nullptr,
            .token_losses = to_losses.f32()};
  }
};

// The same call with labels for a few tokens only, first and last ones among them.
void check_classifier(KernelBench& bench, KernelSet& kernels, const ClassifierBench& c, bool backward) {
  std::vector<int32_t> labels(c.labels.size(), kNoLabel);
  for (int64_t i = 0; i < kCheckedTokens; ++i) {
    const auto token = static_cast<size_t>(i * (c.tokens - 1) / (kCheckedTokens - 1));
    labels[token] = c.labels[token];
  }
  const auto results = [&](KernelSet& of) {
    std::array<Values, 3> r = {Values(c.x.dtype(), backward ? c.x.size() : 1),
                               Values(DType::kF32, backward ? c.weight.size() : 1),
                               Values(DType::kF32, c.tokens)};
    of.classifier(c.arguments(labels, backward, r[0], r[1], r[2]));
    return r;
  };
  const auto ours = results(kernels), want = results(bench.reference());
  bench.compare("the losses", all_of(want[2]), all_of(ours[2]), {1e-5});
  if (!backward) return;
  bench.compare("dx", all_of(want[0]), all_of(ours[0]), {5e-5, 2 * kOneUnit});
  // Slopes of logits may be rounded to the dtype before their product.
  const double allowed = c.x.dtype() == DType::kF32 ? 5e-5 : 2 * kOneUnit;
  bench.compare("dweight", all_of(want[1]), all_of(ours[1]), {allowed});
}

void measure(KernelBench& bench) {
  for (const NamedModel& model : bench.models())
    for (const DType dtype : bench.dtypes()) {
      const ClassifierBench operands(dtype, bench.tokens(), model.shape);
      KernelSet& kernels = bench.kernels(dtype, model.shape, true);
      for (const bool backward : {false, true}) {
        const Classifier arguments =
            operands.arguments(operands.labels, backward, operands.dx, operands.dweight, operands.losses);
        KernelCase c{.operation = backward ? "loss and gradients" : "loss",
                     .dtype = dtype,
                     .shape = {{"tokens", operands.tokens},
                               {"hidden", operands.hidden},
                               {"words", operands.vocabulary}},
                     .ceiling = Ceiling::kMatrixProducts,
                     .work = (backward ? 6.0 : 2.0) * static_cast<double>(operands.tokens * operands.hidden) *
                             static_cast<double>(operands.vocabulary)};
        c.run = [&] { kernels.classifier(arguments); };
        c.check = [&] { check_classifier(bench, kernels, operands, backward); };
        bench.add(model, c);
      }
    }
}

}  // namespace
}  // namespace trainer

int main(int argc, char** argv) {
  return trainer::run_kernel_program("classifier", trainer::kAbout, argc, argv, trainer::measure);
}
