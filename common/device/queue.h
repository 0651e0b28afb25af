// The queues that a backend's work is ordered by. Work of one queue runs in the order in which it
// was given; work of two queues is ordered only where one waits for the other's completion. A
// thread each where a CPU computes, a stream each on CUDA, events of virtual time in simulation.
#ifndef COMMON_DEVICE_QUEUE_H_
#define COMMON_DEVICE_QUEUE_H_

#include <cstdint>

namespace baton {

enum class Queue : uint8_t {
  kCompute,        // Forward passes and draws.
  kCopy,           // KV that leaves or has landed.
  kCommunication,  // Collectives between the ranks of a stage.
};

// The name of its thread, of at most 15 characters.
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
