// The end of a product (tile_table.h): bias, what was there before, rounding.
#pragma once

#include "cpu/vector.h"

namespace trainer::TRAINER_ISA {

inline void finish(const TileFinish& f) {
  with_type(f.c.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    with_type(f.bias.dtype, [&](auto* bias_type) {
      using B = std::remove_pointer_t<decltype(bias_type)>;
      const B* bias = elements<B>(f.bias);
      for (int64_t row = 0; row < f.rows; ++row) {
        T* c = elements<T>(f.c) + row * f.c_stride;
        const float* tile = f.tile + row * kPanel;
        for_vectors(0, f.columns, [&](int64_t i, auto lanes) {
          Floats value = load(tile + i, lanes);
          if (bias) value += load(bias + i, lanes);
          if (f.add) value += load(c + i, lanes);
          store(c + i, value, lanes);
        });
      }
    });
  });
}

}  // namespace trainer::TRAINER_ISA
