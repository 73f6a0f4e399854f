// Failing together: an error on one rank must not leave the others waiting.
#pragma once

#include <algorithm>
#include <string>

#include "base/error.h"
#include "comm/collectives.h"

namespace trainer {

// Collective. Runs `body` on every rank; if it fails on any, all of them throw, the message naming who failed
// and why (once, without names, when all say the same). The worst exit code wins.
template <class Body>
void together(Communicator& world, Body&& body) {
  std::string failure;
  try {
    body();
  } catch (const Error& error) {
    failure = static_cast<char>('0' + error.exit_code()) + std::string(error.what());
  } catch (const std::exception& error) {
    failure = '1' + std::string(error.what());
  }
  const auto failures = all_gather_bytes(world, failure);
  if (std::all_of(failures.begin(), failures.end(), [](const auto& f) { return f.empty(); })) return;
  const bool alike =
      std::all_of(failures.begin(), failures.end(), [&](const auto& f) { return f == failures.front(); });
  int code = 0;
  std::string text;
  for (size_t r = 0; r < failures.size(); ++r) {
    if (failures[r].empty()) continue;
    code = std::max(code, failures[r][0] - '0');
    if (!alike) text += fmt::format("{}rank {}: ", text.empty() ? "" : "\n", r);
    if (!alike || r == 0) text += failures[r].substr(1);
  }
  if (code == 2) throw InputError(text);
  throw Error(code, text);
}

// Collective. What `ask` returns on rank 0, on every rank; its errors are everyone's.
template <class Ask>
std::string from_first_rank(Communicator& world, Ask&& ask) {
  std::string answer;
  together(world, [&] {
    if (world.rank() == 0) answer = ask();
  });
  return all_gather_bytes(world, answer).front();
}

}  // namespace trainer
