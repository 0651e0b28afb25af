// Built with this instruction set's copts (BUILD.bazel); called only where CPUID allows.
#define BATON_KERNELS avx512
#define BATON_KERNELS_NAME "avx512"
#define BATON_LANES 16
#define BATON_LINEAR_ROWS 12
#define BATON_WIDE 4
#include "common/engine/kernels/kernels-inl.h"
