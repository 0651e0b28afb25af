// Built with this instruction set's copts (BUILD.bazel); called only where CPUID allows.
#define BATON_KERNELS avx2
#define BATON_KERNELS_NAME "avx2"
#define BATON_LANES 8
#define BATON_LINEAR_ROWS 6
#define BATON_WIDE 2
#include "common/engine/kernels/kernels-inl.h"
