#include "support/values.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/philox.h"
#include "ops/element.h"

namespace trainer {

Values::Values(Device& device, DType dtype, int64_t count)
    : device_(&device),
      dtype_(dtype),
      count_(count),
      memory_(device.allocate(static_cast<size_t>(count) * size_of(dtype))) {}

Values::Values(Device& device, DType dtype, int64_t count, uint64_t seed, double scale)
    : Values(device, dtype, count) {
  const Philox random(seed);
  const std::span<std::byte> bytes = memory_->bytes();
  write_on_host(device.compute(), bytes.data(), bytes.size(), [&](std::span<std::byte> host) {
    const Ref to{host.data(), dtype};
    for (int64_t i = 0; i < count; i += 4) {
      const auto words = random.block(static_cast<uint64_t>(i));
      for (int64_t j = i; j < std::min(i + 4, count); ++j)
        store_element(to, j, scale * (words[static_cast<size_t>(j - i)] * 0x1p-31 - 1));
    }
  });
}

Values Values::on_host() const {
  if (device_->host_reaches()) return *this;
  const Values copy(host_device(), dtype_, count_);
  const std::span<std::byte> bytes = memory_->bytes();
  device_->compute().copy_out(copy.ref().data, bytes.data(), bytes.size());
  device_->compute().synchronise();
  return copy;
}

double largest_difference(const Rows& want, const Rows& got) {
  require(want.rows == got.rows && want.columns == got.columns, "results of different shapes are compared");
  const auto at = [](const Rows& r, int64_t row, int64_t column) {
    return load_element(r.data, row * r.stride + column);
  };
  double squares = 0;
  for (int64_t row = 0; row < want.rows; ++row)
    for (int64_t column = 0; column < want.columns; ++column) squares += std::pow(at(want, row, column), 2);
  const double typical = std::sqrt(squares / static_cast<double>(want.rows * want.columns));
  double largest = 0;
  for (int64_t row = 0; row < want.rows; ++row)
    for (int64_t column = 0; column < want.columns; ++column) {
      const double wanted = at(want, row, column), apart = std::abs(at(got, row, column) - wanted);
      if (std::isnan(apart)) return INFINITY;
      if (apart > 0) largest = std::max(largest, apart / std::max(std::abs(wanted), typical));
    }
  return largest;
}

}  // namespace trainer
