// The queues that order a backend's work. Work in one queue runs in the order in which it was
// submitted. Work in two queues is ordered only if one waits for the other. A queue is a thread on
// a CPU, a stream on CUDA, and events of virtual time in simulation.
#ifndef COMMON_DEVICE_QUEUE_H_
#define COMMON_DEVICE_QUEUE_H_

#include <cstdint>

namespace baton {

enum class Queue : uint8_t {
  kCompute,        // Forward passes and draws.
  kCopy,           // KV that is exported or has landed.
  kCommunication,  // Collectives between the ranks of a stage.
};

// The name of the queue's thread, at most 15 characters.
constexpr const char* QueueThreadName(Queue queue) {
  switch (queue) {
    case Queue::kCompute:
      return "baton-compute";
    case Queue::kCopy:
      return "baton-copy";
    case Queue::kCommunication:
      return "baton-comm";
  }
  return "baton-queue";
}

}  // namespace baton

#endif  // COMMON_DEVICE_QUEUE_H_
