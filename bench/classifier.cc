// The classifier: logits, softmax, loss and its gradients, a chunk of tokens at a time.
#include "support/kernel_bench.h"

namespace trainer {
namespace {

constexpr const char* kAbout =
    R"(Times the loss of a model's vocabulary, forward alone and with both gradients. Counted: 2 FLOPs for each product,
one of them forward and two more for the gradients. Logits exist for a chunk of tokens at a time.)";

constexpr int32_t kNoLabel = -100;
// Of all tokens when results are compared: the reference works on each for a long time.
constexpr int64_t kCheckedTokens = 2;

struct ClassifierInputs {
  int64_t tokens, hidden, vocabulary;
  Values x, weight;

  ClassifierInputs on_host() const { return {tokens, hidden, vocabulary, x.on_host(), weight.on_host()}; }
};

struct ClassifierResults {
  Values dx, dweight, losses;

  // Without room for gradients where they are not wanted.
  ClassifierResults(Device& device, const ClassifierInputs& in, bool gradients)
      : dx(device, in.x.dtype(), gradients ? in.x.size() : 1),
        dweight(device, DType::kF32, gradients ? in.weight.size() : 1),
        losses(device, DType::kF32, in.tokens) {}
};

Classifier arguments_of(const ClassifierInputs& in, const int32_t* labels, bool backward,
                        const ClassifierResults& to) {
  return {.tokens = in.tokens,
          .hidden = in.hidden,
          .vocabulary = in.vocabulary,
          .x = in.x.ref(),
          .weight = in.weight.ref(),
          .labels = labels,
          .dx = backward ? to.dx.ref() : Ref{},
          .dweight = backward ? to.dweight.f32() : nullptr,
          .token_losses = to.losses.f32()};
}

std::vector<int32_t> make_labels(const ClassifierInputs& in) {
  std::vector<int32_t> labels;
  for (int64_t t = 0; t < in.tokens; ++t) labels.push_back(static_cast<int32_t>(t * 7919 % in.vocabulary));
  return labels;
}

// The same call with labels for a few tokens only, first and last ones among them.
void check_classifier(KernelBench& bench, KernelSet& kernels, const ClassifierInputs& in, bool backward) {
  const std::vector<int32_t> all = make_labels(in);
  std::vector<int32_t> labels(all.size(), kNoLabel);
  for (int64_t i = 0; i < kCheckedTokens; ++i) {
    const auto token = static_cast<size_t>(i * (in.tokens - 1) / (kCheckedTokens - 1));
    labels[token] = all[token];
  }
  const ClassifierResults ours(bench.device(), in, backward), wanted(host_device(), in, backward);
  const DeviceMemoryPtr on_device = placed(bench.device(), labels);
  kernels.classifier(arguments_of(in, elements_of<int32_t>(on_device), backward, ours));
  bench.reference().classifier(arguments_of(in.on_host(), labels.data(), backward, wanted));
  bench.compare("the losses", all_of(wanted.losses), all_of(ours.losses), {1e-5});
  if (!backward) return;
  bench.compare("dx", all_of(wanted.dx), all_of(ours.dx), {5e-5, 2 * kOneUnit});
  // Slopes of logits may be rounded to the dtype before their product.
  const double allowed = in.x.dtype() == DType::kF32 ? 5e-5 : 2 * kOneUnit;
  bench.compare("dweight", all_of(wanted.dweight), all_of(ours.dweight), {allowed});
}

void measure(KernelBench& bench) {
  for (const NamedModel& model : bench.models())
    for (const DType dtype : bench.dtypes()) {
      const int64_t tokens = bench.tokens(), hidden = model.shape.hidden_size,
                    words = model.shape.vocabulary_size;
      const ClassifierInputs in{tokens, hidden, words, Values(bench.device(), dtype, tokens * hidden, 1),
                                Values(bench.device(), dtype, words * hidden, 2, 0.1)};
      const ClassifierResults to(bench.device(), in, true);
      const std::vector<int32_t> labels = make_labels(in);
      const DeviceMemoryPtr placed_labels = placed(bench.device(), labels);
      KernelSet& kernels = bench.kernels(dtype, model.shape, true);
      for (const bool backward : {false, true}) {
        const Classifier arguments = arguments_of(in, elements_of<int32_t>(placed_labels), backward, to);
        KernelCase c{.operation = backward ? "loss and gradients" : "loss",
                     .dtype = dtype,
                     .shape = {{"tokens", tokens}, {"hidden", hidden}, {"words", words}},
                     .ceiling = Ceiling::kMatrixProducts,
                     .work = (backward ? 6.0 : 2.0) * static_cast<double>(tokens * hidden) *
                             static_cast<double>(words)};
        c.run = [&] { kernels.classifier(arguments); };
        c.check = [&] { check_classifier(bench, kernels, in, backward); };
        bench.add(model, c);
      }
    }
}

}  // namespace
}  // namespace trainer

int main(int argc, char** argv) {
  return trainer::run_kernel_program("classifier", trainer::kAbout, argc, argv, trainer::measure);
}
