#include "common/engine/torch/torch_backend.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <fstream>

namespace baton {
namespace {

TEST(TorchBackendTest, TheExecutableSaysWhereThePluginMayBe) {
  EXPECT_EQ(TorchPluginPaths("/opt/baton/bin/baton"),
            (std::vector<std::string>{
                "/opt/baton/bin/libbaton_torch.so", "/opt/baton/lib/baton/libbaton_torch.so",
                "/opt/baton/bin/baton.runfiles/baton/common/engine/torch/libbaton_torch.so"}));
}

TEST(TorchBackendTest, MultipliesOnceLoaded) {
  const auto plugin = LoadTorchPlugin();
  ASSERT_TRUE(plugin.ok()) << plugin.status();
  (*plugin)->set_threads(1);
  const auto linear = (*plugin)->make_linear(2, 3);
  const float weight[] = {1, 2, 3, 4, 5, 6};
  linear->SetRows(reinterpret_cast<const std::byte*>(weight), nullptr, 0, 2);
  const float x[] = {1, 0, 1, 0, 1, 0};
  float y[4] = {};
  linear->Apply(x, 2, y);
  EXPECT_EQ(std::vector<float>(y, y + 4), (std::vector<float>{4, 10, 2, 5}));
}

TEST(TorchBackendTest, TheMatrixLibraryKeepsToItsThreads) {
  const auto plugin = LoadTorchPlugin();
  ASSERT_TRUE(plugin.ok()) << plugin.status();
  if ((*plugin)->has_cuda()) GTEST_SKIP() << "PyPI's libtorch contains its matrix library";
  // Debian's torch multiplies by OpenBLAS, which is loaded with it.
  void* const blas = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_NOLOAD);
  ASSERT_NE(blas, nullptr) << dlerror();
  const auto threads = reinterpret_cast<int (*)()>(dlsym(blas, "openblas_get_num_threads"));
  ASSERT_NE(threads, nullptr) << dlerror();
  for (const int wanted : {1, 2, 1}) {
    (*plugin)->set_threads(wanted);
    EXPECT_EQ(threads(), wanted);
  }
}

TEST(TorchBackendTest, SaysWhereItLookedInVain) {
  const auto plugin = LoadTorchPlugin({"/absent/a.so", "/absent/b.so"});
  EXPECT_EQ(plugin.status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(plugin.status().message(),
            "the torch backend is not installed; looked for /absent/a.so, /absent/b.so");
}

TEST(TorchBackendTest, RefusesWhatIsNoPlugin) {
  const std::string path = testing::TempDir() + "/libbaton_torch.so";
  std::ofstream(path) << "not a library";
  const auto plugin = LoadTorchPlugin({path});
  EXPECT_EQ(plugin.status().code(), absl::StatusCode::kFailedPrecondition);
  // A library, but another one.
  EXPECT_EQ(
      LoadTorchPlugin({"/lib/x86_64-linux-gnu/libm.so.6"}).status().message(),
      "the torch backend /lib/x86_64-linux-gnu/libm.so.6 can't be used: it exports no plugin");
}

}  // namespace
}  // namespace baton
