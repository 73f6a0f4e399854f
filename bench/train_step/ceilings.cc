#include "train_step/ceilings.h"

#include <algorithm>

#include "base/statistics.h"
#include "comm/in_process.h"
#include "ops/memory_rate.h"
#include "support/backend.h"
#include "support/models.h"

namespace trainer {
namespace {

constexpr double kRoundSeconds = 0.6, kTurnSeconds = 1.0;  // of measuring matrix products
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
      layers_(static_cast<double>(a.model.num_layers)),
      chunks_(static_cast<double>(a.micro_batch_tokens()) / static_cast<double>(shapes_.back().m)),
      name_(a.backend),
      threads_(a.threads),
      world_(make_in_process_group(1)),
      backend_(make_training_backend(a.backend, a.config, *world_.front())),
      rates_(shapes_.size()),
      memory_(device().allocate(name_ == "simt" ? kSimulatedMemoryBytes : kMemoryBytes)) {}

void Ceilings::measure() {
  for (size_t s = 0; s < shapes_.size(); ++s) {
    const std::array<double, 3> rates = measure_gemm_rates(
        *backend_.kernels, dtype_, shapes_[s], kRoundSeconds / static_cast<double>(shapes_.size()), device());
    for (size_t d = 0; d < rates.size(); ++d) rates_[s][d].push_back(rates[d]);
  }
  const auto seconds_in_turn = [&](std::span<const GemmShape> shapes, double times, double& flops) {
    double own = 0;
    for (const GemmShape& s : shapes)
      own += 6.0 * static_cast<double>(s.m * s.n) * static_cast<double>(s.k) * times;
    flops += own;
    return own / measure_gemm_rate_in_turn(*backend_.kernels, dtype_, shapes, kTurnSeconds / 2, device());
  };
  const std::span<const GemmShape> all = shapes_;
  double flops = 0;
  const double seconds = seconds_in_turn(all.first(all.size() - 1), layers_, flops) +
                         seconds_in_turn(all.last(1), chunks_, flops);
  in_turn_.push_back(flops / seconds);
  memory_rates_.push_back(measure_memory_rate(*backend_.kernels, memory_->bytes(), device()));
}

double Ceilings::products_of(size_t shape) const {
  double best = 0;
  for (const auto& rounds : rates_[shape]) best = std::max(best, median(rounds));
  return best;
}

double Ceilings::products() const {
  double best = 0;
  for (size_t s = 0; s < shapes_.size(); ++s) best = std::max(best, products_of(s));
  return best;
}

double Ceilings::products_in_turn() const { return median(in_turn_); }

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
                    {"flops_per_second", products_of(s)}});
  return list;
}

}  // namespace trainer
