// AddressSanitizer makes a test several times longer. What it repeats over seeds or settings is repeated less
// under it; the plain build repeats it all.
#pragma once

#include <cstddef>

namespace trainer::testing {

#ifdef __SANITIZE_ADDRESS__
inline constexpr bool kThinned = true;
#else
inline constexpr bool kThinned = false;
#endif

// for (...) { if (thinning.skips()) continue; ... }: the first of every eleven is left. Eleven shares no
// factor with small numbers of settings, so that each of them comes up.
class Thinning {
 public:
  // True for a round that AddressSanitizer goes without.
  bool skips() { return kThinned && count_++ % 11 != 0; }

 private:
  size_t count_ = 0;
};

}  // namespace trainer::testing
