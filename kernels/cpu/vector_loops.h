// Everything of vector_table.h, for the level being compiled (see vector.h).
#pragma once

#include "cpu/vector_elementwise.h"
#include "cpu/vector_norm.h"
#include "cpu/vector_normal.h"
#include "cpu/vector_table.h"

namespace trainer::TRAINER_ISA {

inline constexpr VectorTable kTable = {
    .norm_forward = norm_forward,
    .norm_backward = norm_backward,
    .rope = rope,
    .swiglu_forward = swiglu_forward,
    .swiglu_backward = swiglu_backward,
    .gelu_forward = gelu_forward,
    .gelu_backward = gelu_backward,
    .adamw = adamw,
    .sum_of_squares = sum_of_squares,
    .convert = convert,
    .sum = sum,
    .normal_pairs = normal_pairs,
};

}  // namespace trainer::TRAINER_ISA
