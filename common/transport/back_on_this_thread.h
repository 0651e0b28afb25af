// Answers that may come on any thread, brought back to the data thread.
#ifndef COMMON_TRANSPORT_BACK_ON_THIS_THREAD_H_
#define COMMON_TRANSPORT_BACK_ON_THIS_THREAD_H_

#include <functional>
#include <thread>
#include <utility>

#include "common/base/log.h"
#include "common/transport/data_plane.h"

namespace baton {

// Called on the data thread: a function that calls `then` with its argument there. At once if it is
// called there itself, so that an answer within the call costs nothing; by way of the data plane
// otherwise. An answer that comes after the data plane's end is dropped, with all that it was for.
template <typename Answer>
std::function<void(Answer)> BackOnThisThread(DataPlane& data_plane,
                                             std::function<void(const Answer&)> then) {
  return [&data_plane, here = std::this_thread::get_id(), then = std::move(then)](Answer answer) {
    if (std::this_thread::get_id() == here) return then(answer);
    // As many as are under way, which their caller bounds.
    if (!data_plane.PostReserved([then, answer = std::move(answer)] { then(answer); })) {
      LOG(kDebug) << "an answer comes after the end of the data plane";
    }
  };
}

}  // namespace baton

#endif  // COMMON_TRANSPORT_BACK_ON_THIS_THREAD_H_
