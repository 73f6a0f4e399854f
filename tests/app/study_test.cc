#include "app/study.h"

#include <gtest/gtest.h>

#include "base/json.h"

namespace trainer {
namespace {

TEST(Study, ErrorsAreWhatTheRowSays) {
  StudyRow row{"t", "r", 4.0, 5.0, StudyError::kRelative, "ms", ""};
  EXPECT_EQ(*row.error(), 0.25);
  row.measure = StudyError::kDifference;
  EXPECT_EQ(*row.error(), 1.0);
  row.published = std::monostate{};
  EXPECT_FALSE(row.error());
  row.measure = StudyError::kEqual;
  EXPECT_FALSE(row.error());
  row.published = std::string("0,1");
  row.ours = std::string("0,1");
  EXPECT_EQ(*row.error(), 0);
  row.ours = std::string("0,2");
  EXPECT_EQ(*row.error(), 1);
}

TEST(Study, WritesRowsAndListsDeviations) {
  Study study{"A study", {"Something is assumed."}, {}};
  study.rows.push_back({"One", "a", 4.0, 5.0, StudyError::kRelative, "ms", "for a reason"});
  study.rows.push_back({"One", "b", std::monostate{}, std::string("x"), StudyError::kEqual, "", ""});
  const Json rows = parse_json(study_json(study), "rows");
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].at("table"), "One");
  EXPECT_EQ(rows[0].at("row"), "a");
  EXPECT_EQ(rows[0].at("published"), 4.0);
  EXPECT_EQ(rows[0].at("ours"), 5.0);
  EXPECT_EQ(rows[0].at("error"), 0.25);
  EXPECT_TRUE(rows[1].at("published").is_null());
  EXPECT_TRUE(rows[1].at("error").is_null());
  const std::string text = study_markdown(study, "trainer study a");
  EXPECT_NE(text.find("| a, ms | 4 | 5 | +25.00 % |"), std::string::npos);
  EXPECT_NE(text.find("- One, a: for a reason"), std::string::npos);
  EXPECT_NE(text.find("- Something is assumed."), std::string::npos);
}

// Where the figures agree no cause is given, and where a text differs one is.
TEST(Study, RoundPipeAndSppoExplainEveryDeviation) {
  for (const StudyEntry& entry : studies()) {
    if (std::string(entry.name) != "roundpipe" && std::string(entry.name) != "sppo") continue;
    const Study study = entry.run();
    EXPECT_GT(study.rows.size(), 30u);
    for (const StudyRow& row : study.rows)
      if (row.measure == StudyError::kEqual && *row.error() != 0) {
        EXPECT_FALSE(row.note.empty()) << row.row;
      }
  }
}

}  // namespace
}  // namespace trainer
