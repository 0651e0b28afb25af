// A picture of a run: stages as rows, time to the right, every chunk a box in its request's colour.
// One SVG file without scripts or references, which any browser shows; a box says what it is when
// the pointer rests on it. How large it gets is the run's to bound (TimelineWindow).
#ifndef SERVICES_TIMELINE_TIMELINE_SVG_H_
#define SERVICES_TIMELINE_TIMELINE_SVG_H_

#include <string>

#include "services/timeline/timeline.h"

namespace baton::timeline {

// `title` stands above it; what the window left out is said beside it.
std::string TimelineSvg(const Timeline& timeline, const TimelineWindow& window,
                        const std::string& title);

}  // namespace baton::timeline

#endif  // SERVICES_TIMELINE_TIMELINE_SVG_H_
