#include "simt/simt.h"

namespace trainer::simt {

Machine& machine_of(Stream stream) {
  if (stream) return *stream;
  thread_local Machine own;
  return own;
}

}  // namespace trainer::simt
