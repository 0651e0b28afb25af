#include "services/timeline/timeline.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace baton::timeline {
namespace {

constexpr double kLeft = 110;    // The boxes' left edge, at least; names are left of it.
constexpr double kLetter = 5.8;  // The width of a name's letter.
constexpr double kWidth = 1240;
constexpr double kTop = 52;
constexpr double kRow = 34;
constexpr double kBox = 28;
constexpr double kGap = 14;   // Between chains.
constexpr double kFits = 26;  // Pixels that a request's number needs.
constexpr int kTicks = 10;

std::string Escaped(const std::string& text) {
  return absl::StrReplaceAll(text,
                             {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

struct Scale {
  int64_t from_us = 0;
  int64_t to_us = 1;
  double left = kLeft;
  double X(int64_t at_us) const {
    return left +
           kWidth * static_cast<double>(at_us - from_us) / static_cast<double>(to_us - from_us);
  }
};

// Consecutive numbers get very different hues: steps of the golden angle.
std::string ColourOf(int request) {
  const double hue = std::fmod(request * 137.50776405, 360.0) / 60;
  const double light = request % 2 == 0 ? 0.62 : 0.48;
  const double chroma = 0.55 * (1 - std::abs(2 * light - 1));
  const double second = chroma * (1 - std::abs(std::fmod(hue, 2.0) - 1));
  double rgb[3] = {0, 0, 0};
  const int sextant = static_cast<int>(hue);
  rgb[((sextant + 1) / 2) % 3] = chroma;
  rgb[(7 - sextant) % 3] = second;
  const auto byte = [&](double part) {
    return static_cast<int>(std::lround(255 * (part + light - chroma / 2)));
  };
  return absl::StrFormat("#%02x%02x%02x", byte(rgb[0]), byte(rgb[1]), byte(rgb[2]));
}

// 1, 2 or 5 times a power of ten, so that about ten steps fill the axis.
double NiceStep(double whole) {
  const double power = std::pow(10, std::floor(std::log10(whole / kTicks)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (whole / (factor * power) <= kTicks) return factor * power;
  }
  return 10 * power;
}

// The boxes of one plan, one above the other, each as high as its share of the plan's tokens.
void DrawCompute(const ComputeRecord& compute, const Scale& scale, double top, std::string& svg) {
  double tokens = 0;
  for (const ComputeRecord::Item& item : compute.items) tokens += item.token_count;
  const double left = scale.X(compute.begin_us);
  const double width = std::max(0.3, scale.X(compute.end_us) - left);
  double y = top;
  for (const ComputeRecord::Item& item : compute.items) {
    const double height = kBox * item.token_count / tokens;
    absl::StrAppendFormat(&svg,
                          "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" fill=\"%s\" "
                          "class=\"b\"><title>request %d, "
                          "tokens %d to %d, %.3f to %.3f ms</title></rect>\n",
                          left, y, width, height, ColourOf(item.request), item.request,
                          item.token_begin, item.token_begin + item.token_count - 1,
                          static_cast<double>(compute.begin_us) * 1e-3,
                          static_cast<double>(compute.end_us) * 1e-3);
    if (width >= kFits && height >= 11) {
      absl::StrAppendFormat(&svg, "<text x=\"%.2f\" y=\"%.2f\" class=\"n\">%d</text>\n",
                            left + width / 2, y + height / 2 + 3.5, item.request);
    }
    y += height;
  }
}

void DrawAxis(const Scale& scale, double bottom, std::string& svg) {
  const double from_ms = static_cast<double>(scale.from_us) * 1e-3;
  const double to_ms = static_cast<double>(scale.to_us) * 1e-3;
  const double step = NiceStep(to_ms - from_ms);
  // Seconds where milliseconds would be long numbers.
  const bool seconds = to_ms >= 10'000;
  for (double at = std::ceil(from_ms / step) * step; at <= to_ms * (1 + 1e-12); at += step) {
    const double x = scale.X(std::llround(at * 1e3));
    absl::StrAppendFormat(&svg,
                          "<line x1=\"%.2f\" y1=\"%.0f\" x2=\"%.2f\" y2=\"%.0f\"/>\n"
                          "<text x=\"%.2f\" y=\"%.0f\" class=\"t\">%g %s</text>\n",
                          x, kTop - 6, x, bottom, x, bottom + 16, seconds ? at * 1e-3 : at,
                          seconds ? "s" : "ms");
  }
}

// A summary of the picture and its number of chunks.
Scale ScaleOf(const Timeline& timeline, const TimelineWindow& window, int& shown) {
  Scale scale{window.from_us, window.from_us + 1};
  shown = 0;
  for (const std::vector<Row>& chain : timeline.chains) {
    for (const Row& row : chain) {
      scale.left = std::max(scale.left, 16 + kLetter * static_cast<double>(row.name.size()));
      for (const ComputeRecord& compute : row.computes) {
        shown += static_cast<int>(compute.items.size());
        scale.to_us = std::max(scale.to_us, compute.end_us);
      }
    }
  }
  return scale;
}

}  // namespace

TimelineWindow WindowOfMs(int64_t from_ms, int64_t length_ms) {
  TimelineWindow window{from_ms * 1000, std::numeric_limits<int64_t>::max(), kTimelineChunks};
  if (length_ms > 0) window.to_us = window.from_us + length_ms * 1000;
  return window;
}

std::string TimelineSvg(const Timeline& timeline, const TimelineWindow& window,
                        const std::string& title) {
  int shown = 0;
  const Scale scale = ScaleOf(timeline, window, shown);
  double bottom = kTop;
  for (const std::vector<Row>& chain : timeline.chains) {
    bottom += kRow * static_cast<double>(chain.size()) + kGap;
  }
  const std::string bound = shown == 0 ? "nothing was computed in this window"
                            : timeline.full
                                ? absl::StrCat("the first ", shown, " chunks of the window")
                                : absl::StrCat(shown, " chunks, all of the window");
  std::string svg = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" "
      "height=\"%.0f\">\n<style>text{font:12px sans-serif;fill:#222}.n{font-size:10px;"
      "text-anchor:middle;fill:#fff}.t{text-anchor:middle;fill:#555}.s{fill:#555}line{stroke:#ccc;"
      "stroke-width:1}.r{fill:#f2f2f2}.b{stroke:#fff;stroke-width:.4}</style>\n<rect "
      "width=\"100%%\" height=\"100%%\" "
      "fill=\"#fff\"/>\n<text x=\"8\" y=\"18\">%s</text>\n<text x=\"8\" y=\"35\" class=\"s\">"
      "Stages by rows; a box is a chunk, its colour and number the request (0 is the first); %s."
      "</text>\n",
      scale.left + kWidth + 30, bottom + 30, scale.left + kWidth + 30, bottom + 30, Escaped(title),
      bound);
  std::string boxes;
  double top = kTop;
  for (const std::vector<Row>& chain : timeline.chains) {
    for (const Row& row : chain) {
      absl::StrAppendFormat(&svg,
                            "<rect x=\"%.0f\" y=\"%.0f\" width=\"%.0f\" height=\"%.0f\" "
                            "class=\"r\"/>\n<text x=\"8\" y=\"%.0f\">%s</text>\n",
                            scale.left, top, kWidth, kBox, top + 18, Escaped(row.name));
      for (const ComputeRecord& compute : row.computes) DrawCompute(compute, scale, top, boxes);
      top += kRow;
    }
    top += kGap;
  }
  DrawAxis(scale, bottom, svg);
  return absl::StrCat(svg, boxes, "</svg>\n");
}

}  // namespace baton::timeline
