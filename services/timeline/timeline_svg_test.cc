#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "services/timeline/timeline.h"

namespace baton::timeline {
namespace {

using testing::HasSubstr;

int Count(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

Timeline Two() {
  Timeline timeline;
  timeline.chains.push_back({{"chain 0, stage 0", {}}, {"chain 0, stage 1", {}}});
  return timeline;
}

TEST(TimelineSvgTest, EveryChunkIsABoxInItsRequestsColour) {
  Timeline timeline = Two();
  timeline.chains[0][0].computes = {{0, 1000, {{0, 0, 64}}},
                                    {1000, 3000, {{0, 64, 32}, {1, 0, 96}}}};
  timeline.chains[0][1].computes = {{1000, 2000, {{0, 0, 64}}}};
  const TimelineWindow window = WindowOfMs(0, 0);
  const std::string svg = TimelineSvg(timeline, window, "a <b> & \"c\"");
  EXPECT_EQ(Count(svg, "<title>request 0,"), 3);
  EXPECT_EQ(Count(svg, "<title>request 1,"), 1);
  EXPECT_THAT(svg, HasSubstr("<title>request 1, tokens 0 to 95, 1.000 to 3.000 ms</title>"));
  EXPECT_THAT(svg, HasSubstr("a &lt;b&gt; &amp; &quot;c&quot;"));
  EXPECT_THAT(svg, HasSubstr("4 chunks, all of the window"));
  EXPECT_EQ(Count(svg, ">chain 0, stage "), 2);
  EXPECT_EQ(svg, TimelineSvg(timeline, window, "a <b> & \"c\""));
  timeline.full = true;
  EXPECT_THAT(TimelineSvg(timeline, window, ""), HasSubstr("the first 4 chunks of the window"));
  EXPECT_THAT(TimelineSvg(Two(), window, ""), HasSubstr("nothing was computed"));
}

TEST(TimelineSvgTest, NamesAreWhatSomebodyElseWrote) {
  Timeline timeline = Two();
  timeline.chains[0][0].name = "<script>";
  const std::string svg = TimelineSvg(timeline, WindowOfMs(0, 0), "");
  EXPECT_THAT(svg, HasSubstr(">&lt;script&gt;</text>"));
  EXPECT_EQ(Count(svg, "<script"), 0);
}

TEST(TimelineSvgTest, LongNamesPushTheBoxesAside) {
  Timeline timeline = Two();
  EXPECT_THAT(TimelineSvg(timeline, WindowOfMs(0, 0), ""), HasSubstr("<rect x=\"110\""));
  timeline.chains[0][1].name = std::string(50, 'n');
  EXPECT_THAT(TimelineSvg(timeline, WindowOfMs(0, 0), ""), HasSubstr("<rect x=\"306\""));
}

TEST(TimelineWindowTest, MillisecondsAndAnEndIfThereIsOne) {
  const TimelineWindow window = WindowOfMs(2, 5);
  EXPECT_EQ(window.from_us, 2000);
  EXPECT_EQ(window.to_us, 7000);
  EXPECT_EQ(window.limit, kTimelineChunks);
  EXPECT_GT(WindowOfMs(2, 0).to_us, int64_t{1} << 60);
}

}  // namespace
}  // namespace baton::timeline
