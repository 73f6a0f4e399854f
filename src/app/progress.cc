#include "app/progress.h"

#include <fmt/core.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/units.h"

namespace trainer {
namespace {

constexpr std::chrono::milliseconds kRedrawInterval{100};

size_t columns(std::FILE* out) {
  winsize size{};
  const bool known = ::ioctl(::fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : 100;
}

// "waiting 12 % (bubble 8 %, boundary 4 %)", causes below half a percent left out.
std::string waiting(const ExposedTime& e, double seconds) {
  const std::array<std::pair<const char*, double>, 6> causes = {{{"bubble", e.bubble},
                                                                 {"boundary", e.boundary},
                                                                 {"gradient sync", e.grad_sync},
                                                                 {"update", e.update},
                                                                 {"prefetch", e.prefetch},
                                                                 {"recovery", e.recovery}}};
  double sum = 0;
  std::string list;
  for (const auto& [cause, time] : causes) {
    sum += time;
    if (const double percent = 100 * time / seconds; percent >= 0.5)
      list += fmt::format("{}{} {:.0f} %", list.empty() ? " (" : ", ", cause, percent);
  }
  return fmt::format("waiting {:.0f} %{}", 100 * sum / seconds, list.empty() ? "" : list + ")");
}

}  // namespace

Progress::Progress(ProgressOptions options) : options_(options) {
  bar_ = options.style == ProgressStyle::kBar ||
         (options.style == ProgressStyle::kAuto && ::isatty(::fileno(options.out)) == 1);
}

Progress::~Progress() {
  if (drawn_.empty()) return;
  std::fputc('\n', options_.out);
  std::fflush(options_.out);
}

void Progress::step(const StepMetrics& m) {
  if (std::isfinite(m.loss)) {
    sums_.loss += m.loss;
    ++sums_.losses;
  }
  sums_.seconds += m.step_seconds;
  sums_.tokens += m.tokens_per_second * m.step_seconds;
  sums_.exposed.bubble += m.exposed.bubble;
  sums_.exposed.boundary += m.exposed.boundary;
  sums_.exposed.grad_sync += m.exposed.grad_sync;
  sums_.exposed.update += m.exposed.update;
  sums_.exposed.prefetch += m.exposed.prefetch;
  sums_.exposed.recovery += m.exposed.recovery;
  // The first step warms up memory; it does not set the pace.
  const bool settled = m.step > options_.first_step + 1;
  smooth_step_seconds_ = settled ? 0.9 * smooth_step_seconds_ + 0.1 * m.step_seconds : m.step_seconds;

  if (m.skipped)
    note(fmt::format("step {}: skipped, no update was made (gradient norm {:.4g}, loss {:.4f})", m.step,
                     m.grad_norm, m.loss));
  const bool last = m.step == options_.total_steps;
  const auto now = std::chrono::steady_clock::now();
  if (last || (bar_ ? now - last_drawn_ >= kRedrawInterval : m.step % options_.log_interval == 0)) {
    if (bar_)
      draw(summary(m));
    else
      note(summary(m));
    last_drawn_ = now;
    sums_ = {};
  }
  if (m.valid_loss)
    note(fmt::format("step {}: validation loss {:.4f} (perplexity {:.2f})", m.step, *m.valid_loss,
                     std::exp(*m.valid_loss)));
}

std::string Progress::summary(const StepMetrics& m) const {
  const double rate = sums_.seconds > 0 ? sums_.tokens / sums_.seconds : 0;
  std::string text = fmt::format("step {}/{}", m.step, options_.total_steps);
  text += sums_.losses ? fmt::format(" | loss {:.4f}", sums_.loss / static_cast<double>(sums_.losses))
                       : " | no loss";
  text += fmt::format(" | grad norm {:.3f} | lr {:.3g} | {} tokens/s", m.grad_norm, m.learning_rate,
                      format_count(rate));
  if (options_.flops_per_token > 0 && options_.gemm_flops_per_second > 0)
    text += fmt::format(" | {:.0f} % of GEMM rate",
                        100 * rate * options_.flops_per_token / options_.gemm_flops_per_second);
  if (sums_.seconds > 0) text += " | " + waiting(sums_.exposed, sums_.seconds);
  const double left = smooth_step_seconds_ * static_cast<double>(options_.total_steps - m.step);
  return text + fmt::format(" | {} left", format_seconds(left));
}

void Progress::draw(const std::string& bar) {
  drawn_ = bar.substr(0, columns(options_.out) - 1);
  fmt::print(options_.out, "\r\x1b[K{}", drawn_);
  std::fflush(options_.out);
}

void Progress::note(const std::string& line) {
  if (drawn_.empty()) {
    fmt::print(options_.out, "{}\n", line);
  } else {
    fmt::print(options_.out, "\r\x1b[K{}\n{}", line, drawn_);
  }
  std::fflush(options_.out);
}

}  // namespace trainer
