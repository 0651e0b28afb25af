#include "common/device/memory.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "common/device/queue.h"

namespace baton {
namespace {

TEST(MemoryTest, ABufferReleasesItsBytesOnce) {
  int released = 0;
  std::vector<std::byte> bytes(8);
  {
    MemoryBuffer first(HostSpan(bytes), [&](const MemorySpan& span) {
      EXPECT_EQ(span.data, bytes.data());
      ++released;
    });
    MemoryBuffer second = std::move(first);
    EXPECT_EQ(second.span().bytes, 8u);
    EXPECT_EQ(first.span().bytes, 0u);  // NOLINT(bugprone-use-after-move): it is defined.
    MemoryBuffer third;
    third = std::move(second);
    EXPECT_EQ(released, 0);
  }
  EXPECT_EQ(released, 1);
}

TEST(MemoryTest, HostMemoryIsAlignedAndCanFail) {
  const auto buffer = AllocateHost(100);
  ASSERT_TRUE(buffer.ok()) << buffer.status();
  EXPECT_EQ(buffer->span().bytes, 100u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->span().data) % 64, 0u);
  EXPECT_TRUE(AllocateHost(0)->span().empty());
  const auto none = AllocateHost(size_t{1} << 62);
  EXPECT_EQ(none.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(none.status().message().find("4611686018427387904"), std::string::npos);
}

TEST(MemoryTest, AViewSaysWhatItIs) {
  std::vector<float> values(6, 1.5F);
  const TensorView view = HostTensor(values, 3);
  EXPECT_EQ(view.rows, 2);
  EXPECT_EQ(view.bytes(), 24u);
  EXPECT_EQ(view.ToString(), "[2, 3] float32 in host memory");
  EXPECT_EQ(Floats(view).size(), 6u);
  EXPECT_TRUE(Floats({}).empty());
  EXPECT_EQ(view.memory.Sub(4, 8).data, view.memory.data + 4);
}

TEST(MemoryDeathTest, NobodyFollowsAPointerOfADevice) {
  const MemorySpan gpu{nullptr, 16, MemoryKind::kCuda, 1};
  EXPECT_FALSE(gpu.ReadableByHost());
  EXPECT_DEATH(gpu.Host(), "16 bytes of CUDA memory");
  EXPECT_DEATH(gpu.Sub(8, 9), "of 16 bytes");
}

TEST(QueueTest, ThreadsHaveNamesThatFit) {
  for (const Queue queue : {Queue::kCompute, Queue::kCopy, Queue::kCommunication}) {
    EXPECT_LE(std::string(QueueThreadName(queue)).size(), 15u);
  }
}

}  // namespace
}  // namespace baton
