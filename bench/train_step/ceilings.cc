#include "train_step/ceilings.h"

#include <algorithm>

#include "base/statistics.h"
#include "comm/in_process.h"
#include "ops/memory_rate.h"
#include "support/backend.h"
#include "support/models.h"

namespace trainer {
namespace {

constexpr double kRoundSeconds = 0.6;  // of measuring matrix products
// Of both arrays: server processors have caches of hundreds of MiB. Simulated kernels only have to work.
constexpr size_t kMemoryBytes = size_t{1} << 30, kSimulatedMemoryBytes = size_t{128} << 10;

// The products of one micro-batch.
std::vector<GemmShape> product_shapes(const TrainStepArguments& a) {
  const int64_t tokens = a.micro_batch_tokens();
  std::vector<GemmShape> shapes = block_products(a.model, tokens);
  shapes.push_back(classifier_product(a.model, tokens));
  return shapes;
}

}  // namespace

Ceilings::Ceilings(const TrainStepArguments& a)
    : dtype_(a.config.precision.compute),
      shapes_(product_shapes(a)),
      name_(a.backend),
      threads_(a.threads),
      world_(make_in_process_group(1)),
      backend_(make_training_backend(a.backend, a.config, *world_.front())),
      rates_(shapes_.size()),
      memory_(device().allocate(name_ == "simt" ? kSimulatedMemoryBytes : kMemoryBytes)) {}

void Ceilings::measure() {
  for (size_t s = 0; s < shapes_.size(); ++s)
    rates_[s].push_back(measure_gemm_rate(*backend_.kernels, dtype_, std::span(&shapes_[s], 1),
                                          kRoundSeconds / static_cast<double>(shapes_.size()),
                                          *backend_.device));
  memory_rates_.push_back(measure_memory_rate(*backend_.kernels, memory_->bytes(), device()));
}

double Ceilings::products() const {
  double best = 0;
  for (const auto& rates : rates_) best = std::max(best, median(rates));
  return best;
}

double Ceilings::memory() const { return median(memory_rates_); }

std::string Ceilings::machine() const {
  return describe_machine(name_, *backend_.device, *backend_.kernels, threads_);
}

Json Ceilings::products_by_shape() const {
  Json list = Json::array();
  for (size_t s = 0; s < shapes_.size(); ++s)
    list.push_back({{"m", shapes_[s].m},
                    {"n", shapes_[s].n},
                    {"k", shapes_[s].k},
                    {"flops_per_second", median(rates_[s])}});
  return list;
}

}  // namespace trainer
