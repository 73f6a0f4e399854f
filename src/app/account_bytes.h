// Accounts of steps on their way from one rank to another of the same program.
#pragma once

#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "runtime/waiting.h"

namespace trainer {

// Appends to `bytes`.
template <class T>
requires std::is_trivially_copyable_v<T>
void put_bytes(std::string& bytes, const T& value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}
inline void put_bytes(std::string& bytes, const std::vector<double>& values) {
  put_bytes(bytes, values.size());
  bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(double));
}
inline void put_bytes(std::string& bytes, const WaitLedger::StepAccount& a) {
  put_bytes(bytes, a.exposed);
  put_bytes(bytes, a.end);
  put_bytes(bytes, a.main_path);
  put_bytes(bytes, a.compute);
  put_bytes(bytes, a.received_forward);
  put_bytes(bytes, a.received_backward);
}

// Takes off the front of `bytes` what put_bytes appended, in the same order.
template <class T>
requires std::is_trivially_copyable_v<T>
void take_bytes(std::string_view& bytes, T& value) {
  std::memcpy(&value, bytes.data(), sizeof value);
  bytes.remove_prefix(sizeof value);
}
inline void take_bytes(std::string_view& bytes, std::vector<double>& values) {
  size_t count = 0;
  take_bytes(bytes, count);
  values.resize(count);
  if (count > 0) std::memcpy(values.data(), bytes.data(), count * sizeof(double));
  bytes.remove_prefix(count * sizeof(double));
}
inline void take_bytes(std::string_view& bytes, WaitLedger::StepAccount& a) {
  take_bytes(bytes, a.exposed);
  take_bytes(bytes, a.end);
  take_bytes(bytes, a.main_path);
  take_bytes(bytes, a.compute);
  take_bytes(bytes, a.received_forward);
  take_bytes(bytes, a.received_backward);
}

}  // namespace trainer
