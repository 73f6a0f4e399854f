// What RATrain reports of its matrix products (table 5), for comparison only.
#pragma once

#include <array>

#include "dsp/gemm.h"

namespace trainer::dsp {

struct PublishedGemm {
  GemmProblem problem;  // 2048 rows times a weight of [k, n]
  double utilisation;   // percent of the peak
  double tera_macs_per_second;
  double milliseconds;
};

inline constexpr std::array<PublishedGemm, 5> kPublishedGemms = {{
    {{2048, 4096, 4096}, 64.96, 5.26, 6.53},
    {{2048, 4096, 11008}, 66.16, 5.36, 17.23},
    {{2048, 11008, 4096}, 65.13, 5.28, 17.50},
    {{2048, 6656, 6656}, 67.35, 5.46, 16.63},
    {{2048, 8192, 8192}, 68.13, 5.52, 24.90},
}};

}  // namespace trainer::dsp
