// What all subcommands have in common: usage, the form of error messages, exit codes.
#include "app/command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "app/ablate.h"
#include "app/config.h"
#include "app/convert.h"
#include "app/eval.h"
#include "app/generate.h"
#include "app/plan.h"
#include "app/report.h"
#include "app/simulate.h"
#include "app/study.h"
#include "app/tokenize.h"
#include "app/train.h"
#include "app/version.h"
#include "support/captured.h"

namespace trainer {
namespace {

using testing::capture;
using testing::Captured;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

struct Subcommand {
  std::string name;
  int (*run)(std::span<const std::string>);
  bool needs_arguments = true;
};

void PrintTo(const Subcommand& c, std::ostream* out) { *out << c.name; }

class EverySubcommand : public ::testing::TestWithParam<Subcommand> {
 protected:
  Captured run(const std::vector<std::string>& words) const {
    return capture([&] { return GetParam().run(words); });
  }
};

TEST_P(EverySubcommand, ShowsItsUsageWhenAsked) {
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"--help"}, {"-h"}, {"--whatever", "--help"}}) {
    const Captured help = run(words);
    EXPECT_EQ(help.code, 0);
    EXPECT_THAT(help.output, StartsWith("usage: trainer " + GetParam().name));
    EXPECT_THAT(help.errors, IsEmpty());
  }
}

TEST_P(EverySubcommand, WithoutArgumentsItWorksOrShowsItsUsageAsAnError) {
  const Captured bare = run({});
  EXPECT_EQ(bare.code, GetParam().needs_arguments ? 2 : 0);
  EXPECT_EQ(bare.output.empty(), GetParam().needs_arguments);
  EXPECT_THAT(bare.errors,
              StartsWith(GetParam().needs_arguments ? "usage: trainer " + GetParam().name : std::string()));
}

TEST_P(EverySubcommand, NamesAnUnknownArgument) {
  const Captured refused = run({"--no-such-thing"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.output, IsEmpty());
  EXPECT_THAT(refused.errors,
              StartsWith("trainer " + GetParam().name + ": error: unknown argument '--no-such-thing'"));
}

INSTANTIATE_TEST_SUITE_P(
    Of, EverySubcommand,
    ::testing::Values(Subcommand{"train", train_command}, Subcommand{"eval", eval_command},
                      Subcommand{"generate", generate_command}, Subcommand{"tokenize", tokenize_command},
                      Subcommand{"convert", convert_command}, Subcommand{"ablate", ablate_command},
                      Subcommand{"report", report_command}, Subcommand{"plan", plan_command},
                      Subcommand{"simulate", simulate_command}, Subcommand{"study", study_command},
                      Subcommand{"schema", schema_command, false},
                      Subcommand{"version", version_command, false}),
    [](const auto& info) { return info.param.name; });

TEST(RunCommand, ExitCodesFollowTheKindOfFailure) {
  const std::vector<std::string> words = {"word"};
  const auto outcome = [&](auto&& body) {
    return capture([&] { return run_command({"work", "usage\n"}, words, body); });
  };
  EXPECT_EQ(outcome([] {}).code, 0);
  const Captured input = outcome([] { input_error("the file is odd"); });
  EXPECT_EQ(input.code, 2);
  EXPECT_EQ(input.errors, "trainer work: error: the file is odd\n");
  const Captured failed = outcome([] { run_error("the disk is full"); });
  EXPECT_EQ(failed.code, 1);
  EXPECT_EQ(failed.errors, "trainer work: error: the disk is full\n");
  const Captured other = outcome([] { throw std::runtime_error("out of luck"); });
  EXPECT_EQ(other.code, 1);
  EXPECT_EQ(other.errors, "trainer work: error: out of luck\n");
}

}  // namespace
}  // namespace trainer
